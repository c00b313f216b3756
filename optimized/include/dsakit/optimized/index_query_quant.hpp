// index_query_quant: indexer queries to e4m3, and their scales into the head weights in the same
// launch (spec 2.2, 2.3).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// s = 2^ceil(log2(max(floor, max_d |q_d|) / qmax));  code_d = e4m3(clamp(q_d / s, -qmax, qmax))
/// folded[t,h] = (bf16(w[t,h] * head_scale) * s[t,h]) * softmax_scale, each product rounded to
/// fp32; weight_fold fp32 leaves the bf16 rounding out.
struct IndexQueryQuantParams {
  const std::uint16_t* index_q; // [tokens, heads, 128] bf16, rows 16-byte aligned
  const std::uint16_t* weights; // [tokens, heads] bf16, or nullptr: nothing is folded
  std::uint8_t* q_fp8;          // [tokens, heads, 128], 16-byte aligned
  float* q_scale;               // [tokens, heads]
  float* folded;                // [tokens, heads], or nullptr with weights
  std::int64_t index_q_stride;  // ELEMENTS between tokens of index_q, a multiple of 8
  std::int64_t weights_stride;  // ELEMENTS between tokens of weights
  std::int64_t tokens;
  std::int32_t heads;
  float amax_floor;    // 1e-10 in vLLM
  float qmax;          // 448 | 240 | 224
  float head_scale;    // heads^-0.5
  float softmax_scale; // 128^-0.5
  Fp8Encoding encoding;
  WeightFold weight_fold;
};

} // namespace dsakit::optimized
