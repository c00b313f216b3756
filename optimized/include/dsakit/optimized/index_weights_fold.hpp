// index_weights_fold: the scales of quantised indexer queries into the head weights (spec 2.3).
// index_query_quant does the same in its own launch.
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// folded[t,h] = (bf16(w[t,h] * head_scale) * s[t,h]) * softmax_scale, each product rounded to
/// fp32; weight_fold fp32 leaves the bf16 rounding out.
struct IndexWeightsFoldParams {
  const std::uint16_t* weights; // [tokens, heads] bf16
  const float* q_scale;         // [tokens, heads]
  float* folded;                // [tokens, heads]
  std::int64_t weights_stride;  // ELEMENTS between tokens of weights
  std::int64_t tokens;
  std::int32_t heads;
  float head_scale;    // heads^-0.5
  float softmax_scale; // 128^-0.5
  WeightFold weight_fold;
};

} // namespace dsakit::optimized
