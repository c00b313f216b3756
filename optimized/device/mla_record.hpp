// The 656-byte fp8_ds_mla record (spec 4): 512 e4m3 latents, 4 fp32 scales, 64 bf16.
#pragma once

#include "device/target.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kMlaLatent = 512;
inline constexpr int kMlaPe = 64;
inline constexpr int kMlaDim = kMlaLatent + kMlaPe; // of a query or key
inline constexpr int kMlaTiles = 4;                 // of 128 latents, a scale each
inline constexpr int kMlaScaleOffset = 512;         // bytes
inline constexpr int kMlaPeOffset = 528;            // bytes
inline constexpr int kMlaRecord = 656;              // bytes
inline constexpr float kLargestBf16 = 0x1.FEp127f;

} // namespace dsakit::optimized::DSAKIT_ARCH
