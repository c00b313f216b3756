// index_logits_prefill: FP8 or MXFP4 indexer scores of gathered keys, a causal window a row (spec
// 2.7, 2.8, 3.3).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// logits[r, c] = (sum_h max(sum_d q[r,h,d] * k[n,d], 0) * w[r,h]) * k_scale[n]  for n in [ks[r],
/// ke[r]) with c = n - column_origin[r]. Nothing else is written. ks is clamped to 0, ke to keys.
struct IndexLogitsPrefillParams {
  const std::uint8_t* q;             // [rows, heads, 128] e4m3, 16-byte aligned
  const std::uint8_t* k_fp8;         // [keys, 128] e4m3, 16-byte aligned
  const float* k_scale;              // [keys]
  const float* weights;              // [rows, heads]
  const std::int32_t* ks;            // [rows] first key of the row's window
  const std::int32_t* ke;            // [rows] one past the last
  const std::int32_t* column_origin; // [rows] key of column 0, or nullptr: 0 (columns are keys)
  float* logits;                     // [rows, columns]
  std::int64_t q_stride;             // BYTES between rows of q, a multiple of 16
  std::int64_t weights_stride;       // ELEMENTS between rows of weights
  std::int64_t logits_stride;        // ELEMENTS between rows of logits
  std::int64_t rows;
  std::int32_t heads; // 1 to 64
  std::int32_t keys;
  std::int32_t columns; // keys whose column falls outside are not written
  Fp8Encoding encoding; // of q and of k_fp8
};

/// logits[r, c] = (sum_h max(dot[h], 0) * w[r,h]) * weight_scale, windows and columns as above;
/// dot[h] = sum_g 2^(eq[r,h,g] - 127) * 2^(ek[n,g] - 127) * (the sum of group g's 32 products). A
/// scale byte 0xFF is NaN.
struct IndexLogitsPrefillMxfp4Params {
  const std::uint8_t* q_packed;      // [rows, heads, 64] e2m1, 16-byte aligned
  const std::uint8_t* q_scale;       // [rows, heads, 4] e8m0
  const std::uint8_t* k_packed;      // [keys, 64] e2m1, 16-byte aligned
  const std::uint8_t* k_scale;       // [keys, 4] e8m0
  const std::uint16_t* weights;      // [rows, heads] bf16, as projected
  const std::int32_t* ks;            // [rows] first key of the row's window
  const std::int32_t* ke;            // [rows] one past the last
  const std::int32_t* column_origin; // [rows] key of column 0, or nullptr: 0 (columns are keys)
  float* logits;                     // [rows, columns]
  std::int64_t q_stride;             // BYTES between rows of q_packed, a multiple of 16
  std::int64_t q_scale_stride;       // BYTES between rows of q_scale
  std::int64_t weights_stride;       // ELEMENTS between rows of weights
  std::int64_t logits_stride;        // ELEMENTS between rows of logits
  std::int64_t rows;
  std::int32_t heads; // 1 to 64
  std::int32_t keys;
  std::int32_t columns; // keys whose column falls outside are not written
  float weight_scale;   // fl32(heads^-0.5 * 128^-0.5)
};

} // namespace dsakit::optimized
