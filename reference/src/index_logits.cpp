#include "dsakit/reference/index_logits.hpp"

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "fp8_table.hpp"
#include "index_record.hpp"

namespace dsakit::reference {
namespace {

template <class Value>
using Matrix = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// One value a key.
template <class Value>
using PerKey = Eigen::Array<Value, 1, Eigen::Dynamic>;

/// Keys scored at a time: bounds the memory of a long row. Every key is scored by itself, so no
/// result depends on it.
constexpr std::int64_t kKeyBlock = 64;

/// What is scored at a time: one row against consecutive keys, decoded.
template <class Value>
struct Block {
  Matrix<Value> queries; ///< [heads, 128]
  PerKey<Value> weights; ///< [heads]
  Matrix<Value> keys;    ///< [128, keys]; 0 where missing
  PerKey<Value> scales;  ///< [keys]; 0 where missing
  PerKey<bool> missing;  ///< [keys] the key is on an invalid page
};

template <class Value>
Block<Value> load_block(const IndexPages& contract, const IndexLogitsDecode& in, std::int64_t row,
                        std::int64_t first_key, std::int64_t keys) {
  const std::array<float, 256>& value_of = fp8_table(contract.index_fp8_encoding);
  Block<Value> block{Matrix<Value>(in.heads, kIndexHeadDim), PerKey<Value>(in.heads),
                     Matrix<Value>::Zero(kIndexHeadDim, keys), PerKey<Value>::Zero(keys),
                     PerKey<bool>(keys)};

  const std::uint8_t* query_codes = in.index_q_fp8 + row * in.heads * kIndexHeadDim;
  for (std::int64_t h = 0; h < in.heads; ++h) {
    block.weights(h) = in.index_weights_folded[row * in.heads + h];
    for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
      block.queries(h, d) = value_of[query_codes[h * kIndexHeadDim + d]];
  }
  for (std::int64_t n = 0; n < keys; ++n) {
    const auto record =
        find_record(contract, in.cache, in.block_table, in.row_request[row], first_key + n);
    block.missing(n) = !record;
    if (!record) continue;
    block.scales(n) = record->scale;
    for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
      block.keys(d, n) = value_of[record->codes[static_cast<std::size_t>(d)]];
  }
  return block;
}

/// [heads, keys] dots[h, n] = sum_d queries[h, d] * keys[d, n].
/// In double the sum is exact in any order: products are multiples of 2^-20 (fn: 2^-18), and 128 of
/// them stay below 2^23 (fn: 2^25), which 43 bits hold.
Matrix<double> dots(const Matrix<double>& queries, const Matrix<double>& keys) {
  return queries * keys;
}

/// In float d ascends; the products are exact, each sum rounds.
Matrix<float> dots(const Matrix<float>& queries, const Matrix<float>& keys) {
  Matrix<float> sums = Matrix<float>::Zero(queries.rows(), keys.cols());
  for (Eigen::Index h = 0; h < queries.rows(); ++h)
    for (Eigen::Index d = 0; d < queries.cols(); ++d)
      sums.row(h) += queries(h, d) * keys.row(d);
  return sums;
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

Status check(const IndexPages& contract, const IndexLogitsDecode& in) {
  DSAKIT_TRY(check_index_pages(contract, in.cache.page_stride));
  for (std::int64_t row = 0; row < in.rows; ++row) {
    if (in.row_lens[row] > in.columns)
      return bad_input("row_lens[" + std::to_string(row) + "]: found " +
                       std::to_string(in.row_lens[row]) + ", want at most " +
                       std::to_string(in.columns) + ", the columns of logits");
    const std::int64_t request = in.row_request[row];
    if (in.row_lens[row] > 0 && (request < 0 || request >= in.block_table.requests))
      return bad_input("row_request[" + std::to_string(row) + "]: found " +
                       std::to_string(request) + ", want a request below " +
                       std::to_string(in.block_table.requests));
  }
  return {};
}

/// Calls body(block, first) for all keys of all rows, in parallel; `first` is the place of the
/// block's first key in a [rows, columns] tensor.
template <class Value, class Body>
void for_each_block(const IndexPages& contract, const IndexLogitsDecode& in, const Body& body) {
  const std::int64_t blocks = (in.columns + kKeyBlock - 1) / kKeyBlock;
  tbb::parallel_for(std::int64_t{0}, in.rows * blocks, [&](std::int64_t i) {
    const std::int64_t row = i / blocks;
    const std::int64_t first_key = i % blocks * kKeyBlock;
    const std::int64_t keys = std::min(in.row_lens[row] - first_key, kKeyBlock);
    if (keys > 0)
      body(load_block<Value>(contract, in, row, first_key, keys), row * in.columns + first_key);
  });
}

template <class Value>
void store(const PerKey<Value>& values, Value* destination) {
  std::copy(values.begin(), values.end(), destination);
}

} // namespace

template <class Tier>
Status index_logits_decode(const IndexPages& contract, const IndexLogitsDecode& in,
                           typename Tier::Value* logits) {
  using Value = typename Tier::Value;
  DSAKIT_TRY(check(contract, in));
  for_each_block<Value>(contract, in, [&](const Block<Value>& block, std::int64_t first) {
    constexpr Value kMasked = -std::numeric_limits<Value>::infinity();
    store<Value>(block.missing.select(kMasked, scores(block)), logits + first);
  });
  return {};
}

template Status index_logits_decode<Exact>(const IndexPages&, const IndexLogitsDecode&, double*);
template Status index_logits_decode<Simulated>(const IndexPages&, const IndexLogitsDecode&, float*);

Status index_logits_decode_bound(const IndexPages& contract, const IndexLogitsDecode& in,
                                 Accumulation accumulation, double* bound) {
  DSAKIT_TRY(check(contract, in));
  std::fill_n(bound, in.rows * in.columns, 0.0);
  for_each_block<double>(contract, in, [&](const Block<double>& block, std::int64_t first) {
    store<double>(block.missing.select(0.0, bounds(block, accumulation)), bound + first);
  });
  return {};
}

} // namespace dsakit::reference
