#include "dsakit/reference/sparse_attention.hpp"

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "matrix.hpp"
#include "mla_record.hpp"

namespace dsakit::reference {
namespace {

constexpr std::int64_t kDim = kMlaLatent + kMlaPe; // of a query or key
/// Roundings of a score: 576 products and sums, the scale, the maximum (spec 8).
constexpr int kScoreRoundings = 578;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One value a head.
template <class Value>
using PerHead = Eigen::Array<Value, Eigen::Dynamic, 1>;

/// [heads, 576]
template <class Value>
Matrix<Value> load_queries(const SparseAttention& in, std::int64_t token) {
  Matrix<Value> queries(in.heads, kDim);
  const std::uint16_t* bits = in.mla_query + token * in.heads * kDim;
  for (std::int64_t h = 0; h < in.heads; ++h)
    for (std::int64_t d = 0; d < kDim; ++d)
      queries(h, d) = activation_to_float(in.activation_dtype, bits[h * kDim + d]);
  return queries;
}

void read_dense_row(const std::uint8_t* row, float* values) {
  for (std::int64_t d = 0; d < kDim; ++d) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row + 2 * d, sizeof bits);
    values[d] = bf16_to_float(bits);
  }
}

/// [valid slots, 576] the records in a token's slots [first, last), without the invalid ones.
template <class Value>
Matrix<Value> load_keys(const SparseAttention& in, std::int64_t token, std::int64_t first,
                        std::int64_t last) {
  std::vector<std::int64_t> valid;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t slot = in.slots[token * in.k + i];
    if (slot >= 0 && slot < in.cache.pages * in.cache.page_size) valid.push_back(slot);
  }
  Matrix<float> keys(std::ssize(valid), kDim);
  for (Eigen::Index j = 0; j < keys.rows(); ++j) {
    const std::uint8_t* record = record_of(in.cache, valid[static_cast<std::size_t>(j)]);
    if (in.mla_record == MlaRecord::bf16_576)
      read_dense_row(record, keys.row(j).data());
    else
      read_mla_record(in.mla_fp8_encoding, in.mla_scale_read, record, keys.row(j).data(),
                      in.activation_dtype);
  }
  return keys.cast<Value>();
}

Status check_cache(const SparseAttention& in) {
  return check_mla_cache(in.cache.page_size, in.cache.page_stride, in.cache.record_stride,
                         in.mla_record);
}

/// Everything about one token in double.
struct Attention {
  Matrix<double> queries;       ///< [heads, 576]
  Matrix<double> keys;          ///< [keys, 576], the first 512 dims are the values
  Matrix<double> probabilities; ///< [heads, keys]
  PerHead<double> lse;          ///< natural; -inf without a key

  auto values() const { return keys.leftCols(kMlaLatent); }
};

Attention attend(const SparseAttention& in, std::int64_t token) {
  Attention a{load_queries<double>(in, token), load_keys<double>(in, token, 0, in.k),
              Matrix<double>(in.heads, 0), PerHead<double>::Constant(in.heads, -kInfinity)};
  if (a.keys.rows() == 0) return a;
  const Matrix<double> scores = a.queries * a.keys.transpose() * in.softmax_scale;
  const PerHead<double> largest = scores.rowwise().maxCoeff(); // NaN reaches the sums
  const auto exp = [](double x) { return std::exp(x); };
  a.probabilities = (scores.colwise() - largest.matrix()).unaryExpr(exp);
  const PerHead<double> sums = a.probabilities.rowwise().sum();
  a.probabilities.array().colwise() /= sums;
  a.lse = largest + sums.log();
  return a;
}

/// What a natural logarithm is multiplied by.
double in_base(LseBase base) {
  return base == LseBase::e ? 1 : std::numbers::log2e;
}

/// max_j sum_d |q_d k_jd| of each head; 0 without a key.
PerHead<double> largest_terms(const SparseAttention& in, const Attention& a) {
  if (a.keys.rows() == 0) return PerHead<double>::Zero(in.heads);
  return (a.queries.cwiseAbs() * a.keys.cwiseAbs().transpose()).rowwise().maxCoeff();
}

/// How far apart two weighted means of a token's values can lie, with bf16 weights of relative
/// error 2^-9 and a result rounded to bf16: the values' range, and 2^-7 of the largest. [512]
Matrix<double> largest_move(const Attention& a) {
  if (a.keys.rows() == 0) return Matrix<double>::Zero(1, kMlaLatent);
  return a.values().colwise().maxCoeff() - a.values().colwise().minCoeff() +
         0x1p-7 * a.values().cwiseAbs().colwise().maxCoeff();
}

/// The online softmax of a token's heads over its keys so far, in fp32.
struct OnlineSoftmax {
  OnlineSoftmax(std::int64_t heads, ActivationDtype activation_dtype,
                const AttentionRounding& rounds)
      : dtype(activation_dtype), rounding(rounds),
        largest(PerHead<float>::Constant(heads, -std::numeric_limits<float>::infinity())),
        sum(PerHead<float>::Zero(heads)), weighted(Matrix<float>::Zero(heads, kMlaLatent)) {}

  float rounded(bool rounds, float x) const { return rounds ? round_to_activation(dtype, x) : x; }

  /// scores: [heads, keys], keys: [keys, 576]; at least one key.
  void add(const Matrix<float>& scores, const Matrix<float>& keys) {
    Matrix<float> probabilities(scores.rows(), scores.cols());
    for (Eigen::Index h = 0; h < scores.rows(); ++h) {
      float next = largest(h);
      for (float score : scores.row(h))
        if (score > next) next = score; // false for NaN, which reaches the sum below
      const float shrink = std::exp(largest(h) - next);
      largest(h) = next;
      sum(h) *= shrink;
      weighted.row(h) *= shrink;
      for (Eigen::Index j = 0; j < keys.rows(); ++j) {
        const float p = std::exp(scores(h, j) - next);
        sum(h) += rounded(rounding.summed_probability, p);
        probabilities(h, j) = rounded(rounding.probability, p);
      }
    }
    add_ordered_product(probabilities, keys.leftCols(kMlaLatent), weighted);
    if (rounding.weighted_sum)
      weighted = weighted.unaryExpr([&](float x) { return round_to_activation(dtype, x); });
  }

  ActivationDtype dtype;
  AttentionRounding rounding;
  PerHead<float> largest;
  PerHead<float> sum;     ///< of the unrounded probabilities
  Matrix<float> weighted; ///< [heads, 512] sum of bf16(p) * value
};

} // namespace

Status sparse_attention_exact(const SparseAttention& in, double* latent, double* lse) {
  DSAKIT_TRY(check_cache(in));
  tbb::parallel_for(std::int64_t{0}, in.tokens, [&](std::int64_t token) {
    const Attention a = attend(in, token);
    const Matrix<double> out = a.probabilities * a.values();
    const PerHead<double> logs = a.lse * in_base(in.lse_base);
    std::copy_n(out.data(), out.size(), latent + token * out.size());
    std::copy_n(logs.data(), in.heads, lse + token * in.heads);
  });
  return {};
}

Status sparse_attention(const SparseAttention& in, std::uint16_t* latent, float* lse,
                        const AttentionRounding& rounding) {
  constexpr std::int64_t kBlock = 16; // slots of a step of the online softmax (spec 5.2)
  DSAKIT_TRY(check_cache(in));
  const auto scale = static_cast<float>(in.softmax_scale);
  const auto base = static_cast<float>(in_base(in.lse_base));
  tbb::parallel_for(std::int64_t{0}, in.tokens, [&](std::int64_t token) {
    const Matrix<float> queries = load_queries<float>(in, token);
    OnlineSoftmax state(in.heads, in.activation_dtype, rounding);
    for (std::int64_t first = 0; first < in.k; first += kBlock) {
      const Matrix<float> keys = load_keys<float>(in, token, first, std::min(first + kBlock, in.k));
      if (keys.rows() == 0) continue;
      Matrix<float> scores = ordered_product(queries, keys.transpose()) * scale;
      if (rounding.score)
        scores = scores.unaryExpr([&](float x) { return state.rounded(true, x); }).eval();
      state.add(scores, keys);
    }
    std::uint16_t* out = latent + token * in.heads * kMlaLatent;
    for (std::int64_t h = 0; h < in.heads; ++h) {
      for (float weighted : state.weighted.row(h))
        *out++ = state.sum(h) == 0
                     ? 0
                     : float_to_activation(in.activation_dtype, weighted / state.sum(h));
      lse[token * in.heads + h] = (state.largest(h) + std::log(state.sum(h))) * base;
    }
  });
  return {};
}

Status sparse_attention_bound(const SparseAttention& in, double* latent, double* lse) {
  DSAKIT_TRY(check_cache(in));
  tbb::parallel_for(std::int64_t{0}, in.tokens, [&](std::int64_t token) {
    const Attention a = attend(in, token);
    const PerHead<double> score_error =
        largest_terms(in, a) * (kScoreRoundings * 0x1p-24 * std::fabs(in.softmax_scale));
    const Matrix<double> out = a.probabilities * a.values();
    const Matrix<double> terms = a.probabilities * a.values().cwiseAbs();
    const double smallest = in.activation_dtype == ActivationDtype::bf16 ? 0x1p-124 : 0x1p-24;
    const Matrix<double> underflow =
        smallest * (1 + a.values().cwiseAbs().array()).colwise().sum().matrix();
    const Matrix<double> most = largest_move(a);
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const std::int64_t at = token * in.heads + h;
      const double spread = std::expm1(2 * score_error(h));
      for (std::int64_t d = 0; d < kMlaLatent; ++d)
        latent[at * kMlaLatent + d] = 0x1p-8 * (std::fabs(out(h, d)) + terms(h, d)) +
                                      std::fmin(spread * terms(h, d), most(d)) + underflow(d);
      const double base = in_base(in.lse_base);
      lse[at] = a.keys.rows() > 0 ? score_error(h) * base + 4 * ulp_of(a.lse(h) * base, 23) : 0;
    }
  });
  return {};
}

Status sparse_attention_exact_bound(const SparseAttention& in, double* latent, double* lse) {
  DSAKIT_TRY(check_cache(in));
  tbb::parallel_for(std::int64_t{0}, in.tokens, [&](std::int64_t token) {
    const Attention a = attend(in, token);
    const PerHead<double> noise =
        0x1p-52 * (kScoreRoundings * std::fabs(in.softmax_scale) * largest_terms(in, a) +
                   static_cast<double>(in.k + 8));
    const Matrix<double> out = a.probabilities * a.values();
    const Matrix<double> terms = a.probabilities * a.values().cwiseAbs();
    const Matrix<double> most = largest_move(a);
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const std::int64_t at = token * in.heads + h;
      for (std::int64_t d = 0; d < kMlaLatent; ++d) {
        const double wander = std::fmin(std::expm1(2 * noise(h)) * terms(h, d), most(d));
        const double value = std::fabs(out(h, d)) + wander; // may reach the next binade
        latent[at * kMlaLatent + d] =
            (ulp_of(in.activation_dtype, value) + ulp_of(value, 23)) / 2 + wander;
      }
      const double log = std::fabs(a.lse(h) * in_base(in.lse_base));
      const double wander = noise(h) * in_base(in.lse_base) + 0x1p-50 * log;
      lse[at] = a.keys.rows() > 0 ? ulp_of(log + wander, 23) / 2 + wander : 0;
    }
  });
  return {};
}

} // namespace dsakit::reference
