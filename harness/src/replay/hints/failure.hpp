// What a hint is made from: a failed comparison, its wrong elements beside what they should be.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "../judge.hpp"

namespace dsakit::harness {

/// A pattern says nothing about fewer wrong elements.
inline constexpr std::size_t kEnough = 4;
/// A pattern of places is named where wrong elements fall into it by accident less often than that.
inline constexpr double kByChance = 0.02;

/// "the recorded values" or "the kernel's values"; by Case::got and Case::want.
std::string whose(const Case& c);

/// The wrong elements that Comparison kept.
class WrongElements {
public:
  WrongElements(const Case& c, const Judged& judged);

  const std::vector<std::int64_t>& at() const { return at_; }
  const Tensor& odd_tensor() const { return *odd_.tensor; }
  const Tensor& right_tensor() const { return *right_.tensor; }
  const Shape& shape() const { return right_.tensor->shape; }
  Dtype dtype() const { return odd_.tensor->dtype; }
  double odd(std::int64_t i) const { return odd_.at(i); }
  double right(std::int64_t i) const { return right_.at(i); }
  /// Stored bits.
  std::uint64_t odd_bits(std::int64_t i) const { return bits(*odd_.tensor, i); }
  std::uint64_t right_bits(std::int64_t i) const { return bits(*right_.tensor, i); }
  static std::uint64_t bits(const Tensor& tensor, std::int64_t i);

  /// Relative difference of two values that are meant to be one: bf16 rounds both.
  double slack() const { return dtype() == Dtype::float32 ? 1e-3 : 0x1p-7; }

  /// Enough of them, and nine of ten fit: a few accidents do not hide a pattern.
  template <class Fits>
  bool nearly_all(Fits fits, std::size_t enough = kEnough) const {
    if (at_.size() < enough) return false;
    std::size_t misses = at_.size() / 10;
    for (const std::int64_t i : at_)
      if (!fits(i) && misses-- == 0) return false;
    return true;
  }

  bool have_ratio(double ratio) const {
    return nearly_all([&](std::int64_t i) {
      const double other = right(i);
      return other != 0 && std::abs(odd(i) / other / ratio - 1) < slack();
    });
  }

private:
  const Elements& odd_;
  const Elements& right_;
  const std::vector<std::int64_t>& at_; ///< ascending
};

struct Failure {
  Failure(const Case& failed, const Judged& how, const OperationData& of, const Expected& what)
      : c(failed), judged(how), data(of), expected(what), wrong(failed, how) {}

  const Case& c;
  const Judged& judged;
  const OperationData& data;
  const Expected& expected;
  WrongElements wrong;

  /// "the kernel's values from [1, 2] on"
  std::string whose_from() const;
};

/// A hint, or nothing where its pattern does not fit.
using Hint = std::string;

// hint_values.cpp: what the wrong elements hold.
Hint unwritten(const Failure& f);
Hint logarithm(const Failure& f);
Hint packed_codes(const Failure& f);
Hint half_of_a_conversion(const Failure& f);
Hint factor(const Failure& f);
Hint factor_of_each_line(const Failure& f);
Hint rounding(const Failure& f);
Hint not_a_number(const Failure& f);

// hint_scales.cpp: scales of quantised groups, in tensors and in cache pages.
Hint scales(const Failure& f);

// hint_selection.cpp: positions and slots.
Hint selection(const Failure& f);
Hint rows_of_more_than_k(const Failure& f);

// hint_places.cpp: where the wrong elements lie, and where their values come from.
Hint from_elsewhere(const Failure& f);
Hint one_group_of_heads(const Failure& f);
Hint one_place_of_each_page(const Failure& f);

} // namespace dsakit::harness
