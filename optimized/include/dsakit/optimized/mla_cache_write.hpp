// mla_cache_write: latents and unrotated key dims into 656-byte fp8_ds_mla records (spec 4).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// Per tile of 128: s = max(amax / qmax, FLT_MIN), code = e4m3(x / s), IEEE divisions, saturating.
/// Record: 512 codes, 4 fp32 scales, 64 bf16 of k_pe bit for bit.
struct MlaCacheWriteParams {
  const std::uint16_t* kv_c;        // [>= tokens, 512] bf16, rows 16-byte aligned
  const std::uint16_t* k_pe;        // [>= tokens, 64] bf16, rows 16-byte aligned
  const std::int64_t* slot_mapping; // [tokens]; below 0 or past the pool: skipped
  std::uint8_t* cache;              // [pages, page_size] records, 16-byte aligned
  std::int64_t kv_c_stride;         // ELEMENTS between rows, a multiple of 8
  std::int64_t k_pe_stride;         // ELEMENTS between rows, a multiple of 8
  std::int64_t page_stride;         // BYTES between pages, a multiple of 16
  std::int64_t record_stride;       // BYTES between records of a page, a multiple of 16
  std::int64_t tokens;
  std::int64_t pages;
  std::int32_t page_size; // tokens a page
  float qmax;             // 448 | 240 | 224
  Fp8Encoding encoding;
};

} // namespace dsakit::optimized
