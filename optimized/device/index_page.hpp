// Byte offsets inside a page of the index cache: FP8 (spec 2.5) and MXFP4 (spec 3.2).
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

inline constexpr int kMxfp4Bytes = kIndexHeadDim / 2; ///< codes of a token, two a byte
inline constexpr int kMxfp4Groups = kIndexHeadDim / 32;

struct Mxfp4Page {
  std::int32_t page_size; // tokens
  IndexPageLayout layout;

  /// Byte i (0 to 63) of a token's codes; the 16 of a group follow each other.
  DSAKIT_DEVICE std::int64_t code_offset(int token, int i) const {
    return layout == IndexPageLayout::flat
               ? static_cast<std::int64_t>(token) * kMxfp4Bytes + i
               : static_cast<std::int64_t>(i / 16) * page_size * 16 + token * 16 + i % 16;
  }

  /// The e8m0 byte of a token's group.
  DSAKIT_DEVICE std::int64_t scale_offset(int token, int group) const {
    const std::int64_t scales = static_cast<std::int64_t>(page_size) * kMxfp4Bytes;
    return layout == IndexPageLayout::flat
               ? scales + kMxfp4Groups * token + group
               : scales + group * page_size + token % 16 * (page_size / 16) + token / 16;
  }
};

} // namespace dsakit::optimized::DSAKIT_ARCH
