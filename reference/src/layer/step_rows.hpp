// The rows of a step: which request each belongs to, and how many keys it sees (spec 2.9).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsakit/reference/context_parallel.hpp"
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

/// A rank's share of the rows' keys: every bound is localised of itself (spec 6).
struct RankRows {
  DcpRank dcp;
  std::vector<std::int32_t> row_lens; ///< [tokens]
  std::vector<std::int32_t> seq_lens; ///< [requests]
};

inline RankRows rows_of_rank(const DcpRank& dcp, const StepRows& rows,
                             std::span<const std::int32_t> seq_lens) {
  RankRows own{dcp, rows.row_lens, {seq_lens.begin(), seq_lens.end()}};
  for (auto* lens : {&own.row_lens, &own.seq_lens})
    for (std::int32_t& len : *lens)
      len = static_cast<std::int32_t>(dcp_local_length(dcp, len));
  return own;
}

inline std::vector<RankRows> rows_of_ranks(const LayerConfig& config, const StepRows& rows,
                                           std::span<const std::int32_t> seq_lens) {
  std::vector<RankRows> ranks;
  for (std::int64_t rank = 0; rank < config.parallel.decode_context_parallel_size; ++rank)
    ranks.push_back(rows_of_rank({config.parallel.decode_context_parallel_size,
                                  config.parallel.cp_kv_cache_interleave_size, rank},
                                 rows, seq_lens));
  return ranks;
}

/// How the sink calls a tensor of one rank; alone it has the name itself.
inline std::string rank_tensor(const DcpRank& dcp, const std::string& name) {
  return dcp.world == 1 ? name : "ranks." + std::to_string(dcp.rank) + "." + name;
}

} // namespace dsakit::reference
