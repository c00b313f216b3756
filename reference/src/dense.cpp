#include "dsakit/reference/dense.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "activation.hpp"
#include "weight.hpp"

namespace dsakit::reference {
namespace {

/// Outputs of a task. Fixed, as kRowBlock: Eigen orders a sum by the extents of the product and by
/// the element's place in it.
constexpr std::int64_t kOutputBlock = 128;
/// Rows of x multiplied at a time, padded with zeros. A multiple of the 4 columns that Eigen's
/// kernel takes at once, so that all of them are summed alike.
constexpr std::int64_t kRowBlock = 16;

/// A row of x is a column.
template <class Value>
using Columns = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic>;

double gamma(std::int64_t n) {
  const double error = static_cast<double>(n) * 0x1p-24;
  return error / (1 - error);
}

/// store(row, w * x[row]) for each row; load(row, column) fills a row of x.
template <class Value, class Load, class Store>
void multiply(const Matrix<Value>& w, std::int64_t rows, const Load& load, const Store& store) {
  Columns<Value> x(w.cols(), kRowBlock);
  Columns<Value> y(w.rows(), kRowBlock);
  for (std::int64_t first = 0; first < rows; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, rows - first);
    x.setZero();
    for (std::int64_t r = 0; r < count; ++r)
      load(first + r, x.col(r));
    y.noalias() = w * x;
    for (std::int64_t r = 0; r < count; ++r)
      store(first + r, y.col(r));
  }
}

/// Rows of bits, `stride` elements apart.
struct Bits {
  const std::uint16_t* data;
  std::int64_t stride;
  ActivationDtype dtype;

  template <class Column>
  void load(std::int64_t row, Column column) const {
    for (Eigen::Index i = 0; i < column.size(); ++i)
      column(i) = activation_to_float(dtype, data[row * stride + i]);
  }
};

/// Rows of results, `stride` elements apart.
template <class Element>
struct Rows {
  Element* data;
  std::int64_t stride;
};

void simulate(const Matrix<float>& w, const Bits& x, std::int64_t rows, Rows<std::uint16_t> y) {
  multiply(
      w, rows, [&](std::int64_t row, auto column) { x.load(row, column); },
      [&](std::int64_t row, const auto& column) {
        for (Eigen::Index o = 0; o < column.size(); ++o)
          y.data[row * y.stride + o] = float_to_activation(x.dtype, column(o));
      });
}

void compute(const Matrix<double>& w, const Bits& x, std::int64_t rows, Rows<double> y,
             Rows<double> bound) {
  multiply(
      w, rows, [&](std::int64_t row, auto column) { x.load(row, column); },
      [&](std::int64_t row, const auto& column) {
        std::copy(column.begin(), column.end(), y.data + row * y.stride);
      });
  const std::int64_t roundings = w.cols() + 2;
  const Matrix<double> magnitudes = w.cwiseAbs();
  multiply(
      magnitudes, rows,
      [&](std::int64_t row, auto column) {
        x.load(row, column);
        column = column.cwiseAbs().eval();
      },
      [&](std::int64_t row, const auto& terms) {
        for (Eigen::Index o = 0; o < terms.size(); ++o) {
          const double sum =
              gamma(roundings) * terms(o) + static_cast<double>(roundings) * 0x1p-126;
          // The sum that is rounded may lie in the next binade.
          const double value = std::fabs(y.data[row * y.stride + o]) + sum;
          bound.data[row * bound.stride + o] = sum + ulp_of(x.dtype, value) / 2;
        }
      });
}

void propagate(const Matrix<double>& w, Rows<const double> dx, std::int64_t rows, Rows<double> dy) {
  const Matrix<double> magnitudes = w.cwiseAbs();
  multiply(
      magnitudes, rows,
      [&](std::int64_t row, auto column) {
        std::copy_n(dx.data + row * dx.stride, column.size(), column.begin());
      },
      [&](std::int64_t row, const auto& column) {
        std::copy(column.begin(), column.end(), dy.data + row * dy.stride);
      });
}

/// body(first output, rows [first, first + count) of W), in parallel.
template <class Value, class Body>
void for_each_output_block(const Weight& weight, const Body& body) {
  const std::int64_t blocks = (weight.outputs + kOutputBlock - 1) / kOutputBlock;
  tbb::parallel_for(std::int64_t{0}, blocks, [&](std::int64_t block) {
    const std::int64_t first = block * kOutputBlock;
    body(first, dequantise<Value>(weight, first, std::min(kOutputBlock, weight.outputs - first)));
  });
}

Status check(const Absorption& in) {
  DSAKIT_TRY(check_weight(in.kv_b));
  const std::int64_t outputs = in.heads * (in.dims.nope + in.dims.value);
  if (in.kv_b.outputs != outputs || in.kv_b.inputs != in.dims.latent)
    return bad_input("kv_b_proj: found [" + std::to_string(in.kv_b.outputs) + ", " +
                     std::to_string(in.kv_b.inputs) + "], want [" + std::to_string(outputs) + ", " +
                     std::to_string(in.dims.latent) + "]");
  return {};
}

/// body(head, W) in parallel: W [latent, nope] for absorb_q, [value, latent] for absorb_v.
template <class Value, class Body>
void for_each_uk(const Absorption& in, const Body& body) {
  tbb::parallel_for(std::int64_t{0}, in.heads, [&](std::int64_t head) {
    const std::int64_t first = head * (in.dims.nope + in.dims.value);
    const Matrix<Value> uk = dequantise<Value>(in.kv_b, first, in.dims.nope).transpose();
    body(head, uk);
  });
}

template <class Value, class Body>
void for_each_uv(const Absorption& in, const Body& body) {
  tbb::parallel_for(std::int64_t{0}, in.heads, [&](std::int64_t head) {
    const std::int64_t first = head * (in.dims.nope + in.dims.value) + in.dims.nope;
    body(head, dequantise<Value>(in.kv_b, first, in.dims.value));
  });
}

/// store(element of q, element of the query) for the pe elements of all heads.
template <class Store>
void for_each_pe(const Absorption& in, const Store& store) {
  const HeadDims& d = in.dims;
  for (std::int64_t row = 0; row < in.tokens * in.heads; ++row)
    for (std::int64_t i = 0; i < d.pe; ++i)
      store(row * (d.nope + d.pe) + d.nope + i, row * (d.latent + d.pe) + d.latent + i);
}

} // namespace

Status project(const Projection& in, std::uint16_t* y) {
  DSAKIT_TRY(check_weight(in.weight));
  const Bits x{in.x, in.weight.inputs, in.dtype};
  for_each_output_block<float>(in.weight, [&](std::int64_t first, const Matrix<float>& w) {
    simulate(w, x, in.rows, {y + first, in.weight.outputs});
  });
  return {};
}

Status project_exact(const Projection& in, double* y, double* bound) {
  DSAKIT_TRY(check_weight(in.weight));
  const Bits x{in.x, in.weight.inputs, in.dtype};
  for_each_output_block<double>(in.weight, [&](std::int64_t first, const Matrix<double>& w) {
    compute(w, x, in.rows, {y + first, in.weight.outputs}, {bound + first, in.weight.outputs});
  });
  return {};
}

Status project_difference(const Weight& weight, const double* dx, std::int64_t rows, double* dy) {
  DSAKIT_TRY(check_weight(weight));
  for_each_output_block<double>(weight, [&](std::int64_t first, const Matrix<double>& w) {
    propagate(w, {dx, weight.inputs}, rows, {dy + first, weight.outputs});
  });
  return {};
}

Status absorb_q(const Absorption& in, std::uint16_t* mla_query) {
  DSAKIT_TRY(check(in));
  const std::int64_t q_dim = in.dims.nope + in.dims.pe, dim = in.dims.latent + in.dims.pe;
  for_each_uk<float>(in, [&](std::int64_t head, const Matrix<float>& uk) {
    simulate(uk, {in.x + head * q_dim, in.heads * q_dim, in.dtype}, in.tokens,
             {mla_query + head * dim, in.heads * dim});
  });
  for_each_pe(in, [&](std::int64_t from, std::int64_t to) { mla_query[to] = in.x[from]; });
  return {};
}

Status absorb_q_exact(const Absorption& in, double* mla_query, double* bound) {
  DSAKIT_TRY(check(in));
  const std::int64_t q_dim = in.dims.nope + in.dims.pe, dim = in.dims.latent + in.dims.pe;
  for_each_uk<double>(in, [&](std::int64_t head, const Matrix<double>& uk) {
    compute(uk, {in.x + head * q_dim, in.heads * q_dim, in.dtype}, in.tokens,
            {mla_query + head * dim, in.heads * dim}, {bound + head * dim, in.heads * dim});
  });
  for_each_pe(in, [&](std::int64_t from, std::int64_t to) {
    mla_query[to] = activation_to_float(in.dtype, in.x[from]);
    bound[to] = 0;
  });
  return {};
}

Status absorb_q_difference(const Absorption& in, const double* dq, double* d_query) {
  DSAKIT_TRY(check(in));
  const std::int64_t q_dim = in.dims.nope + in.dims.pe, dim = in.dims.latent + in.dims.pe;
  for_each_uk<double>(in, [&](std::int64_t head, const Matrix<double>& uk) {
    propagate(uk, {dq + head * q_dim, in.heads * q_dim}, in.tokens,
              {d_query + head * dim, in.heads * dim});
  });
  for_each_pe(in, [&](std::int64_t from, std::int64_t to) { d_query[to] = dq[from]; });
  return {};
}

Status absorb_v(const Absorption& in, std::uint16_t* attn_value) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<float>(in, [&](std::int64_t head, const Matrix<float>& uv) {
    simulate(uv, {in.x + head * latent, in.heads * latent, in.dtype}, in.tokens,
             {attn_value + head * value, in.heads * value});
  });
  return {};
}

Status absorb_v_exact(const Absorption& in, double* attn_value, double* bound) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<double>(in, [&](std::int64_t head, const Matrix<double>& uv) {
    compute(uv, {in.x + head * latent, in.heads * latent, in.dtype}, in.tokens,
            {attn_value + head * value, in.heads * value},
            {bound + head * value, in.heads * value});
  });
  return {};
}

Status absorb_v_difference(const Absorption& in, const double* d_latent, double* d_value) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<double>(in, [&](std::int64_t head, const Matrix<double>& uv) {
    propagate(uv, {d_latent + head * latent, in.heads * latent}, in.tokens,
              {d_value + head * value, in.heads * value});
  });
  return {};
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

double softmax_scale(std::int64_t head_dim, double mscale) {
  return std::pow(static_cast<double>(head_dim), -0.5) * (mscale * mscale);
}

void take_columns(const std::uint16_t* x, std::int64_t rows, std::int64_t columns,
                  std::int64_t first, std::int64_t width, std::uint16_t* y) {
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(x + row * columns + first, width, y + row * width);
}

} // namespace dsakit::reference
