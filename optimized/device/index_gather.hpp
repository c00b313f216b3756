// Where the rows of a gather lie in the paged cache (spec 2.6): what FP8 and MXFP4 share.
#pragma once

#include "device/target.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

/// The last request that starts at or before `row`; -1 before the first. Empty requests share a
/// start, so the last of them is the one that may hold the row.
DSAKIT_DEVICE int find_request(const std::int32_t* cu_seq_lens, int requests, std::int64_t row) {
  int low = 0; // first request that starts after row
  int high = requests;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (cu_seq_lens[middle] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low - 1;
}

struct GatherPlace {
  bool inside;       // of a request: else the row is not written
  std::int64_t page; // physical, or -1
  int token;         // of the page
};

template <class Params>
DSAKIT_DEVICE GatherPlace place_of_row(const Params& p, std::int64_t row) {
  const int request =
      p.row_request ? p.row_request[row] : find_request(p.cu_seq_lens, p.requests, row);
  if (request < 0 || request >= p.requests) return {false, -1, 0};
  const std::int64_t position = row - p.cu_seq_lens[request];
  if (position < 0 || row >= p.cu_seq_lens[request + 1]) return {false, -1, 0};

  const std::int64_t column = position / p.page_size;
  const std::int64_t page =
      column < p.table_columns ? p.block_table[request * p.table_stride + column] : -1;
  return {true, page < p.pages ? page : -1, static_cast<int>(position % p.page_size)};
}

} // namespace dsakit::optimized::DSAKIT_ARCH
