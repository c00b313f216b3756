// Comparison of two tensors, element by element, under a gate (spec 8).
#pragma once

#include <cstdint>
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

/// Value of element i; an fp4 pair and an integer count as the number that they store.
double element(const Tensor& tensor, std::int64_t i);

/// The stored bits of element i: "0x3f800000".
std::string hex(const Tensor& tensor, std::int64_t i);

/// Steps between two neighbouring values of the storage dtype, from a to b, never negative;
/// none where the dtype has no such order (integers, fp4 pairs) or a value is NaN.
std::optional<std::int64_t> ulps_between(const Tensor& a, const Tensor& b, std::int64_t i);

struct Comparison {
  static constexpr std::size_t kKept = 4096; ///< enough to see a pattern
  std::int64_t elements = 0;                 ///< compared
  std::int64_t mismatches = 0;               ///< outside the gate
  /// Largest error / bound; for `exact` 0 or infinity.
  double used = 0;
  double worst_abs = 0; ///< infinity where only one side is finite or the non-finite ones differ
  double worst_rel = 0; ///< against |want|, over the elements where that is not 0
  std::optional<std::int64_t> ulp_max;
  std::optional<std::int64_t> first; ///< flat index of the first mismatch in row-major order
  /// Flat indices of the mismatches, ascending; of more than kKept a sample spread over them all.
  std::vector<std::int64_t> wrong;
  /// Flat index of the largest error: in terms of its bound for `derived`, absolute for `exact`.
  std::optional<std::int64_t> worst;

  bool passes() const { return mismatches == 0; }
};

/// Both sides have the same shape and element size.
Comparison compare_exact(const Values& got, const Values& want, const Mask& mask);

/// `bound` has one value an element. Non-finite values come first: NaN must meet NaN and an
/// infinity the same infinity; a finite `want` beyond the storage dtype counts as that infinity.
Comparison compare_derived(const Values& got, const Values& want, const std::vector<double>& bound,
                           const Mask& mask);

/// Element i is right where valid[i] != 0, whatever the other side holds.
Comparison compare_valid(const Values& got, const Values& want, const Mask& valid,
                         const Mask& mask);

/// Index along each axis of the element at a flat index.
std::vector<std::int64_t> coordinates(const Shape& shape, std::int64_t flat);

} // namespace dsakit::harness
