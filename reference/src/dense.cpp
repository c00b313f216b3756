#include "dsakit/reference/dense.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "activation.hpp"
#include "weight.hpp"

namespace dsakit::reference {
namespace {

/// Outputs and rows of a product, the last rows filled with zeros. Fixed: Eigen orders a sum by the
/// extents of the product and by the element's place in it. Eigen packs a weight anew for every
/// block of rows, so narrow blocks are slow.
constexpr std::int64_t kOutputBlock = 128;
constexpr std::int64_t kRowBlock = 64;
/// Rows of a projection that are widened at a time: bounds the memory of a long prefill.
constexpr std::int64_t kRowChunk = 8 * kRowBlock;

double gamma(std::int64_t n) {
  const double error = static_cast<double>(n) * 0x1p-24;
  return error / (1 - error);
}

/// `stride` elements apart.
template <class Element>
struct Rows {
  Element* data;
  std::int64_t stride;
};

/// Rows of x.
template <class Value>
struct Activations {
  /// A row of x is a column; whole blocks of them.
  using Columns = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic>;

  Activations(std::int64_t inputs, std::int64_t count)
      : rows(count),
        columns(Columns::Zero(inputs, (count + kRowBlock - 1) / kRowBlock * kRowBlock)) {}

  Activations magnitudes() const {
    Activations x = *this;
    x.columns = x.columns.cwiseAbs();
    return x;
  }

  std::int64_t rows;
  Columns columns;
};

template <class Value>
Activations<Value> widen(ActivationDtype dtype, Rows<const std::uint16_t> x, std::int64_t inputs,
                         std::int64_t rows) {
  Activations<Value> values(inputs, rows);
  std::vector<float> row(static_cast<std::size_t>(inputs));
  for (std::int64_t r = 0; r < rows; ++r) {
    load_activations(dtype, x.data + r * x.stride, row);
    std::copy(row.begin(), row.end(), values.columns.col(r).begin());
  }
  return values;
}

Activations<double> copy(Rows<const double> x, std::int64_t inputs, std::int64_t rows) {
  Activations<double> values(inputs, rows);
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(x.data + r * x.stride, inputs, values.columns.col(r).begin());
  return values;
}

/// store(row, w * x[row]) for each row.
template <class Value, class Store>
void multiply(const Matrix<Value>& w, const Activations<Value>& x, const Store& store) {
  typename Activations<Value>::Columns y(w.rows(), kRowBlock);
  for (std::int64_t first = 0; first < x.rows; first += kRowBlock) {
    y.noalias() = w * x.columns.middleCols(first, kRowBlock);
    for (std::int64_t r = 0; r < std::min(kRowBlock, x.rows - first); ++r)
      store(first + r, y.col(r));
  }
}

void simulate(const Matrix<float>& w, const Activations<float>& x, ActivationDtype dtype,
              Rows<std::uint16_t> y) {
  multiply(w, x, [&](std::int64_t row, const auto& column) {
    for (Eigen::Index o = 0; o < column.size(); ++o)
      y.data[row * y.stride + o] = float_to_activation(dtype, column(o));
  });
}

void propagate(Matrix<double> w, const Activations<double>& dx, Rows<double> dy) {
  w = w.cwiseAbs();
  multiply(w, dx, [&](std::int64_t row, const auto& column) {
    std::copy(column.begin(), column.end(), dy.data + row * dy.stride);
  });
}

/// magnitudes: |x|
void compute(Matrix<double> w, const Activations<double>& x, const Activations<double>& magnitudes,
             ActivationDtype dtype, Rows<double> y, Rows<double> bound) {
  const Eigen::Index outputs = w.rows();
  const std::int64_t roundings = w.cols() + 2;
  multiply(w, x, [&](std::int64_t row, const auto& column) {
    std::copy(column.begin(), column.end(), y.data + row * y.stride);
  });
  propagate(std::move(w), magnitudes, bound); // the sum of absolute terms
  for (std::int64_t row = 0; row < x.rows; ++row)
    for (Eigen::Index o = 0; o < outputs; ++o) {
      double& limit = bound.data[row * bound.stride + o];
      const double sum = gamma(roundings) * limit + static_cast<double>(roundings) * 0x1p-126;
      // The sum that is rounded may lie in the next binade.
      const double value = std::fabs(y.data[row * y.stride + o]) + sum;
      limit = sum + ulp_of(dtype, value) / 2;
    }
}

/// body(first row, rows) for each chunk of a projection.
template <class Body>
void for_each_row_chunk(std::int64_t rows, const Body& body) {
  for (std::int64_t first = 0; first < rows; first += kRowChunk)
    body(first, std::min(kRowChunk, rows - first));
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

/// The first `inputs` of a head's `width` elements of x.
template <class Value>
Activations<Value> head_of(const Absorption& in, std::int64_t head, std::int64_t width,
                           std::int64_t inputs) {
  return widen<Value>(in.dtype, {in.x + head * width, in.heads * width}, inputs, in.tokens);
}

/// body(head, W) in parallel: W [latent, nope] for absorb_q, [value, latent] for absorb_v.
template <class Value, class Body>
void for_each_uk(const Absorption& in, const Body& body) {
  tbb::parallel_for(std::int64_t{0}, in.heads, [&](std::int64_t head) {
    const std::int64_t first = head * (in.dims.nope + in.dims.value);
    body(head, Matrix<Value>(dequantise<Value>(in.kv_b, first, in.dims.nope).transpose()));
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
  const std::int64_t inputs = in.weight.inputs, outputs = in.weight.outputs;
  for_each_row_chunk(in.rows, [&](std::int64_t row, std::int64_t rows) {
    const auto x = widen<float>(in.dtype, {in.x + row * inputs, inputs}, inputs, rows);
    for_each_output_block<float>(in.weight, [&](std::int64_t first, const Matrix<float>& w) {
      simulate(w, x, in.dtype, {y + row * outputs + first, outputs});
    });
  });
  return {};
}

Status project_exact(const Projection& in, double* y, double* bound) {
  DSAKIT_TRY(check_weight(in.weight));
  const std::int64_t inputs = in.weight.inputs, outputs = in.weight.outputs;
  for_each_row_chunk(in.rows, [&](std::int64_t row, std::int64_t rows) {
    const auto x = widen<double>(in.dtype, {in.x + row * inputs, inputs}, inputs, rows);
    const auto magnitudes = x.magnitudes();
    for_each_output_block<double>(in.weight, [&](std::int64_t first, Matrix<double> w) {
      const std::int64_t at = row * outputs + first;
      compute(std::move(w), x, magnitudes, in.dtype, {y + at, outputs}, {bound + at, outputs});
    });
  });
  return {};
}

Status project_difference(const Weight& weight, const double* dx, std::int64_t rows, double* dy) {
  DSAKIT_TRY(check_weight(weight));
  const std::int64_t inputs = weight.inputs, outputs = weight.outputs;
  for_each_row_chunk(rows, [&](std::int64_t row, std::int64_t count) {
    const auto x = copy({dx + row * inputs, inputs}, inputs, count);
    for_each_output_block<double>(weight, [&](std::int64_t first, Matrix<double> w) {
      propagate(std::move(w), x, {dy + row * outputs + first, outputs});
    });
  });
  return {};
}

Status absorb_q(const Absorption& in, std::uint16_t* mla_query) {
  DSAKIT_TRY(check(in));
  const std::int64_t q_dim = in.dims.nope + in.dims.pe, dim = in.dims.latent + in.dims.pe;
  for_each_uk<float>(in, [&](std::int64_t head, const Matrix<float>& uk) {
    simulate(uk, head_of<float>(in, head, q_dim, in.dims.nope), in.dtype,
             {mla_query + head * dim, in.heads * dim});
  });
  for_each_pe(in, [&](std::int64_t from, std::int64_t to) { mla_query[to] = in.x[from]; });
  return {};
}

Status absorb_q_exact(const Absorption& in, double* mla_query, double* bound) {
  DSAKIT_TRY(check(in));
  const std::int64_t q_dim = in.dims.nope + in.dims.pe, dim = in.dims.latent + in.dims.pe;
  for_each_uk<double>(in, [&](std::int64_t head, Matrix<double> uk) {
    const auto q = head_of<double>(in, head, q_dim, in.dims.nope);
    compute(std::move(uk), q, q.magnitudes(), in.dtype, {mla_query + head * dim, in.heads * dim},
            {bound + head * dim, in.heads * dim});
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
  for_each_uk<double>(in, [&](std::int64_t head, Matrix<double> uk) {
    const auto x = copy({dq + head * q_dim, in.heads * q_dim}, in.dims.nope, in.tokens);
    propagate(std::move(uk), x, {d_query + head * dim, in.heads * dim});
  });
  for_each_pe(in, [&](std::int64_t from, std::int64_t to) { d_query[to] = dq[from]; });
  return {};
}

Status absorb_v(const Absorption& in, std::uint16_t* attn_value) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<float>(in, [&](std::int64_t head, const Matrix<float>& uv) {
    simulate(uv, head_of<float>(in, head, latent, latent), in.dtype,
             {attn_value + head * value, in.heads * value});
  });
  return {};
}

Status absorb_v_exact(const Absorption& in, double* attn_value, double* bound) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<double>(in, [&](std::int64_t head, Matrix<double> uv) {
    const auto x = head_of<double>(in, head, latent, latent);
    compute(std::move(uv), x, x.magnitudes(), in.dtype,
            {attn_value + head * value, in.heads * value},
            {bound + head * value, in.heads * value});
  });
  return {};
}

Status absorb_v_difference(const Absorption& in, const double* d_latent, double* d_value) {
  DSAKIT_TRY(check(in));
  const std::int64_t latent = in.dims.latent, value = in.dims.value;
  for_each_uv<double>(in, [&](std::int64_t head, Matrix<double> uv) {
    const auto x = copy({d_latent + head * latent, in.heads * latent}, latent, in.tokens);
    propagate(std::move(uv), x, {d_value + head * value, in.heads * value});
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
