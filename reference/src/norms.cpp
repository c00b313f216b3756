#include "dsakit/reference/norms.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {
namespace {

Status check(const Norm& norm) {
  if (norm.width < 1)
    return bad_input("width of the norm: found " + std::to_string(norm.width) +
                     ", want at least 1");
  if (norm.kind == IndexKNorm::layernorm && !norm.bias)
    return bad_input("layernorm: found no bias, want " + std::to_string(norm.width) + " elements");
  return {};
}

bool rounds_twice(const Norm& norm) {
  return norm.kind == IndexKNorm::rmsnorm && norm.rounding == RmsNormRounding::two;
}

/// A row of x and the parameters, widened; weight and bias rounded to the activation dtype first.
template <class Value>
struct NormRow {
  std::vector<Value> x;
  std::vector<Value> weight;
  std::vector<Value> bias; ///< empty for rmsnorm
  Value mean;              ///< 0 for rmsnorm
  Value r;                 ///< (mean((x - mean)^2) + eps)^-0.5
};

/// Sums of neighbours, then of neighbouring sums, and so on: about as GPUs reduce a row, and closer
/// to the exact sum than a running one.
template <class Value>
Value sum_by_halves(std::span<const Value> x) {
  if (x.size() == 1) return x[0];
  const std::size_t half = std::bit_ceil(x.size()) / 2;
  return sum_by_halves(x.first(half)) + sum_by_halves(x.subspan(half));
}

template <class Value>
Value mean_of(const std::vector<Value>& x) {
  return sum_by_halves(std::span(x)) / static_cast<Value>(x.size());
}

template <class Value>
NormRow<Value> load_row(const Norm& norm, const std::uint16_t* x) {
  NormRow<Value> row{};
  for (std::int64_t i = 0; i < norm.width; ++i) {
    row.x.push_back(activation_to_float(norm.dtype, x[i]));
    row.weight.push_back(round_to_activation(norm.dtype, norm.weight[i]));
    if (norm.kind == IndexKNorm::layernorm)
      row.bias.push_back(round_to_activation(norm.dtype, norm.bias[i]));
  }
  if (norm.kind == IndexKNorm::layernorm) row.mean = mean_of(row.x);
  std::vector<Value> squares;
  for (Value value : row.x)
    squares.push_back((value - row.mean) * (value - row.mean));
  row.r = 1 / std::sqrt(mean_of(squares) + static_cast<Value>(norm.eps));
  return row;
}

} // namespace

Status apply_norm(const Norm& norm, const std::uint16_t* x, std::int64_t rows, std::uint16_t* y) {
  DSAKIT_TRY(check(norm));
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t r) {
    const auto row = load_row<float>(norm, x + r * norm.width);
    std::uint16_t* out = y + r * norm.width;
    for (std::size_t i = 0; i < row.x.size(); ++i) {
      float value = (row.x[i] - row.mean) * row.r;
      if (rounds_twice(norm)) value = round_to_activation(norm.dtype, value);
      // The recorded layernorm fuses its multiply-add: where n * w and b cancel, that shows.
      // Without a bias, adding 0 would lose the sign of -0.
      value =
          row.bias.empty() ? value * row.weight[i] : std::fma(value, row.weight[i], row.bias[i]);
      *out++ = float_to_activation(norm.dtype, value);
    }
  });
  return {};
}

Status apply_norm_exact(const Norm& norm, const std::uint16_t* x, std::int64_t rows, double* y,
                        double* bound) {
  DSAKIT_TRY(check(norm));
  const double ulps = rounds_twice(norm) ? 1.5 : 0.5;
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t r) {
    const auto row = load_row<double>(norm, x + r * norm.width);
    double largest = 0;
    for (double value : row.x)
      largest = std::max(largest, std::fabs(value));
    for (std::size_t i = 0; i < row.x.size(); ++i) {
      const double scaled = (row.x[i] - row.mean) * row.r * row.weight[i];
      const double bias = row.bias.empty() ? 0 : row.bias[i];
      const double terms =
          largest * row.r * std::fabs(row.weight[i]) + std::fabs(scaled) + std::fabs(bias);
      const std::int64_t at = r * norm.width + static_cast<std::int64_t>(i);
      y[at] = scaled + bias;
      bound[at] = ulps * ulp_of(norm.dtype, y[at]) + 0x1p-22 * terms;
    }
  });
  return {};
}

Status index_key_norm(const Norm& norm, const std::uint16_t* index_k_raw, std::int64_t rows,
                      std::uint16_t* index_k) {
  if (norm.width != kIndexHeadDim)
    return bad_input("width of index_key_norm: found " + std::to_string(norm.width) + ", want " +
                     std::to_string(kIndexHeadDim));
  return apply_norm(norm, index_k_raw, rows, index_k);
}

} // namespace dsakit::reference
