#include "dsakit/reference/context_parallel.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "dsakit/reference/topk.hpp"
#include "score_order.hpp"

namespace dsakit::reference {
namespace {

struct Candidate {
  float score;
  std::int32_t position;
};

bool ranks_before(const Candidate& a, const Candidate& b) {
  if (scores_higher(a.score, b.score)) return true;
  if (scores_higher(b.score, a.score)) return false;
  return a.position < b.position;
}

bool stands_before(const Candidate& a, const Candidate& b) {
  return a.position < b.position;
}

} // namespace

Status check_dcp_rank(const DcpRank& dcp) {
  if (dcp.world < 1)
    return bad_input("dcp world: found " + std::to_string(dcp.world) + ", want at least 1");
  if (dcp.interleave < 1)
    return bad_input("dcp interleave: found " + std::to_string(dcp.interleave) +
                     ", want at least 1");
  if (dcp.rank < 0 || dcp.rank >= dcp.world)
    return bad_input("dcp rank: found " + std::to_string(dcp.rank) + ", want 0 to " +
                     std::to_string(dcp.world - 1));
  return {};
}

std::int64_t dcp_owner(const DcpRank& dcp, std::int64_t position) {
  return position / dcp.interleave % dcp.world;
}

std::int64_t dcp_local_index(const DcpRank& dcp, std::int64_t position) {
  return position / (dcp.world * dcp.interleave) * dcp.interleave + position % dcp.interleave;
}

std::int64_t dcp_global_position(const DcpRank& dcp, std::int64_t local_index) {
  return local_index / dcp.interleave * (dcp.world * dcp.interleave) + dcp.rank * dcp.interleave +
         local_index % dcp.interleave;
}

std::int64_t dcp_local_length(const DcpRank& dcp, std::int64_t length) {
  const std::int64_t whole = length / dcp.interleave / dcp.world * dcp.interleave;
  const std::int64_t rest = length - whole * dcp.world - dcp.rank * dcp.interleave;
  return whole + std::clamp<std::int64_t>(rest, 0, dcp.interleave);
}

Status dcp_slot_mapping(const DcpRank& dcp, std::span<const std::int32_t> positions,
                        const std::int32_t* row_request, BlockTable block_table,
                        std::int64_t page_size, std::int64_t* slots) {
  std::vector<std::int32_t> narrow(positions.size());
  DSAKIT_TRY(topk_slots(positions.data(), std::ssize(positions), 1, block_table, row_request,
                        page_size, page_size, narrow.data(), dcp));
  std::copy(narrow.begin(), narrow.end(), slots);
  return {};
}

void dcp_topk_merge(const float* rank_scores, const std::int32_t* rank_indices, std::int64_t world,
                    std::int64_t rows, std::int64_t k, TopkOrder order,
                    std::int32_t* topk_indices) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<Candidate> candidates;
    for (std::int64_t rank = 0; rank < world; ++rank)
      for (std::int64_t i = 0; i < k; ++i) {
        const std::int64_t at = (rank * rows + row) * k + i;
        if (rank_indices[at] >= 0) candidates.push_back({rank_scores[at], rank_indices[at]});
      }
    const bool all = std::ssize(candidates) <= k;
    if (!all) {
      std::partial_sort(candidates.begin(), candidates.begin() + k, candidates.end(), ranks_before);
      candidates.resize(static_cast<std::size_t>(k));
    }
    if (all || order == TopkOrder::ascending)
      std::sort(candidates.begin(), candidates.end(), stands_before);
    std::int32_t* out = topk_indices + row * k;
    std::fill_n(out, k, -1);
    for (const Candidate& candidate : candidates)
      *out++ = candidate.position;
  }
}

} // namespace dsakit::reference
