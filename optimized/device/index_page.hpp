// Byte offsets inside a page of the FP8 index cache (spec 2.5).
#pragma once

#include "device/target.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kIndexHeadDim = 128;

struct IndexPage {
  std::int32_t page_size; // tokens
  IndexPageLayout layout;

  /// The i-th 16 codes (0 to 7) of a token.
  DSAKIT_DEVICE std::int64_t chunk_offset(int token, int i) const {
    return layout == IndexPageLayout::block_flat
               ? static_cast<std::int64_t>(token) * kIndexHeadDim + 16 * i
               : static_cast<std::int64_t>(token / 16) * 2048 + i * 256 + token % 16 * 16;
  }

  /// The fp32 scale of a token.
  DSAKIT_DEVICE std::int64_t scale_offset(int token) const {
    return static_cast<std::int64_t>(page_size) * kIndexHeadDim + 4 * token;
  }
};

} // namespace dsakit::optimized::DSAKIT_ARCH
