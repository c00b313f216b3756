// One token's record of the MLA cache, and the only code that knows where its bytes lie.
#pragma once

#include <cstdint>

#include "dsakit/reference/mla_cache.hpp"

namespace dsakit::reference {

/// BYTES inside a record: 512 codes, 4 fp32 scales, 64 elements of k_pe.
inline constexpr std::int64_t kMlaScaleOffset = kMlaLatent;
inline constexpr std::int64_t kMlaPeOffset = kMlaScaleOffset + kMlaLatent / kMlaTile * 4;

/// bad_input where records would overlap or leave their page.
Status check_mla_cache(std::int64_t page_size, std::int64_t page_stride, std::int64_t record_stride,
                       MlaRecord record = MlaRecord::fp8_ds_mla);

template <class Byte>
Byte* record_of(const MlaCache<Byte>& cache, std::int64_t slot) {
  return cache.data + slot / cache.page_size * cache.page_stride +
         slot % cache.page_size * cache.record_stride;
}

} // namespace dsakit::reference
