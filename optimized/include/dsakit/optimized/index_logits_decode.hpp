// index_logits_decode: FP8 or MXFP4 indexer scores of every cached key for decode rows (spec 2.8,
// 2.9, 3.3).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// logits[r, p] = (sum_h max(sum_d q[r,h,d] * k[p,d], 0) * w[r,h]) * s_k[p]   for p < row_lens[r]
/// Beyond a row's length nothing is written. A key on a page outside the table or the pool: -inf.
struct IndexLogitsDecodeParams {
  const std::uint8_t* q;           // [rows, heads, 128] e4m3, 16-byte aligned
  const std::uint8_t* cache;       // [pages] pages of page_size * 132 bytes, 4-byte aligned
  const float* weights;            // [rows, heads]
  const std::int32_t* block_table; // [requests, table_columns]
  const std::int32_t* row_lens;    // [rows] keys that a row sees; negative counts as 0
  const std::int32_t* row_request; // [rows], or nullptr: row / next_n
  float* logits;                   // [rows, columns]
  std::int64_t q_stride;           // BYTES between rows of q, a multiple of 16
  std::int64_t weights_stride;     // ELEMENTS between rows of weights
  std::int64_t logits_stride;      // ELEMENTS between rows of logits
  std::int64_t page_stride;        // BYTES between pages, a multiple of 4
  std::int64_t table_stride;       // ELEMENTS between rows of block_table
  std::int64_t rows;
  std::int64_t pages;
  std::int32_t heads; // 1 to 64
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t next_n;    // rows a request, where row_request is nullptr
  std::int32_t columns;   // longest row: keys beyond it are never scored
  std::int32_t page_size; // tokens a page
  Fp8Encoding encoding;   // of q and of the cache
  IndexPageLayout layout; // block_flat | mfma_preshuffle
};

/// logits[r, p] = (sum_h max(dot[h], 0) * w[r,h]) * weight_scale, dot as
/// IndexLogitsPrefillMxfp4Params has it; lengths and pages as above.
struct IndexLogitsDecodeMxfp4Params {
  const std::uint8_t* q_packed;    // [rows, heads, 64] e2m1, 16-byte aligned
  const std::uint8_t* q_scale;     // [rows, heads, 4] e8m0
  const std::uint8_t* cache;       // [pages] pages of page_size * 68 bytes, 4-byte aligned
  const std::uint16_t* weights;    // [rows, heads] bf16, as projected
  const std::int32_t* block_table; // [requests, table_columns]
  const std::int32_t* row_lens;    // [rows] keys that a row sees; negative counts as 0
  const std::int32_t* row_request; // [rows], or nullptr: row / next_n
  float* logits;                   // [rows, columns]
  std::int64_t q_stride;           // BYTES between rows of q_packed, a multiple of 16
  std::int64_t q_scale_stride;     // BYTES between rows of q_scale
  std::int64_t weights_stride;     // ELEMENTS between rows of weights
  std::int64_t logits_stride;      // ELEMENTS between rows of logits
  std::int64_t page_stride;        // BYTES between pages, a multiple of 4
  std::int64_t table_stride;       // ELEMENTS between rows of block_table
  std::int64_t rows;
  std::int64_t pages;
  std::int32_t heads; // 1 to 64
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t next_n;    // rows a request, where row_request is nullptr
  std::int32_t columns;   // longest row: keys beyond it are never scored
  std::int32_t page_size; // tokens a page; 64 for preshuffle64
  float weight_scale;     // fl32(heads^-0.5 * 128^-0.5)
  IndexPageLayout layout; // flat | preshuffle64
};

} // namespace dsakit::optimized
