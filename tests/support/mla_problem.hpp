// MLA caches of random records.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "support/index_problem.hpp"

namespace dsakit::testing {

/// Where the records of an MLA cache lie.
struct MlaPages {
  std::int64_t pages;
  std::int64_t page_size;
  std::int64_t extra_page = 0;   ///< bytes between the last record of a page and the next page
  std::int64_t extra_record = 0; ///< bytes between records

  std::int64_t record_stride() const { return 656 + extra_record; }
  std::int64_t page_stride() const { return page_size * record_stride() + extra_page; }
  std::int64_t slots() const { return pages * page_size; }
  std::int64_t bytes() const { return pages * page_stride(); }
  std::int64_t offset(std::int64_t slot) const {
    return slot / page_size * page_stride() + slot % page_size * record_stride();
  }
};

/// Every byte is a NaN of its encoding, of a scale, and of bf16: what nothing may use.
inline std::vector<std::uint8_t> poisoned_mla_cache(const MlaPages& pages, Fp8Encoding encoding) {
  std::vector<std::uint8_t> cache(static_cast<std::size_t>(pages.bytes()), 0xFF);
  if (encoding == Fp8Encoding::e4m3fnuz)
    for (std::int64_t slot = 0; slot < pages.slots(); ++slot)
      std::memset(cache.data() + pages.offset(slot), 0x80, 512);
  return cache;
}

/// Finite codes, unrounded scales that make values of about 1, normal k_pe.
inline void random_mla_record(std::uint8_t* record, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale_of(0.003f, 0.012f);
  for (int d = 0; d < 512; ++d) {
    do
      record[d] = static_cast<std::uint8_t>(random());
    while ((record[d] & 0x7F) == 0x7F || record[d] == 0x80);
  }
  for (int tile = 0; tile < 4; ++tile) {
    const float scale = scale_of(random);
    std::memcpy(record + 512 + 4 * tile, &scale, sizeof scale);
  }
  for (int d = 0; d < 64; ++d) {
    const std::uint16_t value = to_bf16(normal(random));
    std::memcpy(record + 528 + 2 * d, &value, sizeof value);
  }
}

} // namespace dsakit::testing
