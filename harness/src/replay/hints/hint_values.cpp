// Hints from what the wrong elements hold.
#include <algorithm>
#include <array>
#include <map>
#include <numbers>
#include <tuple>

#include "../../operations/launch.hpp"
#include "../names.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "failure.hpp"

namespace dsakit::harness {
namespace {

bool is_float(Dtype dtype) {
  return dtype != Dtype::int32 && dtype != Dtype::int64 && dtype != Dtype::uint8;
}

bool contract_has(const Failure& f, const std::string& key) {
  const auto keys = split_names(f.data.operation().contract);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool holds_e2m1(const Failure& f) {
  return f.wrong.dtype() == Dtype::float4_e2m1fn_x2 ||
         (f.wrong.dtype() == Dtype::uint8 && f.data.operation().format == "mxfp4");
}

/// Both e2m1 codes of the byte fit (odd code, right code); one at least differs.
template <class Fits>
bool both_codes(const WrongElements& wrong, std::int64_t i, Fits fits) {
  const std::uint64_t odd = wrong.odd_bits(i), right = wrong.right_bits(i);
  for (const int shift : {0, 4}) {
    const auto a = odd >> shift & 0xF, b = right >> shift & 0xF;
    if (a != b && !fits(a, b)) return false;
  }
  return true;
}

/// Every row, along the first axis, in which something can differ by a factor has a wrong element.
bool all_rows_wrong(const Failure& f) {
  const Comparison& comparison = f.judged.comparison;
  const Tensor& right = f.wrong.right_tensor();
  if (comparison.wrong_along.empty() || right.shape.empty()) return true;
  const AxisCounts& rows = comparison.wrong_along.front();
  const std::int64_t width = right.elements() / right.shape[0];
  for (std::int64_t row = 0; row < right.shape[0]; ++row) {
    if (rows.wrong[static_cast<std::size_t>(row / rows.step)] > 0) continue;
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      const bool compared =
          f.expected.mask.empty() || f.expected.mask[static_cast<std::size_t>(i)] != 0;
      if (compared && f.wrong.right(i) != 0 && std::isfinite(f.wrong.right(i))) return false;
    }
  }
  return true;
}

} // namespace

Hint unwritten(const Failure& f) {
  const WrongElements& wrong = f.wrong;
  if (f.expected.before && wrong.nearly_all([&](std::int64_t i) {
        return wrong.odd_bits(i) == WrongElements::bits(*f.expected.before, i);
      }))
    return f.whose_from() + " are what was there before: unwritten or stale";
  std::uint64_t poison = 0;
  std::memset(&poison, static_cast<int>(poison_byte(wrong.dtype())), size_of(wrong.dtype()));
  if (f.c.got.kind == Producer::Kind::kernel &&
      wrong.nearly_all([&](std::int64_t i) { return wrong.odd_bits(i) == poison; }, 1))
    return f.whose_from() + " are the poison of the output: unwritten";
  // An id 0 is a right one.
  if (is_float(wrong.dtype()) &&
      wrong.nearly_all([&](std::int64_t i) { return wrong.odd(i) == 0; }))
    return f.whose_from() + " are zero: unwritten or a cleared tail";
  return {};
}

Hint logarithm(const Failure& f) {
  if (f.c.output != "lse") return {};
  for (const auto& [ratio, base, of] :
       {std::tuple(std::numbers::log2e, "2", "e"), std::tuple(std::numbers::ln2, "e", "2")})
    if (f.wrong.have_ratio(ratio))
      return whose(f.c) + " are logarithms to base " + base + ", not " + of +
             "? The contract field is lse_base";
  return {};
}

/// v_cvt_pk_fp8_f32 writes one half of a word: two codes of each four.
Hint half_of_a_conversion(const Failure& f) {
  const WrongElements& wrong = f.wrong;
  if (size_of(wrong.dtype()) != 1 || f.wrong.shape().empty() || f.wrong.shape().back() % 4 != 0)
    return {};
  bool moved = false;
  if (!wrong.nearly_all(
          [&](std::int64_t i) {
            if (i % 4 >= 2) return wrong.odd_bits(i) == 0;
            const bool fits = wrong.odd_bits(i) == wrong.right_bits(i + 2);
            moved |= fits;
            return fits;
          },
          4 * kEnough) ||
      !moved)
    return {};
  return whose(f.c) +
         " have the last two of each four codes in place of the first two, and 0 after "
         "them: two conversions into the same half of a word?";
}

Hint packed_codes(const Failure& f) {
  if (!holds_e2m1(f)) return {};
  const WrongElements& wrong = f.wrong;
  const std::string values = whose(f.c);
  if (wrong.nearly_all([&](std::int64_t i) {
        const std::uint64_t right = wrong.right_bits(i);
        return wrong.odd_bits(i) == ((right << 4 | right >> 4) & 0xFF);
      }))
    return values +
           " have the halves of each byte exchanged: is the even element in the high nibble?";
  if (wrong.dtype() == Dtype::uint8) return {}; // codes and scales of a page look alike
  if (wrong.nearly_all([&](std::int64_t i) {
        return both_codes(wrong, i, [](auto a, auto b) { return a == 0 && b == 8; });
      }))
    return values + " are +0 where -0 belongs: the sign of a small negative element is lost";
  if (wrong.nearly_all([&](std::int64_t i) {
        return both_codes(wrong, i, [](auto a, auto b) { return a == b + 1; });
      }))
    return values + " are codes one step further from 0: do ties go away from zero, not to even?";
  return {};
}

Hint factor(const Failure& f) {
  const WrongElements& wrong = f.wrong;
  if (!is_float(wrong.dtype())) return {};
  // Scales of some groups alone are hint_scales.cpp's.
  if (f.c.output.ends_with("_scale") &&
      f.judged.comparison.mismatches < f.judged.comparison.elements)
    return {};
  const std::string are = whose(f.c) + " are ";
  const char* encoding = contract_has(f, "index_fp8_encoding") ? "index_fp8_encoding"
                         : contract_has(f, "mla_fp8_encoding") ? "mla_fp8_encoding"
                                                               : nullptr;
  for (const auto& [ratio, text] :
       {std::pair(0.25, "0.25"), std::pair(0.5, "0.5"), std::pair(2.0, "2"), std::pair(4.0, "4")})
    if (wrong.have_ratio(ratio))
      return are + text + " times what they should be" +
             (!all_rows_wrong(f) ? ", in some rows alone: a scale of these rows off by an exponent"
              : encoding
                  ? std::string(": ") +
                        (ratio < 1 ? "e4m3fn read as e4m3fnuz" : "e4m3fnuz read as e4m3fn") +
                        "? The contract field is " + encoding
                  : ": a format read with the bias of another, or a scale off by an exponent");
  const Tensor* weights = f.data.optional_input("index_weights");
  if (!weights) weights = f.data.optional_input("index_weights_folded");
  if (!weights) return {};
  const double heads = std::sqrt(static_cast<double>(weights->shape[1]));
  const double dims = std::sqrt(static_cast<double>(reference::kIndexHeadDim));
  for (const auto& [ratio, scale] : {std::pair(heads, "H^-0.5"), std::pair(dims, "128^-0.5"),
                                     std::pair(heads * dims, "H^-0.5 * 128^-0.5")}) {
    if (wrong.have_ratio(ratio)) return are + "without the scale " + scale;
    if (wrong.have_ratio(1 / ratio)) return are + "scaled twice by " + scale;
  }
  return {};
}

namespace {

/// The elements of each line, and whether a factor of each line's own explains them. `line_of` says
/// which line an element belongs to.
template <class LineOf>
bool lines_have_factors(const WrongElements& wrong, LineOf line_of) {
  std::map<std::int64_t, std::vector<double>> ratios;
  for (const std::int64_t i : wrong.at())
    if (wrong.right(i) != 0 && std::isfinite(wrong.odd(i)))
      ratios[line_of(i)].push_back(wrong.odd(i) / wrong.right(i));
  std::size_t elements = 0, fitting = 0;
  double smallest = INFINITY, largest = -INFINITY;
  for (auto& [line, of_line] : ratios) {
    if (of_line.size() < kEnough) continue;
    std::sort(of_line.begin(), of_line.end());
    const double median = of_line[of_line.size() / 2];
    smallest = std::min(smallest, median);
    largest = std::max(largest, median);
    elements += of_line.size();
    fitting +=
        static_cast<std::size_t>(std::count_if(of_line.begin(), of_line.end(), [&](double ratio) {
          return std::abs(ratio / median - 1) < 2 * wrong.slack();
        }));
  }
  // Most of what is wrong lies in such lines, and their factors differ.
  return 2 * elements >= wrong.at().size() && fitting * 10 >= elements * 9 &&
         elements >= 4 * kEnough && smallest > 0 && largest / smallest - 1 > 8 * wrong.slack();
}

} // namespace

Hint factor_of_each_line(const Failure& f) {
  if (!is_float(f.wrong.dtype()) || f.wrong.shape().size() < 2) return {};
  const std::int64_t last = f.wrong.shape().back();
  if (lines_have_factors(f.wrong, [&](std::int64_t i) { return i / last; }))
    return "each row of " + whose(f.c) +
           " is off by a factor of its own: a sum, a norm or a scale of that row";
  if (lines_have_factors(f.wrong, [&](std::int64_t i) { return i % last; }))
    return "each column of " + whose(f.c) +
           " is off by a factor of its own: the scale of that key or channel";
  return {};
}

Hint rounding(const Failure& f) {
  const WrongElements& wrong = f.wrong;
  if (wrong.dtype() == Dtype::float32 && wrong.nearly_all([&](std::int64_t i) {
        const auto right = reference::float_to_bf16(static_cast<float>(wrong.right(i)));
        return wrong.odd_bits(i) == std::uint64_t{right} << 16;
      }))
    return whose(f.c) + " are the right ones rounded to bf16";
  if (wrong.dtype() == Dtype::bfloat16 && wrong.nearly_all([&](std::int64_t i) {
        const auto right = static_cast<float>(wrong.right(i));
        std::uint32_t bits = 0;
        std::memcpy(&bits, &right, sizeof bits);
        return wrong.odd_bits(i) == bits >> 16 &&
               wrong.odd_bits(i) != reference::float_to_bf16(right);
      }))
    return whose(f.c) + " are cut to bf16, not rounded";
  return {};
}

Hint not_a_number(const Failure& f) {
  const std::string& operation = f.data.id.operation;
  if (operation != "sparse_attention" && operation != "dcp_attention_merge") return {};
  const WrongElements& wrong = f.wrong;
  if (!wrong.nearly_all([&](std::int64_t i) { return std::isnan(wrong.odd(i)); })) return {};
  return whose(f.c) +
         " are NaN: -inf less -inf of a part without a key, an lse of +inf, or 0 times what such a "
         "part holds?";
}

} // namespace dsakit::harness
