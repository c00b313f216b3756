// Quantises one indexer key and writes its record: what index_cache_write and the fused norm share.
#pragma once

#include "device/index_page.hpp"
#include "device/quantise.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

/// x: elements 8 * part ... + 7 of the key; all 16 lanes of the row take part, whatever the slot.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void write_index_key(const IndexCacheWriteParams& p, std::int64_t slot, int part,
                                   const float (&x)[8]) {
  const float amax = amax_of_row(x);
  const std::int64_t page = slot / p.page_size;
  if (slot < 0 || page >= p.pages) return;

  const int exponent = scale_exponent(amax > p.amax_floor ? amax : p.amax_floor, p.qmax);
  float y[8];
  for (int i = 0; i < 8; ++i)
    y[i] = x[i] * power_of_two(-exponent);

  const IndexPage geometry{p.page_size, p.layout};
  const int token = static_cast<int>(slot - page * p.page_size);
  std::uint8_t* base = p.cache + page * p.page_stride;
  store8_aligned4(base + geometry.chunk_offset(token, part / 2) + part % 2 * 8,
                  convert_fp8x8<kEncoding>(y));
  if (part == 0)
    *reinterpret_cast<float*>(base + geometry.scale_offset(token)) = power_of_two(exponent);
}

} // namespace dsakit::optimized::DSAKIT_ARCH
