#include "dsakit/reference/index_logits.hpp"

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "fp8_table.hpp"
#include "index_record.hpp"
#include "matrix.hpp"

namespace dsakit::reference {
namespace {

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

/// Stores what evaluate(block) gives a key at destination[column of the key], for all keys of all
/// rows, in parallel; `missing` where the key is on an invalid page.
/// Problem: rows, longest(), keys_of(row), column_of(row) of the first key, load<Value>(row,
/// first_key, keys).
template <class Value, class Problem, class Evaluate>
void for_each_key(const Problem& problem, const Evaluate& evaluate, Value missing,
                  Value* destination) {
  const std::int64_t blocks = (problem.longest() + kKeyBlock - 1) / kKeyBlock;
  tbb::parallel_for(std::int64_t{0}, problem.in.rows * blocks, [&](std::int64_t i) {
    const std::int64_t row = i / blocks;
    const std::int64_t first_key = i % blocks * kKeyBlock;
    const std::int64_t keys = std::min(problem.keys_of(row) - first_key, kKeyBlock);
    if (keys <= 0) return;
    const Block<Value> block = problem.template load<Value>(row, first_key, keys);
    const PerKey<Value> values = block.missing.select(missing, evaluate(block));
    std::copy(values.begin(), values.end(),
              destination + row * problem.in.columns + problem.column_of(row) + first_key);
  });
}

template <class Value, class Problem>
void all_scores(const Problem& problem, Value* logits) {
  for_each_key<Value>(problem, scores<Value>, -std::numeric_limits<Value>::infinity(), logits);
}

template <class Problem>
void all_bounds(const Problem& problem, Accumulation accumulation, double* bound) {
  std::fill_n(bound, problem.in.rows * problem.in.columns, 0.0);
  for_each_key<double>(
      problem, [=](const Block<double>& block) { return bounds(block, accumulation); }, 0.0, bound);
}

/// Keys of a row: the first row_lens[row] positions of its request, in pages.
struct Decode {
  const IndexPages& contract;
  const IndexLogitsDecode& in;

  std::int64_t longest() const { return in.columns; }
  std::int64_t keys_of(std::int64_t row) const { return in.row_lens[row]; }
  std::int64_t column_of(std::int64_t) const { return 0; }

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
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
};

/// Keys of a row: its window of the gathered keys.
struct Prefill {
  const IndexLogitsPrefill& in;

  std::int64_t longest() const { return in.keys; }
  std::int64_t begin(std::int64_t row) const { return std::max<std::int64_t>(in.ks[row], 0); }
  std::int64_t keys_of(std::int64_t row) const {
    return std::min<std::int64_t>(in.ke[row], in.keys) - begin(row);
  }
  std::int64_t column_of(std::int64_t row) const {
    return begin(row) - (in.column_origin ? in.column_origin[row] : 0);
  }

  template <class Value>
  Block<Value> load(std::int64_t row, std::int64_t first_key, std::int64_t keys) const {
    auto block =
        load_queries<Value>(in.index_fp8_encoding, in.index_q_fp8 + row * in.heads * kIndexHeadDim,
                            in.index_weights_folded + row * in.heads, in.heads, keys);
    for (std::int64_t n = 0; n < keys; ++n) {
      const std::int64_t key = begin(row) + first_key + n;
      set_key(block, n, in.index_fp8_encoding, in.k_fp8 + key * kIndexHeadDim, in.k_scale[key]);
    }
    return block;
  }

  Status check() const {
    for (std::int64_t row = 0; row < in.rows; ++row) {
      const std::int64_t first = column_of(row);
      if (keys_of(row) > 0 && (first < 0 || first + keys_of(row) > in.columns))
        return bad_input("columns of row " + std::to_string(row) + ": found [" +
                         std::to_string(first) + ", " + std::to_string(first + keys_of(row)) +
                         "), want within [0, " + std::to_string(in.columns) + ")");
    }
    return {};
  }
};

} // namespace

template <class Tier>
Status index_logits_decode(const IndexPages& contract, const IndexLogitsDecode& in,
                           typename Tier::Value* logits) {
  const Decode problem{contract, in};
  DSAKIT_TRY(problem.check());
  all_scores(problem, logits);
  return {};
}

template Status index_logits_decode<Exact>(const IndexPages&, const IndexLogitsDecode&, double*);
template Status index_logits_decode<Simulated>(const IndexPages&, const IndexLogitsDecode&, float*);

Status index_logits_decode_bound(const IndexPages& contract, const IndexLogitsDecode& in,
                                 Accumulation accumulation, double* bound) {
  const Decode problem{contract, in};
  DSAKIT_TRY(problem.check());
  all_bounds(problem, accumulation, bound);
  return {};
}

template <class Tier>
Status index_logits_prefill(const IndexLogitsPrefill& in, typename Tier::Value* logits) {
  const Prefill problem{in};
  DSAKIT_TRY(problem.check());
  all_scores(problem, logits);
  return {};
}

template Status index_logits_prefill<Exact>(const IndexLogitsPrefill&, double*);
template Status index_logits_prefill<Simulated>(const IndexLogitsPrefill&, float*);

Status index_logits_prefill_bound(const IndexLogitsPrefill& in, Accumulation accumulation,
                                  double* bound) {
  const Prefill problem{in};
  DSAKIT_TRY(problem.check());
  all_bounds(problem, accumulation, bound);
  return {};
}

} // namespace dsakit::reference
