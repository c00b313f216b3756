// Which keys a row of index logits scores, and the loop over them: shared by FP8 and MXFP4.
#pragma once

#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::reference {

/// One value a key.
template <class Value>
using PerKey = Eigen::Array<Value, 1, Eigen::Dynamic>;

/// Keys scored at a time: bounds the memory of a long row. Every key is scored by itself, so no
/// result depends on it.
inline constexpr std::int64_t kKeyBlock = 64;

/// Keys of a row in decode: the first row_lens[row] positions of its request, in pages.
template <class Inputs>
struct DecodeRows {
  const Inputs& in;

  std::int64_t longest() const { return in.columns; }
  std::int64_t keys_of(std::int64_t row) const { return in.row_lens[row]; }
  std::int64_t column_of(std::int64_t) const { return 0; }

  Status check() const {
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

/// Keys of a row in prefill: its window of the gathered keys.
template <class Inputs>
struct PrefillRows {
  const Inputs& in;

  std::int64_t longest() const { return in.keys; }
  std::int64_t begin(std::int64_t row) const { return std::max<std::int64_t>(in.ks[row], 0); }
  std::int64_t keys_of(std::int64_t row) const {
    return std::min<std::int64_t>(in.ke[row], in.keys) - begin(row);
  }
  /// Of the first key.
  std::int64_t column_of(std::int64_t row) const {
    return begin(row) - (in.column_origin ? in.column_origin[row] : 0);
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

/// Stores what evaluate(block) gives a key at destination[column of the key], for all keys of all
/// rows, in parallel; `missing` where the key is on an invalid page (block.missing).
/// Problem: rows, of one of the types above; load<Value>(row, first_key, keys), a block of keys.
template <class Value, class Problem, class Evaluate>
void for_each_key(const Problem& problem, const Evaluate& evaluate, Value missing,
                  Value* destination) {
  const auto& rows = problem.rows;
  const std::int64_t blocks = (rows.longest() + kKeyBlock - 1) / kKeyBlock;
  tbb::parallel_for(std::int64_t{0}, rows.in.rows * blocks, [&](std::int64_t i) {
    const std::int64_t row = i / blocks;
    const std::int64_t first_key = i % blocks * kKeyBlock;
    const std::int64_t keys = std::min(rows.keys_of(row) - first_key, kKeyBlock);
    if (keys <= 0) return;
    const auto block = problem.template load<Value>(row, first_key, keys);
    const PerKey<Value> values = block.missing.select(missing, evaluate(block));
    std::copy(values.begin(), values.end(),
              destination + row * rows.in.columns + rows.column_of(row) + first_key);
  });
}

} // namespace dsakit::reference
