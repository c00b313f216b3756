// v_cvt_pk_fp8_f32 as the hardware does it: MI300 ISA, 8-bit conversions.
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized::host {

/// Nearest e4m3 code, ties to even. Beyond the largest finite value (after rounding) and for NaN
/// the format's NaN, since kernels run without FP16_OVFL: a kernel that forgets to clamp shows.
std::uint8_t convert_fp8(float value, Fp8Encoding encoding);

} // namespace dsakit::optimized::host
