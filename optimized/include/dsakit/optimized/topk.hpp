// topk: positions of the k largest logits of each row, exactly and deterministically (spec 2.10,
// 11).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// Order: score descending, -0 as +0, NaN of either sign below -inf, then the smaller position.
/// A row of at most k columns gives 0, 1, ..., then -1, and no logit is read unless dcp_scores
/// asks. dcp_scores: the logits at the selected positions, -inf at -1, which a rank offers to
/// dcp_topk_merge.
/// Row r's columns are [row_starts[r], row_ends[r]) of its logits; positions count from
/// row_starts[r]. Under decode context parallelism the columns are the keys of dcp_rank, and column
/// l stands for the position in the request (spec 6)
///   p = (l / dcp_interleave * dcp_world + dcp_rank) * dcp_interleave + l % dcp_interleave,
/// which fits an int32.
struct TopkParams {
  const float* logits;            // [rows, >= every row_ends]
  const std::int32_t* row_starts; // [rows], or nullptr: 0
  const std::int32_t* row_ends;   // [rows]; at or below the start: an empty row
  std::int32_t* topk_indices;     // [rows, k]
  float* dcp_scores;              // [rows, k], or nullptr
  std::int64_t logits_stride;     // ELEMENTS between rows of logits
  std::int64_t topk_stride;       // ELEMENTS between rows of topk_indices and dcp_scores
  std::int64_t rows;
  std::int32_t k;  // 1 to 4096
  TopkOrder order; // of rows with more than k columns
  std::int32_t dcp_world = 1;
  std::int32_t dcp_interleave = 1;
  std::int32_t dcp_rank = 0;
  std::int32_t lanes = 0; // of the workgroup that takes a row, 256 | 512 | 1024; 0: 512. The result
                          // does not depend on it
};

} // namespace dsakit::optimized
