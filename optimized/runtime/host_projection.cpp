#include "runtime/host_projection.hpp"

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <string>

namespace dsakit::optimized {
namespace {

/// Of x: every product has so many rows, whatever the last ones hold, so that Eigen sums a row in
/// the same order however many there are.
constexpr std::int64_t kRowBlock = 16;
/// Of the weight: a task's share, widened to fp32 once for all rows.
constexpr std::int64_t kOutBlock = 64;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

float widened(std::uint16_t bf16) {
  return std::bit_cast<float>(std::uint32_t{bf16} << 16);
}

/// Nearest, ties to even; NaN stays NaN.
std::uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

/// Outputs [first, first + kOutBlock) of one batch, for every row.
void project_block(const ProjectionParams& p, std::int64_t b, std::int64_t first) {
  const std::int64_t outs = std::min(kOutBlock, p.out - first);
  Matrix weight = Matrix::Zero(kOutBlock, p.in);
  for (std::int64_t o = 0; o < outs; ++o)
    for (std::int64_t i = 0; i < p.in; ++i)
      weight(o, i) = widened(p.weight[b * p.weight_batch_stride +
                                      (first + o) * p.weight_out_stride + i * p.weight_in_stride]);
  Matrix x = Matrix::Zero(kRowBlock, p.in);
  Matrix y(kRowBlock, kOutBlock);
  for (std::int64_t row = 0; row < p.rows; row += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, p.rows - row);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < p.in; ++i)
        x(r, i) = widened(p.x[b * p.x_batch_stride + (row + r) * p.x_row_stride + i]);
    y.noalias() = x * weight.transpose();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t o = 0; o < outs; ++o)
        p.y[b * p.y_batch_stride + (row + r) * p.y_row_stride + first + o] = narrowed(y(r, o));
  }
}

Status at_least(const char* what, std::int64_t found, std::int64_t wanted) {
  if (found >= wanted) return {};
  return unsupported(std::string(what) + " is " + std::to_string(found) + ", want at least " +
                     std::to_string(wanted));
}

} // namespace

Status check_projection(const ProjectionParams& p) {
  DSAKIT_TRY(at_least("rows", p.rows, 0));
  DSAKIT_TRY(at_least("in", p.in, 1));
  DSAKIT_TRY(at_least("out", p.out, 1));
  DSAKIT_TRY(at_least("batch", p.batch, 1));
  DSAKIT_TRY(at_least("x_row_stride", p.x_row_stride, p.in));
  DSAKIT_TRY(at_least("y_row_stride", p.y_row_stride, p.out));
  if (p.weight_in_stride == 1) return at_least("weight_out_stride", p.weight_out_stride, p.in);
  if (p.weight_out_stride == 1) return at_least("weight_in_stride", p.weight_in_stride, p.out);
  return unsupported("weight_out_stride and weight_in_stride are " +
                     std::to_string(p.weight_out_stride) + " and " +
                     std::to_string(p.weight_in_stride) + ", want one of them to be 1");
}

Status project_on_host(const ProjectionParams& p) {
  DSAKIT_TRY(check_projection(p));
  if (p.rows == 0) return {};
  const std::int64_t blocks = (p.out + kOutBlock - 1) / kOutBlock;
  tbb::parallel_for(std::int64_t{0}, p.batch * blocks, [&](std::int64_t task) {
    project_block(p, task / blocks, task % blocks * kOutBlock);
  });
  return {};
}

} // namespace dsakit::optimized
