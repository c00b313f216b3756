// Requests in pages, and the rows that score their keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "generator.hpp"

namespace dsakit::golden {

/// Pages of requests of those lengths in a shuffled order, with two to spare; the table's end is
/// never read.
struct PagedRequests {
  std::int64_t pages;
  std::int64_t columns;
  std::vector<std::int32_t> table; ///< [requests, columns]
  std::vector<std::int64_t> slots; ///< of every token, request by request
};

inline PagedRequests paged_requests(const std::vector<std::int32_t>& lengths,
                                    std::int64_t page_size, Random& random) {
  PagedRequests paged{2, 0, {}, {}};
  for (const std::int32_t length : lengths) {
    const std::int64_t pages = (length + page_size - 1) / page_size;
    paged.pages += pages;
    paged.columns = std::max(paged.columns, pages);
  }
  const auto order = random.permutation(paged.pages);
  std::size_t next = 0;
  for (const std::int32_t length : lengths) {
    const std::size_t row = paged.table.size();
    paged.table.resize(row + static_cast<std::size_t>(paged.columns), -1);
    for (std::int64_t token = 0; token < length; ++token) {
      std::int32_t& page = paged.table[row + static_cast<std::size_t>(token / page_size)];
      if (token % page_size == 0) page = static_cast<std::int32_t>(order[next++]);
      paged.slots.push_back(page * page_size + token % page_size);
    }
  }
  return paged;
}

/// `next_n` rows a request, each one key longer than the one before.
struct ScoredRows {
  std::vector<std::int32_t> cu_seq_lens;
  std::vector<std::int32_t> row_lens, row_request; ///< in decode
  std::vector<std::int32_t> ks, ke;                ///< in prefill
};

inline ScoredRows scored_rows(const std::vector<std::int32_t>& lengths, int next_n) {
  ScoredRows rows{{0}, {}, {}, {}, {}};
  for (std::size_t request = 0; request < lengths.size(); ++request) {
    for (int behind = next_n - 1; behind >= 0; --behind) {
      rows.row_request.push_back(static_cast<std::int32_t>(request));
      rows.row_lens.push_back(std::max(lengths[request] - behind, 0));
      rows.ks.push_back(rows.cu_seq_lens.back());
      rows.ke.push_back(rows.cu_seq_lens.back() + rows.row_lens.back());
    }
    rows.cu_seq_lens.push_back(rows.cu_seq_lens.back() + lengths[request]);
  }
  return rows;
}

} // namespace dsakit::golden
