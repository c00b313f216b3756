// Rows of requests and the pages they lie in: what readers of both index caches share.
#pragma once

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

/// Logical page `column` of `request`; nullptr where its table entry is beyond the table or the
/// pool, or negative. Entries of other pages are not read.
inline const std::uint8_t* find_page(const IndexCache<const std::uint8_t>& cache,
                                     const BlockTable& block_table, std::int64_t request,
                                     std::int64_t column) {
  if (column >= block_table.columns) return nullptr;
  const std::int64_t page = block_table.data[request * block_table.columns + column];
  if (page < 0 || page >= cache.pages) return nullptr;
  return cache.data + page * cache.page_stride;
}

inline Status check_requests(std::span<const std::int32_t> cu_seq_lens, std::int64_t requests) {
  if (std::ssize(cu_seq_lens) != requests + 1)
    return bad_input("cu_seq_lens: found " + std::to_string(cu_seq_lens.size()) +
                     " entries, want " + std::to_string(requests + 1) +
                     ", one more than block_table has rows");
  const auto fall = std::is_sorted_until(cu_seq_lens.begin(), cu_seq_lens.end());
  if (fall != cu_seq_lens.end())
    return bad_input("cu_seq_lens[" + std::to_string(fall - cu_seq_lens.begin()) + "]: found " +
                     std::to_string(*fall) + " after " + std::to_string(*(fall - 1)) +
                     ", want no smaller");
  return {};
}

/// The request whose range [cu_seq_lens[b], cu_seq_lens[b + 1]) holds the row; -1 or the number of
/// requests where none does.
inline std::int64_t request_of(std::span<const std::int32_t> cu_seq_lens, std::int64_t row) {
  return std::upper_bound(cu_seq_lens.begin(), cu_seq_lens.end(), row) - cu_seq_lens.begin() - 1;
}

/// visit(row, request, position) for each row that lies in the range of its request, in parallel;
/// rows and requests as index_cache_gather takes them.
template <class Visit>
Status for_each_gathered_row(const BlockTable& block_table,
                             std::span<const std::int32_t> cu_seq_lens,
                             std::span<const std::int32_t> row_request, std::int64_t rows,
                             const Visit& visit) {
  DSAKIT_TRY(check_requests(cu_seq_lens, block_table.requests));
  if (!row_request.empty() && std::ssize(row_request) != rows)
    return bad_input("row_request: found " + std::to_string(row_request.size()) +
                     " entries, want none or " + std::to_string(rows) + ", one a row");
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t row) {
    const std::int64_t request = row_request.empty() ? request_of(cu_seq_lens, row)
                                                     : row_request[static_cast<std::size_t>(row)];
    if (request < 0 || request >= block_table.requests) return;
    const std::int64_t begin = cu_seq_lens[static_cast<std::size_t>(request)];
    const std::int64_t end = cu_seq_lens[static_cast<std::size_t>(request) + 1];
    if (row >= begin && row < end) visit(row, request, row - begin);
  });
  return {};
}

} // namespace dsakit::reference
