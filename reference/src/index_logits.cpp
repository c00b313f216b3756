#include "dsakit/reference/index_logits.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "dsakit/reference/formats.hpp"
#include "fp8_table.hpp"
#include "index_record.hpp"
#include "logit_rows.hpp"
#include "matrix.hpp"

namespace dsakit::reference {
namespace {

/// What is scored at a time: one row against consecutive keys, decoded.
template <class Value>
struct Block {
  Matrix<Value> queries; ///< [heads, 128]
  PerKey<Value> weights; ///< [heads]
  Matrix<Value> keys;    ///< [128, keys]; 0 where missing
  PerKey<Value> scales;  ///< [keys]; 0 where missing
  PerKey<bool> missing;  ///< [keys] the key is on an invalid page
};

/// A block of one row's queries and weights, without its keys.
template <class Value>
Block<Value> load_queries(Fp8Encoding encoding, const std::uint8_t* query_codes,
                          const float* weights, std::int64_t heads, std::int64_t keys) {
  const std::array<float, 256>& value_of = fp8_table(encoding);
  Block<Value> block{Matrix<Value>(heads, kIndexHeadDim), PerKey<Value>(heads),
                     Matrix<Value>::Zero(kIndexHeadDim, keys), PerKey<Value>::Zero(keys),
                     PerKey<bool>::Constant(keys, true)};
  for (std::int64_t h = 0; h < heads; ++h) {
    block.weights(h) = weights[h];
    for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
      block.queries(h, d) = value_of[query_codes[h * kIndexHeadDim + d]];
  }
  return block;
}

template <class Value>
void set_key(Block<Value>& block, std::int64_t n, Fp8Encoding encoding, const std::uint8_t* codes,
             float scale) {
  const std::array<float, 256>& value_of = fp8_table(encoding);
  block.missing(n) = false;
  block.scales(n) = scale;
  for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
    block.keys(d, n) = value_of[codes[d]];
}

/// [heads, keys] dots[h, n] = sum_d queries[h, d] * keys[d, n].
/// In double the sum is exact in any order: products are multiples of 2^-20 (fn: 2^-18), and 128 of
/// them stay below 2^23 (fn: 2^25), which 43 bits hold.
Matrix<double> dots(const Matrix<double>& queries, const Matrix<double>& keys) {
  return queries * keys;
}

/// In float d ascends; the products are exact, each sum rounds.
Matrix<float> dots(const Matrix<float>& queries, const Matrix<float>& keys) {
  return ordered_product(queries, keys);
}

/// [keys] (sum_h max(dot[h], 0) * w[h]) * s: heads ascending, then the scale. Masking comes after.
template <class Value>
PerKey<Value> scores(const Block<Value>& block) {
  const Matrix<Value> dot = dots(block.queries, block.keys);
  PerKey<Value> sum = PerKey<Value>::Zero(dot.cols());
  for (Eigen::Index h = 0; h < dot.rows(); ++h) {
    const auto relu = [](Value x) { return x < 0 ? Value{0} : x; }; // NaN stays NaN
    sum += dot.row(h).array().unaryExpr(relu) * block.weights(h);
  }
  return sum * block.scales;
}

/// scores() in fp32 with those roundings to bf16.
PerKey<float> rounded_scores(const Block<float>& block, const LogitsRounding& rounding) {
  const auto to_bf16 = [](bool rounds, float x) {
    return rounds ? bf16_to_float(float_to_bf16(x)) : x;
  };
  const Matrix<float> dot = dots(block.queries, block.keys);
  PerKey<float> sum = PerKey<float>::Zero(dot.cols());
  for (Eigen::Index h = 0; h < dot.rows(); ++h) {
    const float weight = to_bf16(rounding.weight, block.weights(h));
    for (Eigen::Index n = 0; n < dot.cols(); ++n) {
      const float of_head = to_bf16(rounding.dot, dot(h, n));
      sum(n) += to_bf16(rounding.term, (of_head < 0 ? 0 : of_head) * weight);
    }
  }
  return (sum * block.scales).unaryExpr([&](float x) { return to_bf16(rounding.logit, x); });
}

/// [keys] sum_h |w[h]| * s * sum_d |q[h, d] * k[d]|: what an error of an fp32 sum is relative to.
PerKey<double> sum_of_absolute_terms(const Block<double>& block) {
  const Matrix<double> terms = block.queries.cwiseAbs() * block.keys.cwiseAbs();
  return (block.weights.abs().matrix() * terms).array() * block.scales.abs();
}

/// [keys] sum_h |w[h]| * s * sum over the 4 steps of 32 of the largest number the step adds up: the
/// partial sums before and after it, and its products.
PerKey<double> sum_of_step_magnitudes(const Block<double>& block) {
  constexpr Eigen::Index kStep = 32;
  PerKey<double> sum = PerKey<double>::Zero(block.scales.size());
  for (Eigen::Index h = 0; h < block.queries.rows(); ++h) {
    PerKey<double> partial = PerKey<double>::Zero(sum.size());
    for (Eigen::Index step = 0; step < kIndexHeadDim; step += kStep) {
      PerKey<double> largest = partial.abs();
      for (Eigen::Index d = step; d < step + kStep; ++d) {
        const PerKey<double> product = block.queries(h, d) * block.keys.row(d).array();
        partial += product;
        largest = largest.max(product.abs());
      }
      sum += std::fabs(block.weights(h)) * largest.max(partial.abs());
    }
  }
  return sum * block.scales.abs();
}

PerKey<double> bounds(const Block<double>& block, Accumulation accumulation) {
  const PerKey<double> terms = sum_of_absolute_terms(block);
  switch (accumulation) {
  case Accumulation::fp32:
    return 0x1p-18 * terms + 1e-30;
  case Accumulation::sm90_wgmma_fp8:
    return 0x1p-13 * sum_of_step_magnitudes(block);
  case Accumulation::exact:
    break;
  }
  return 0x1p-24 * scores(block).abs() + 0x1p-45 * terms + 0x1p-149;
}

template <class Value, class Problem>
void all_scores(const Problem& problem, Value* logits) {
  for_each_key<Value>(problem, scores<Value>, -std::numeric_limits<Value>::infinity(), logits);
}

template <class Problem>
void all_rounded_scores(const Problem& problem, const LogitsRounding& rounding, float* logits) {
  for_each_key<float>(
      problem, [&](const Block<float>& block) { return rounded_scores(block, rounding); },
      -std::numeric_limits<float>::infinity(), logits);
}

template <class Problem>
void all_bounds(const Problem& problem, Accumulation accumulation, double* bound) {
  std::fill_n(bound, problem.rows.in.rows * problem.rows.in.columns, 0.0);
  for_each_key<double>(
      problem, [=](const Block<double>& block) { return bounds(block, accumulation); }, 0.0, bound);
}

struct Decode {
  const IndexPages& contract;
  DecodeRows<IndexLogitsDecode> rows;

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
    const IndexLogitsDecode& in = rows.in;
    const Fp8Encoding encoding = contract.index_fp8_encoding;
    auto block = load_queries<Value>(encoding, in.index_q_fp8 + row * in.heads * kIndexHeadDim,
                                     in.index_weights_folded + row * in.heads, in.heads, keys);
    for (std::int64_t n = 0; n < keys; ++n)
      if (const auto record =
              find_record(contract, in.cache, in.block_table, in.row_request[row], first_key + n))
        set_key(block, n, encoding, record->codes.data(), record->scale);
    return block;
  }

  Status check() const {
    DSAKIT_TRY(check_index_pages(contract, rows.in.cache.page_stride));
    return rows.check();
  }
};

struct Prefill {
  PrefillRows<IndexLogitsPrefill> rows;

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
    const IndexLogitsPrefill& in = rows.in;
    auto block =
        load_queries<Value>(in.index_fp8_encoding, in.index_q_fp8 + row * in.heads * kIndexHeadDim,
                            in.index_weights_folded + row * in.heads, in.heads, keys);
    for (std::int64_t n = 0; n < keys; ++n) {
      const std::int64_t key = rows.begin(row) + first_key + n;
      set_key(block, n, in.index_fp8_encoding, in.k_fp8 + key * kIndexHeadDim, in.k_scale[key]);
    }
    return block;
  }

  Status check() const { return rows.check(); }
};

} // namespace

template <class Tier>
Status index_logits_decode(const IndexPages& contract, const IndexLogitsDecode& in,
                           typename Tier::Value* logits) {
  const Decode problem{contract, {in}};
  DSAKIT_TRY(problem.check());
  all_scores(problem, logits);
  return {};
}

template Status index_logits_decode<Exact>(const IndexPages&, const IndexLogitsDecode&, double*);
template Status index_logits_decode<Simulated>(const IndexPages&, const IndexLogitsDecode&, float*);

Status index_logits_decode_rounded(const IndexPages& contract, const IndexLogitsDecode& in,
                                   const LogitsRounding& rounding, float* logits) {
  const Decode problem{contract, {in}};
  DSAKIT_TRY(problem.check());
  all_rounded_scores(problem, rounding, logits);
  return {};
}

Status index_logits_decode_bound(const IndexPages& contract, const IndexLogitsDecode& in,
                                 Accumulation accumulation, double* bound) {
  const Decode problem{contract, {in}};
  DSAKIT_TRY(problem.check());
  all_bounds(problem, accumulation, bound);
  return {};
}

template <class Tier>
Status index_logits_prefill(const IndexLogitsPrefill& in, typename Tier::Value* logits) {
  const Prefill problem{{in}};
  DSAKIT_TRY(problem.check());
  all_scores(problem, logits);
  return {};
}

template Status index_logits_prefill<Exact>(const IndexLogitsPrefill&, double*);
template Status index_logits_prefill<Simulated>(const IndexLogitsPrefill&, float*);

Status index_logits_prefill_rounded(const IndexLogitsPrefill& in, const LogitsRounding& rounding,
                                    float* logits) {
  const Prefill problem{{in}};
  DSAKIT_TRY(problem.check());
  all_rounded_scores(problem, rounding, logits);
  return {};
}

Status index_logits_prefill_bound(const IndexLogitsPrefill& in, Accumulation accumulation,
                                  double* bound) {
  const Prefill problem{{in}};
  DSAKIT_TRY(problem.check());
  all_bounds(problem, accumulation, bound);
  return {};
}

} // namespace dsakit::reference
