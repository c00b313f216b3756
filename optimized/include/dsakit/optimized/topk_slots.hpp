// topk_slots: request-local positions to cache slots, of one rank under decode context parallelism
// (spec 5.1, 6).
#pragma once

#include <cstdint>

namespace dsakit::optimized {

/// slots[r, i] = block_table[request][l / page_size] * block_stride + l % page_size  where dcp_rank
/// holds the position p = topk_indices[r, i] at l:
///   (p / dcp_interleave) % dcp_world == dcp_rank
///   l = p / (dcp_world * dcp_interleave) * dcp_interleave + p % dcp_interleave
/// -1 where another rank holds p, p is negative, its column or its page is invalid, the request is,
/// or the slot would leave int32.
/// compact_slots[r] are the slots of row r but for -1, in their order, -1 behind them; counts[r] is
/// how many.
struct TopkSlotsParams {
  const std::int32_t* topk_indices; // [rows, k]
  const std::int32_t* block_table;  // [requests, table_columns], of the rank
  const std::int32_t* row_request;  // [rows]
  std::int32_t* slots;              // [rows, k], or nullptr where one of the next is wanted
  std::int32_t* compact_slots;      // [rows, k], or nullptr
  std::int32_t* counts;             // [rows], or nullptr
  std::int64_t rows;
  std::int64_t table_stride; // ELEMENTS between rows of block_table
  std::int32_t k;
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t page_size;    // tokens a page
  std::int32_t block_stride; // SLOTS between pages, at least page_size
  std::int32_t dcp_world = 1;
  std::int32_t dcp_interleave = 1;
  std::int32_t dcp_rank = 0;
};

} // namespace dsakit::optimized
