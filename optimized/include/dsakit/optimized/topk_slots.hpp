// topk_slots: request-local positions to cache slots (spec 5.1).
#pragma once

#include <cstdint>

namespace dsakit::optimized {

/// slots[r, i] = block_table[request][p / page_size] * block_stride + p % page_size  for p =
/// topk_indices[r, i]; -1 where p is negative, its column or its page is invalid, or the request
/// is.
struct TopkSlotsParams {
  const std::int32_t* topk_indices; // [rows, k]
  const std::int32_t* block_table;  // [requests, table_columns]
  const std::int32_t* row_request;  // [rows]
  std::int32_t* slots;              // [rows, k]
  std::int64_t rows;
  std::int64_t table_stride; // ELEMENTS between rows of block_table
  std::int32_t k;
  std::int32_t requests;
  std::int32_t table_columns;
  std::int32_t page_size;    // tokens a page
  std::int32_t block_stride; // SLOTS between pages, at least page_size
};

} // namespace dsakit::optimized
