// Random problems of the MXFP4 index cache and its logits.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dsakit/core/contract.hpp"

namespace dsakit::testing {

/// What the MXFP4 index cache tests vary.
struct Mxfp4Case {
  IndexPageLayout layout;
  std::int64_t page_size;
  std::int64_t extra_stride; ///< bytes between the end of a page and the next

  Mxfp4Pages pages() const { return {layout, page_size}; }
  std::int64_t page_stride() const { return page_size * 68 + extra_stride; }
  std::string name() const {
    return std::string(dsakit::name(layout)) + " page " + std::to_string(page_size);
  }
};

inline std::vector<Mxfp4Case> mxfp4_cases() {
  return {{IndexPageLayout::flat, 1, 0},          {IndexPageLayout::flat, 5, 12},
          {IndexPageLayout::flat, 16, 0},         {IndexPageLayout::flat, 64, 0},
          {IndexPageLayout::flat, 128, 64},       {IndexPageLayout::preshuffle64, 64, 0},
          {IndexPageLayout::preshuffle64, 64, 20}};
}

/// Any code in both halves of each byte.
inline std::vector<std::uint8_t> random_packed(std::int64_t bytes, std::mt19937& random) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes));
  for (std::uint8_t& byte : packed)
    byte = static_cast<std::uint8_t>(random());
  return packed;
}

/// Scales from 2^-8 to 2^4, so that groups differ.
inline std::vector<std::uint8_t> random_scales(std::int64_t count, std::mt19937& random) {
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(count));
  for (std::uint8_t& scale : scales)
    scale = static_cast<std::uint8_t>(119 + random() % 13);
  return scales;
}

/// Pages of random codes and scales in either layout; bytes that no token owns are 0xFF, a NaN
/// where a scale is read from there.
inline std::vector<std::uint8_t> random_mxfp4_cache(const Mxfp4Case& c, std::int64_t pages,
                                                    std::mt19937& random) {
  std::vector<std::uint8_t> cache(static_cast<std::size_t>(pages * c.page_stride()), 0xFF);
  for (std::int64_t page = 0; page < pages; ++page) {
    const auto codes = random_packed(c.page_size * 64, random);
    const auto scales = random_scales(c.page_size * 4, random);
    std::copy(codes.begin(), codes.end(), cache.begin() + page * c.page_stride());
    std::copy(scales.begin(), scales.end(),
              cache.begin() + page * c.page_stride() + c.page_size * 64);
  }
  return cache;
}

} // namespace dsakit::testing
