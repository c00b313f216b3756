// LayerNorm and RMSNorm of bf16 rows (spec 1).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::reference {

/// Parameters of one norm over rows of `width`. weight and bias: [width] fp32, cast to the
/// activation dtype at use; bias nullptr for rmsnorm.
struct Norm {
  IndexKNorm kind;
  RmsNormRounding rounding; ///< of rmsnorm
  ActivationDtype dtype;
  float eps;
  const float* weight;
  const float* bias;
  std::int64_t width;
};

/// layernorm: y = (x - mean) r w + b, mean and the biased variance over a row
/// rmsnorm:   y = x r w
/// r = (mean((x - mean)^2) + eps)^-0.5, without the mean for rmsnorm.
/// Tier simulated: fp32, sums by halves, the last multiply-add of layernorm fused; one rounding to
/// the activation dtype, for rmsnorm rounding two another one of x r. bad_input: no bias for
/// layernorm, a width below 1.
/// x, y: [rows, width] bits.
Status apply_norm(const Norm& norm, const std::uint16_t* x, std::int64_t rows, std::uint16_t* y);

/// Tier exact: double, with the cast weights; y: [rows, width]. bound: the largest right
/// |bf16 - exact| (spec 8, "Norms"): half a bf16 ulp of the result, plus
/// 2^-22 * (max|x| r |w| + |n w| + |b|); rmsnorm rounding two: one ulp more.
Status apply_norm_exact(const Norm& norm, const std::uint16_t* x, std::int64_t rows, double* y,
                        double* bound);

/// index_key_norm: apply_norm over rows of 128; another width is bad_input.
Status index_key_norm(const Norm& norm, const std::uint16_t* index_k_raw, std::int64_t rows,
                      std::uint16_t* index_k);

} // namespace dsakit::reference
