#include "dsakit/harness/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "block.hpp"
#include "ulps.hpp"

namespace dsakit::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kChunk = 512; ///< its decoded values stay in the first cache

/// A huge axis is counted in parts, so that the counts stay small beside the tensor.
constexpr std::int64_t kCountsPerAxis = 65536;

bool is(Anomaly kind, double value) {
  switch (kind) {
  case Anomaly::nan:
    return std::isnan(value);
  case Anomaly::plus_infinity:
    return value == kInfinity;
  case Anomaly::minus_infinity:
    return value == -kInfinity;
  }
  return false;
}

/// `n` values: `unrounded` where known, with those that the storage dtype makes infinite.
void read(Dtype dtype, const std::byte* bytes, const double* unrounded, std::int64_t n,
          double* values) {
  if (!unrounded) return decode(dtype, bytes, n, values);
  std::copy_n(unrounded, n, values);
  if (dtype != Dtype::float32) return;
  for (std::int64_t i = 0; i < n; ++i)
    if (std::isinf(static_cast<float>(values[i]))) values[i] = std::copysign(kInfinity, values[i]);
}

/// Keeps mismatch number result.mismatches so that in the end each one was kept with the same
/// chance, whatever their order; the same ones in every run.
void keep(Comparison& result, std::int64_t i) {
  if (result.wrong.size() < Comparison::kKept) {
    result.wrong.push_back(i);
    return;
  }
  std::uint64_t mixed = static_cast<std::uint64_t>(result.mismatches) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u; // scattered over all 64 bits
  const std::uint64_t place = (mixed ^ mixed >> 32) % static_cast<std::uint64_t>(result.mismatches);
  if (place < Comparison::kKept) result.wrong[static_cast<std::size_t>(place)] = i;
}

} // namespace

struct Comparer::State {
  State(Gate g, Dtype d, Shape s) : gate(g), dtype(d), shape(std::move(s)) {}

  Gate gate;
  Dtype dtype;
  Shape shape;
  Comparison result;
  UlpHistogram ulps;
  std::int64_t begin = 0; ///< flat index of the next element
  struct Sums {
    std::int64_t elements = 0;
    double worst_abs = 0;
    double worst_rel = 0;
    double error_squares = 0;
    double want_squares = 0;
  } totals;
  double worst_rank = 0; ///< of exact: the largest error of a mismatch

  std::array<double, kChunk> got;
  std::array<double, kChunk> want;
  std::array<std::int64_t, kChunk> steps;
  std::array<std::uint8_t, kChunk> differs;

  void add_chunk(const Block& chunk);

  template <Gate kGate>
  void fold(const Block& chunk, bool has_steps);

  /// The error of an element that is not finite on both sides.
  double anomaly(std::int64_t at, double g, double w) {
    bool apart = false;
    for (std::size_t kind = 0; kind < kAnomalies; ++kind) {
      AnomalyCount& count = result.anomalies[kind];
      const bool in_got = is(static_cast<Anomaly>(kind), g);
      const bool in_want = is(static_cast<Anomaly>(kind), w);
      count.got += in_got;
      count.want += in_want;
      if (in_got == in_want) continue;
      apart = true;
      ++count.apart;
      if (!count.first) count.first = at;
    }
    if (!apart) return 0;
    ++result.anomalous;
    return kInfinity;
  }

  void mismatch(std::int64_t at) {
    if (!result.first) {
      result.first = at;
      for (const std::int64_t extent : shape) {
        AxisCounts& axis = result.wrong_along.emplace_back();
        while ((extent - 1) / axis.step >= kCountsPerAxis)
          axis.step *= 2;
        axis.wrong.resize(static_cast<std::size_t>((extent - 1) / axis.step + 1));
      }
    }
    ++result.mismatches;
    keep(result, at);
    for (std::size_t axis = shape.size(); axis-- > 0; at /= shape[axis]) {
      AxisCounts& counts = result.wrong_along[axis];
      ++counts.wrong[static_cast<std::size_t>(at % shape[axis] / counts.step)];
    }
  }
};

template <Gate kGate>
void Comparer::State::fold(const Block& chunk, bool has_steps) {
  // What every element adds to is kept out of memory meanwhile.
  Sums sums = totals;
  for (std::int64_t i = 0; i < chunk.elements; ++i) {
    if (chunk.mask && !chunk.mask[i]) continue;
    ++sums.elements;
    const auto k = static_cast<std::size_t>(i);
    if (has_steps && steps[k] >= 0) ulps.add(steps[k], begin + i);
    if constexpr (kGate == Gate::topk_set) {
      if (chunk.valid[i]) continue;
      mismatch(begin + i);
      result.used = kInfinity;
      if (!result.worst) result.worst = begin + i;
      continue;
    }
    const double g = got[k];
    const double w = want[k];
    double error = std::abs(g - w);
    if (std::isfinite(g) && std::isfinite(w)) {
      sums.error_squares += error * error;
      sums.want_squares += w * w;
      // Divides only where the product says that the quotient may be larger than the largest.
      if (error > sums.worst_rel * std::abs(w) && w != 0)
        sums.worst_rel = std::max(sums.worst_rel, error / std::abs(w));
    } else {
      error = anomaly(begin + i, g, w);
      if (error != 0) sums.worst_rel = kInfinity;
    }
    if (error > sums.worst_abs) sums.worst_abs = error;
    if constexpr (kGate == Gate::exact) {
      if (!differs[k]) continue;
      mismatch(begin + i);
      result.used = kInfinity;
      if (1 + error > worst_rank) {
        worst_rank = 1 + error;
        result.worst = begin + i;
      }
    } else {
      if (error == 0) continue;
      const double limit = chunk.bound[i];
      // A bound that is NaN or infinite, since its terms are, lets no error pass.
      const bool bounded = std::isfinite(limit);
      if (!bounded || error > limit) mismatch(begin + i);
      if (bounded && error <= result.used * limit) continue;
      const double used = bounded ? error / limit : kInfinity;
      if (used > result.used) {
        result.used = used;
        result.worst = begin + i;
      }
    }
  }
  totals = sums;
}

void Comparer::State::add_chunk(const Block& chunk) {
  read(dtype, chunk.got, chunk.got_unrounded, chunk.elements, got.data());
  read(dtype, chunk.want, chunk.want_unrounded, chunk.elements, want.data());
  const bool has_steps = steps_between(dtype, chunk.got, chunk.want, chunk.elements, steps.data());
  switch (gate) {
  case Gate::exact:
    differ(dtype, chunk.got, chunk.want, chunk.elements, differs.data());
    fold<Gate::exact>(chunk, has_steps);
    break;
  case Gate::derived:
    fold<Gate::derived>(chunk, has_steps);
    break;
  case Gate::topk_set:
    fold<Gate::topk_set>(chunk, has_steps);
    break;
  }
  begin += chunk.elements;
}

Comparer::Comparer(Gate gate, Dtype dtype, Shape shape)
    : state_(std::make_unique<State>(gate, dtype, std::move(shape))) {}
Comparer::~Comparer() = default;

void Comparer::add(const Block& block) {
  const auto size = static_cast<std::int64_t>(size_of(state_->dtype));
  const auto from = [](const auto* pointer, std::int64_t offset) {
    return pointer ? pointer + offset : nullptr;
  };
  for (std::int64_t i = 0; i < block.elements; i += kChunk)
    state_->add_chunk({block.got + i * size, block.want + i * size,
                       std::min(kChunk, block.elements - i), from(block.got_unrounded, i),
                       from(block.want_unrounded, i), from(block.bound, i), from(block.valid, i),
                       from(block.mask, i)});
}

Comparison Comparer::finish() {
  Comparison& result = state_->result;
  std::sort(result.wrong.begin(), result.wrong.end());
  const State::Sums& totals = state_->totals;
  result.elements = totals.elements;
  result.worst_abs = totals.worst_abs;
  result.worst_rel = totals.worst_rel;
  if (totals.error_squares > 0)
    result.relative_l2 = std::sqrt(totals.error_squares) / std::sqrt(totals.want_squares);
  result.ulp_max = state_->ulps.max();
  result.ulp_at = state_->ulps.at();
  result.ulp_p99 = state_->ulps.p99();
  result.ulp_histogram = state_->ulps.by_power_of_two();
  return std::move(result);
}

std::string_view name(Gate gate) {
  constexpr std::array<std::string_view, 3> names = {"exact", "derived", "topk_set"};
  return names[static_cast<std::size_t>(gate)];
}

std::string_view name(Anomaly anomaly) {
  constexpr std::array<std::string_view, kAnomalies> names = {"NaN", "+inf", "-inf"};
  return names[static_cast<std::size_t>(anomaly)];
}

std::int64_t allowed(const Limits& limits, std::int64_t elements) {
  const double part = limits.budget_fraction * static_cast<double>(elements);
  return std::min(limits.budget_count, static_cast<std::int64_t>(part));
}

bool passes(const Comparison& comparison, const Limits& limits) {
  const bool few =
      comparison.passes() ||
      (comparison.anomalous == 0 && comparison.mismatches <= allowed(limits, comparison.elements));
  return few && (!limits.relative_l2 || comparison.relative_l2 <= *limits.relative_l2);
}

namespace {

Block block_of(const Elements& got, const Elements& want, const Mask& mask) {
  Block block{got.tensor->bytes.data(), want.tensor->bytes.data(), got.tensor->elements()};
  block.mask = mask.empty() ? nullptr : mask.data();
  return block;
}

Comparison compare(Gate gate, const Elements& want, const Block& block) {
  Comparer comparer(gate, want.tensor->dtype, want.tensor->shape);
  comparer.add(block);
  return comparer.finish();
}

} // namespace

Comparison compare_exact(const Elements& got, const Elements& want, const Mask& mask) {
  return compare(Gate::exact, want, block_of(got, want, mask));
}

Comparison compare_derived(const Elements& got, const Elements& want,
                           const std::vector<double>& bound, const Mask& mask) {
  Block block = block_of(got, want, mask);
  block.bound = bound.data();
  block.got_unrounded = got.unrounded ? got.unrounded->data() : nullptr;
  block.want_unrounded = want.unrounded ? want.unrounded->data() : nullptr;
  return compare(Gate::derived, want, block);
}

Comparison compare_valid(const Elements& got, const Elements& want, const Mask& valid,
                         const Mask& mask) {
  Block block = block_of(got, want, mask);
  block.valid = valid.data();
  return compare(Gate::topk_set, want, block);
}

} // namespace dsakit::harness
