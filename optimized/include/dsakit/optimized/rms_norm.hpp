// rms_norm: q_norm and kv_norm, RMSNorm over rows of any width (spec 1).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// r = 1 / sqrt(mean(x^2) + eps)
/// rounding two: y = bf16(bf16(x * r) * bf16(w));  one: y = bf16(x * r * bf16(w))
struct RmsNormParams {
  const std::uint16_t* x; // [rows, width] bf16, rows 16-byte aligned: columns of a wider tensor
  const float* weight;    // [width] fp32, cast to bf16 at use; 16-byte aligned
  std::uint16_t* y;       // [rows, width] bf16, rows 16-byte aligned; may be x
  std::int64_t x_stride;  // ELEMENTS between rows of x, a multiple of 8
  std::int64_t y_stride;  // ELEMENTS between rows of y, a multiple of 8
  std::int64_t rows;
  std::int32_t width; // a multiple of 8
  float eps;
  RmsNormRounding rounding;
};

} // namespace dsakit::optimized
