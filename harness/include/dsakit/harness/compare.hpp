// Comparison of two tensors, element by element, under a gate (spec 8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

enum class Gate : std::uint8_t {
  exact,    ///< the stored bytes are equal, NaN by its bit pattern
  derived,  ///< |got - want| <= a bound that the reference derives for each element
  topk_set, ///< a set of positions that are the best; their order and ties are left open
};

std::string_view name(Gate gate);

/// Element i is compared where mask[i] != 0. An empty mask compares every element.
using Mask = std::vector<std::uint8_t>;

/// The stored elements of one side and, for a reference, the values before rounding to storage.
struct Values {
  Tensor tensor;
  std::vector<double> unrounded; ///< empty: the stored elements are the values

  double at(std::int64_t i) const;
};

/// One side of a comparison: elements that lie elsewhere and outlive this.
struct Elements {
  Elements(const Values& values); // NOLINT(google-explicit-constructor): the same, seen
  explicit Elements(const Tensor& stored);
  /// The same bytes as elements of another dtype of their size.
  static Elements as(const Tensor& stored, Dtype dtype);

  double at(std::int64_t i) const;

  std::shared_ptr<const Tensor> tensor;           ///< owned only where it has another dtype
  const std::vector<double>* unrounded = nullptr; ///< none: the stored elements are the values
};

/// Value of element i; an fp4 pair and an integer count as the number that they store.
double element(const Tensor& tensor, std::int64_t i);

/// The stored bits of element i: "0x3f800000".
std::string hex(const Tensor& tensor, std::int64_t i);

/// Steps between two neighbouring values of the storage dtype, from a to b, never negative; of an
/// fp4 pair the larger of its two codes' steps. None where the dtype has no such order (integers)
/// or a value is NaN.
std::optional<std::int64_t> ulps_between(const Tensor& a, const Tensor& b, std::int64_t i);

/// A kind of value that is not finite.
enum class Anomaly : std::uint8_t { nan, plus_infinity, minus_infinity };

inline constexpr std::size_t kAnomalies = 3;

std::string_view name(Anomaly anomaly); ///< "NaN", "+inf", "-inf"

/// Where the values of one such kind are.
struct AnomalyCount {
  std::int64_t got = 0;
  std::int64_t want = 0;
  std::int64_t apart = 0;            ///< elements where one side alone has it
  std::optional<std::int64_t> first; ///< flat index of the first of those
};

/// Mismatches along one axis of a tensor.
struct AxisCounts {
  std::int64_t step = 1;           ///< indices that a count is of: 1 but for huge axes
  std::vector<std::int64_t> wrong; ///< mismatches whose index lies there
};

struct Comparison {
  static constexpr std::size_t kKept = 4096; ///< enough to see a pattern
  std::int64_t elements = 0;                 ///< compared
  std::int64_t mismatches = 0;               ///< outside the gate
  /// Of them, those where one side alone has a NaN or that infinity.
  std::int64_t anomalous = 0;
  std::array<AnomalyCount, kAnomalies> anomalies; ///< by Anomaly
  /// Largest error / bound; for `exact` 0 or infinity.
  double used = 0;
  double worst_abs = 0; ///< infinity where only one side is finite or the non-finite ones differ
  double worst_rel = 0; ///< against |want|, over the elements where that is not 0
  /// Norm of the error / norm of want, over the elements where both are finite; infinity where want
  /// is all zero and got is not.
  double relative_l2 = 0;
  std::optional<std::int64_t> ulp_max;
  /// 99 of 100 elements are at most so many steps apart; above 255 rounded up to 8 bits.
  std::optional<std::int64_t> ulp_p99;
  /// Elements that are 0, 1, 2 to 3, 4 to 7, ... steps apart, up to the bin of ulp_max.
  std::vector<std::int64_t> ulp_histogram;
  std::optional<std::int64_t> ulp_at; ///< flat index of the first that is ulp_max apart
  std::optional<std::int64_t> first;  ///< flat index of the first mismatch in row-major order
  /// Flat indices of the mismatches, ascending; of more than kKept a sample spread over them all.
  std::vector<std::int64_t> wrong;
  std::vector<AxisCounts> wrong_along; ///< an entry per axis; empty: no mismatch
  /// Flat index of the largest error: in terms of its bound for `derived`, absolute for `exact`.
  std::optional<std::int64_t> worst;

  bool passes() const { return mismatches == 0; }
};

/// What a tensor is held to beside its gate.
struct Limits {
  /// Elements that may be outside the gate: at most so many, and at most that part of those
  /// compared. A NaN or an infinity on one side alone is never among them.
  std::int64_t budget_count = 0;
  double budget_fraction = 0;
  std::optional<double> relative_l2; ///< of Comparison at most; never instead of the gate
};

/// The elements that the budget lets be wrong.
std::int64_t allowed(const Limits& limits, std::int64_t elements);

bool passes(const Comparison& comparison, const Limits& limits);

/// Consecutive elements of two tensors of one shape and element size, with what judges them.
struct Block {
  const std::byte* got;
  const std::byte* want;
  std::int64_t elements;
  const double* got_unrounded = nullptr; ///< none: the stored elements are the values
  const double* want_unrounded = nullptr;
  const double* bound = nullptr;       ///< of Gate::derived, a value an element
  const std::uint8_t* valid = nullptr; ///< of Gate::topk_set: 0 is wrong
  const std::uint8_t* mask = nullptr;  ///< 0 is not compared; none: all are
};

/// Compares two tensors block by block, front to back, for those that do not fit. The result does
/// not depend on where blocks begin.
class Comparer {
public:
  Comparer(Gate gate, Dtype dtype, Shape shape);
  ~Comparer();

  void add(const Block& block);
  Comparison finish(); ///< after the last element

private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Both sides have the same shape and element size.
Comparison compare_exact(const Elements& got, const Elements& want, const Mask& mask);

/// `bound` has one value an element. Non-finite values come first: NaN must meet NaN and an
/// infinity the same infinity; a finite `want` beyond the storage dtype counts as that infinity.
Comparison compare_derived(const Elements& got, const Elements& want,
                           const std::vector<double>& bound, const Mask& mask);

/// Element i is right where valid[i] != 0, whatever the other side holds.
Comparison compare_valid(const Elements& got, const Elements& want, const Mask& valid,
                         const Mask& mask);

/// Index along each axis of the element at a flat index.
std::vector<std::int64_t> coordinates(const Shape& shape, std::int64_t flat);

} // namespace dsakit::harness
