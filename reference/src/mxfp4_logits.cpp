#include "dsakit/reference/mxfp4_logits.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "logit_rows.hpp"
#include "matrix.hpp"
#include "mxfp4_record.hpp"

namespace dsakit::reference {
namespace {

constexpr std::int64_t kGroup = 32;

/// Rows of 128 as they are stored: the values of their codes, and the scale of each group.
template <class Value>
struct Rows {
  Matrix<Value> codes;   ///< [rows, 128]
  Matrix<double> scales; ///< [rows, 4]

  explicit Rows(std::int64_t rows)
      : codes(Matrix<Value>::Zero(rows, kIndexHeadDim)),
        scales(Matrix<double>::Zero(rows, kMxfp4Groups)) {}

  void set(std::int64_t row, const std::uint8_t* packed, const std::uint8_t* scale) {
    for (std::int64_t i = 0; i < kMxfp4Bytes; ++i) {
      codes(row, 2 * i) = decode_e2m1(packed[i] & 15);
      codes(row, 2 * i + 1) = decode_e2m1(packed[i] >> 4);
    }
    for (std::int64_t g = 0; g < kMxfp4Groups; ++g)
      scales(row, g) = decode_e8m0(scale[g]);
  }
};

/// What is scored at a time: one row against consecutive keys.
template <class Value>
struct Block {
  Rows<Value> queries;   ///< [heads]
  PerKey<Value> weights; ///< [heads]
  Rows<Value> keys;      ///< [keys]; 0 where missing
  PerKey<bool> missing;  ///< [keys] the key is on an invalid page
};

/// A block of one row's queries and weights, without its keys. Inputs: of decode or of prefill.
template <class Value, class Inputs>
Block<Value> load_queries(const Inputs& in, std::int64_t row, std::int64_t keys) {
  Block<Value> block{Rows<Value>(in.heads), PerKey<Value>(in.heads), Rows<Value>(keys),
                     PerKey<bool>::Constant(keys, true)};
  for (std::int64_t h = 0; h < in.heads; ++h) {
    const std::int64_t i = row * in.heads + h;
    block.queries.set(h, in.index_q_packed + i * kMxfp4Bytes, in.index_q_scale + i * kMxfp4Groups);
    block.weights(h) = activation_to_float(in.activation_dtype, in.index_weights[i]);
  }
  return block;
}

template <class Value>
void set_key(Block<Value>& block, std::int64_t n, const std::uint8_t* packed,
             const std::uint8_t* scale) {
  block.keys.set(n, packed, scale);
  block.missing(n) = false;
}

/// [heads, keys] dots[h, n] = sum_g (sum of group g's products) * both scales, groups ascending.
/// A group's sum is exact in any order and in either type: products are multiples of 1/4, and 32 of
/// them stay within 1152. So is its product with the scales in double, which Value then rounds.
template <class Value>
Matrix<Value> dots(const Rows<Value>& queries, const Rows<Value>& keys) {
  Matrix<Value> sum = Matrix<Value>::Zero(queries.codes.rows(), keys.codes.rows());
  for (Eigen::Index g = 0; g < kMxfp4Groups; ++g) {
    const Matrix<Value> products = queries.codes.middleCols(g * kGroup, kGroup) *
                                   keys.codes.middleCols(g * kGroup, kGroup).transpose();
    const Matrix<double> scales = queries.scales.col(g) * keys.scales.col(g).transpose();
    sum += products.template cast<double>().cwiseProduct(scales).template cast<Value>();
  }
  return sum;
}

/// [keys] (sum_h max(dot[h], 0) * w[h]) * weight_scale: heads ascending.
template <class Value>
PerKey<Value> scores(const Block<Value>& block) {
  const Matrix<Value> dot = dots(block.queries, block.keys);
  PerKey<Value> sum = PerKey<Value>::Zero(dot.cols());
  for (Eigen::Index h = 0; h < dot.rows(); ++h) {
    const auto relu = [](Value x) { return x < 0 ? Value{0} : x; }; // NaN stays NaN
    sum += dot.row(h).array().unaryExpr(relu) * block.weights(h);
  }
  return sum * Value{mxfp4_weight_scale(dot.rows())};
}

/// [keys] weight_scale * sum_h |w[h]| * sum_d |q[h, d] * k[d]|, S2 of spec 8.
PerKey<double> sum_of_absolute_terms(Block<double> block) {
  block.queries.codes = block.queries.codes.cwiseAbs().eval();
  block.keys.codes = block.keys.codes.cwiseAbs().eval();
  const Matrix<double> terms = dots(block.queries, block.keys);
  return (block.weights.abs().matrix() * terms).array() * double{mxfp4_weight_scale(terms.rows())};
}

/// fp32: as for FP8, about 70 roundings at H = 64: 3 sums of groups, the weight, 63 sums of heads,
/// weight_scale. exact: in double the sums of groups and heads round as often, 2^-53 each.
PerKey<double> bounds(const Block<double>& block, Accumulation accumulation) {
  const PerKey<double> terms = sum_of_absolute_terms(block);
  if (accumulation == Accumulation::fp32) return 0x1p-18 * terms + 1e-30;
  return 0x1p-24 * scores(block).abs() + 0x1p-45 * terms + 0x1p-149;
}

template <class Value, class Problem>
Status all_scores(const Problem& problem, Value* logits) {
  DSAKIT_TRY(problem.check());
  for_each_key<Value>(problem, scores<Value>, -std::numeric_limits<Value>::infinity(), logits);
  return {};
}

template <class Problem>
Status all_bounds(const Problem& problem, Accumulation accumulation, double* bound) {
  DSAKIT_TRY(problem.check());
  if (accumulation != Accumulation::exact && accumulation != Accumulation::fp32)
    return unsupported("accumulation: found " + std::string(name(accumulation)) +
                       ", want exact or fp32 for MXFP4");
  std::fill_n(bound, problem.rows.in.rows * problem.rows.in.columns, 0.0);
  for_each_key<double>(
      problem, [=](const Block<double>& block) { return bounds(block, accumulation); }, 0.0, bound);
  return {};
}

struct Decode {
  const Mxfp4Pages& contract;
  DecodeRows<IndexLogitsDecodeMxfp4> rows;

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
    const IndexLogitsDecodeMxfp4& in = rows.in;
    auto block = load_queries<Value>(in, row, keys);
    for (std::int64_t n = 0; n < keys; ++n)
      if (const auto record = find_mxfp4_record(contract, in.cache, in.block_table,
                                                in.row_request[row], first_key + n))
        set_key(block, n, record->packed.data(), record->scale.data());
    return block;
  }

  Status check() const {
    DSAKIT_TRY(check_mxfp4_pages(contract, rows.in.cache.page_stride));
    return rows.check();
  }
};

struct Prefill {
  PrefillRows<IndexLogitsPrefillMxfp4> rows;

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
    const IndexLogitsPrefillMxfp4& in = rows.in;
    auto block = load_queries<Value>(in, row, keys);
    for (std::int64_t n = 0; n < keys; ++n) {
      const std::int64_t key = rows.begin(row) + first_key + n;
      set_key(block, n, in.k_packed + key * kMxfp4Bytes, in.k_scale + key * kMxfp4Groups);
    }
    return block;
  }

  Status check() const { return rows.check(); }
};

} // namespace

float mxfp4_weight_scale(std::int64_t heads) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(heads)) /
                            std::sqrt(static_cast<double>(kIndexHeadDim)));
}

template <class Tier>
Status index_logits_decode_mxfp4(const Mxfp4Pages& contract, const IndexLogitsDecodeMxfp4& in,
                                 typename Tier::Value* logits) {
  return all_scores(Decode{contract, {in}}, logits);
}

template Status index_logits_decode_mxfp4<Exact>(const Mxfp4Pages&, const IndexLogitsDecodeMxfp4&,
                                                 double*);
template Status index_logits_decode_mxfp4<Simulated>(const Mxfp4Pages&,
                                                     const IndexLogitsDecodeMxfp4&, float*);

Status index_logits_decode_mxfp4_bound(const Mxfp4Pages& contract, const IndexLogitsDecodeMxfp4& in,
                                       Accumulation accumulation, double* bound) {
  return all_bounds(Decode{contract, {in}}, accumulation, bound);
}

template <class Tier>
Status index_logits_prefill_mxfp4(const IndexLogitsPrefillMxfp4& in, typename Tier::Value* logits) {
  return all_scores(Prefill{{in}}, logits);
}

template Status index_logits_prefill_mxfp4<Exact>(const IndexLogitsPrefillMxfp4&, double*);
template Status index_logits_prefill_mxfp4<Simulated>(const IndexLogitsPrefillMxfp4&, float*);

Status index_logits_prefill_mxfp4_bound(const IndexLogitsPrefillMxfp4& in,
                                        Accumulation accumulation, double* bound) {
  return all_bounds(Prefill{{in}}, accumulation, bound);
}

} // namespace dsakit::reference
