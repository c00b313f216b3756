// index_query_quant: indexer queries to e4m3, and their scales into the head weights in the same
// launch (spec 2.2, 2.3); or to MXFP4 (spec 3.1).
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

/// For each group of 32 elements: e = ceil(log2(max(amax, 6 * 2^-126) / 6)), code_d = e2m1(q_d *
/// 2^-e), ties to even, saturating; the scale byte is e + 127. NaN takes no part in amax and
/// becomes code 0; an infinity saturates at the largest finite exponent.
struct IndexQueryQuantMxfp4Params {
  const std::uint16_t* index_q; // [tokens, heads, 128] bf16, rows 16-byte aligned
  std::uint8_t* q_packed;       // [tokens, heads, 64], even elements in low nibbles, 4-byte aligned
  std::uint8_t* q_scale;        // [tokens, heads, 4] e8m0
  std::int64_t index_q_stride;  // ELEMENTS between tokens of index_q, a multiple of 8
  std::int64_t tokens;
  std::int32_t heads;
  bool hadamard; // rotate each row first: fp32 butterflies of elements 1, 2, ..., 64 apart, (a, b)
                 // -> (a + b, a - b), then times fl32(128^-0.5)
};

} // namespace dsakit::optimized
