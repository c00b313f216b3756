// dcp_topk_merge: the k best positions of what all ranks selected from their own keys (spec 6).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// Order: score descending, -0 as +0, NaN of either sign below -inf and above padding, then the
/// smaller position; or ascending positions. -1 beyond the candidates. The ranks' lists may be in
/// any order; a position stands in one of them, once.
struct DcpTopkMergeParams {
  const float* rank_scores;         // [world, rows, k]
  const std::int32_t* rank_indices; // [world, rows, k] global positions; negative: padding
  std::int32_t* topk_indices;       // [rows, k]
  std::int64_t rank_stride;         // ELEMENTS between ranks of rank_scores and rank_indices
  std::int64_t rows;
  std::int32_t world; // 1 to 64
  std::int32_t k;     // 1 to 4096
  TopkOrder order;
};

} // namespace dsakit::optimized
