// Random problems of the index cache and its logits, with axes that all differ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "dsakit/core/contract.hpp"

namespace dsakit::testing {

/// What the index cache tests vary.
struct IndexCase {
  Fp8Encoding encoding;
  IndexPageLayout layout;
  std::int64_t page_size;
  std::int64_t extra_stride; ///< bytes between the end of a page and the next

  IndexPages pages() const { return {encoding, layout, page_size}; }
  std::int64_t page_stride() const { return page_size * 132 + extra_stride; }
};

inline std::vector<IndexCase> index_cases() {
  std::vector<IndexCase> cases;
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    for (std::int64_t page_size : {1, 5, 16, 64, 128})
      cases.push_back({encoding, IndexPageLayout::block_flat, page_size, page_size == 5 ? 12 : 0});
    for (std::int64_t page_size : {16, 48, 64})
      cases.push_back(
          {encoding, IndexPageLayout::mfma_preshuffle, page_size, page_size == 48 ? 2048 : 0});
  }
  return cases;
}

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

/// Pages of random finite codes and power-of-two scales; bytes that no token owns are 0x7F.
inline std::vector<std::uint8_t> random_cache(const IndexCase& c, std::int64_t pages,
                                              std::mt19937& random) {
  std::vector<std::uint8_t> cache(static_cast<std::size_t>(pages * c.page_stride()), 0x7F);
  for (std::int64_t page = 0; page < pages; ++page) {
    std::uint8_t* base = cache.data() + page * c.page_stride();
    for (std::int64_t i = 0; i < c.page_size * 128; ++i) {
      std::uint8_t code;
      do
        code = static_cast<std::uint8_t>(random());
      while ((code & 0x7F) == 0x7F || code == 0x80);
      base[i] = code;
    }
    for (std::int64_t t = 0; t < c.page_size; ++t) {
      const float scale = std::ldexp(1.0f, static_cast<int>(random() % 9) - 8);
      __builtin_memcpy(base + c.page_size * 128 + 4 * t, &scale, sizeof scale);
    }
  }
  return cache;
}

/// A permutation of pages cut into `requests` rows of `columns`, so that no page is its own index.
inline std::vector<std::int32_t> random_block_table(std::int64_t requests, std::int64_t columns,
                                                    std::mt19937& random) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(requests * columns));
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), random);
  return table;
}

} // namespace dsakit::testing
