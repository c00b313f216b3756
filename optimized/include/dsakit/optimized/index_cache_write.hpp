// index_cache_write: quantise indexer keys and write them into the paged cache (spec 2.4, 2.5;
// MXFP4: 3.1, 3.2).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// s = 2^ceil(log2(max(floor, max_d |k_d|) / qmax));  code_d = e4m3(k_d / s)
/// page = slot / page_size, token = slot % page_size; a slot < 0 or past the pool is skipped.
struct IndexCacheWriteParams {
  const std::uint16_t* index_k;     // [>= tokens, 128] bf16, rows 16-byte aligned
  const std::int64_t* slot_mapping; // [tokens]
  std::uint8_t* cache;              // [pages] pages of page_size * 132 bytes, 4-byte aligned
  std::int64_t index_k_stride;      // ELEMENTS between rows of index_k, a multiple of 8
  std::int64_t page_stride;         // BYTES between pages, a multiple of 4
  std::int64_t tokens;
  std::int64_t pages;
  std::int32_t page_size; // tokens a page
  float amax_floor;
  float qmax; // 448 | 240 | 224
  Fp8Encoding encoding;
  IndexPageLayout layout; // block_flat | mfma_preshuffle
};

/// A key quantised as IndexQueryQuantMxfp4Params has it; slots as above.
struct IndexCacheWriteMxfp4Params {
  const std::uint16_t* index_k;     // [>= tokens, 128] bf16, rows 16-byte aligned
  const std::int64_t* slot_mapping; // [tokens]
  std::uint8_t* cache;              // [pages] pages of page_size * 68 bytes, 4-byte aligned
  std::int64_t index_k_stride;      // ELEMENTS between rows of index_k, a multiple of 8
  std::int64_t page_stride;         // BYTES between pages, a multiple of 4
  std::int64_t tokens;
  std::int64_t pages;
  std::int32_t page_size; // tokens a page; 64 for preshuffle64
  bool hadamard;          // as IndexQueryQuantMxfp4Params
  IndexPageLayout layout; // flat | preshuffle64
};

} // namespace dsakit::optimized
