// The rows of a step: which request each belongs to, and how many keys it sees (spec 2.9).
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dsakit/reference/layer.hpp"

namespace dsakit::reference {

struct StepRows {
  std::vector<std::int32_t> row_lens;    ///< [tokens] seq_len - query_len + i + 1; 0: no key
  std::vector<std::int32_t> row_request; ///< [tokens] -1 for padding
  std::vector<std::int64_t> first_row;   ///< [requests + 1]
};

inline StepRows rows_of(const LayerStep& step) {
  const auto tokens = static_cast<std::size_t>(step.tokens);
  StepRows rows{std::vector<std::int32_t>(tokens, 0), std::vector<std::int32_t>(tokens, -1), {0}};
  for (std::size_t b = 0; b < step.query_lens.size(); ++b) {
    const std::int64_t first = rows.first_row.back();
    for (std::int32_t i = 0; i < step.query_lens[b]; ++i) {
      const auto row = static_cast<std::size_t>(first + i);
      rows.row_lens[row] = std::max(step.seq_lens[b] - step.query_lens[b] + i + 1, 0);
      rows.row_request[row] = static_cast<std::int32_t>(b);
    }
    rows.first_row.push_back(first + step.query_lens[b]);
  }
  return rows;
}

} // namespace dsakit::reference
