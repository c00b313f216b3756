// index_cache_gather: copy the keys and scales of whole requests out of the paged cache (spec 2.6;
// MXFP4 pages: 3.2).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// k_fp8[j, :], k_scale[j] = the record of token j - cu_seq_lens[b] of request b = row_request[j].
/// Row outside its request: not written. Table entry outside the table or the pool: zero bytes and
/// scale 0.
struct IndexCacheGatherParams {
  const std::uint8_t* cache;       // [pages] pages of page_size * 132 bytes, 4-byte aligned
  const std::int32_t* block_table; // [requests, table_columns]
  const std::int32_t* cu_seq_lens; // [requests + 1]
  const std::int32_t* row_request; // [rows], or nullptr: the request whose range holds the row
  std::uint8_t* k_fp8;             // [rows, 128], 16-byte aligned
  float* k_scale;                  // [rows]
  std::int64_t page_stride;        // BYTES between pages, a multiple of 4
  std::int64_t table_stride;       // ELEMENTS between rows of block_table
  std::int64_t rows;
  std::int64_t pages;
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t page_size; // tokens a page
  IndexPageLayout layout; // block_flat | mfma_preshuffle
};

/// The same for MXFP4 records; scale bytes 0 for a table entry outside the table or the pool.
struct IndexCacheGatherMxfp4Params {
  const std::uint8_t* cache;       // [pages] pages of page_size * 68 bytes, 4-byte aligned
  const std::int32_t* block_table; // [requests, table_columns]
  const std::int32_t* cu_seq_lens; // [requests + 1]
  const std::int32_t* row_request; // [rows], or nullptr: the request whose range holds the row
  std::uint8_t* k_packed;          // [rows, 64], 16-byte aligned
  std::uint8_t* k_scale;           // [rows, 4] e8m0
  std::int64_t page_stride;        // BYTES between pages, a multiple of 4
  std::int64_t table_stride;       // ELEMENTS between rows of block_table
  std::int64_t rows;
  std::int64_t pages;
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t page_size; // tokens a page; 64 for preshuffle64
  IndexPageLayout layout; // flat | preshuffle64
};

} // namespace dsakit::optimized
