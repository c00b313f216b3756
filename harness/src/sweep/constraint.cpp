#include "constraint.hpp"

#include <charconv>

#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

using SweepValues = std::map<std::string, std::int64_t, std::less<>>;

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ')
    text.remove_suffix(1);
  return text;
}

Result<std::int64_t> factor_of(std::string_view text, const SweepValues& values) {
  if (const auto named = values.find(text); named != values.end()) return named->second;
  std::int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() && number >= 0)
    return number;
  std::string names;
  for (const auto& [name, value] : values)
    names += name + ", ";
  return bad_input("found " + in_quotes(text) + ", want a number or one of " +
                   names.substr(0, names.size() - std::min<std::size_t>(2, names.size())));
}

Result<std::int64_t> product_of(std::string_view text, const SweepValues& values) {
  std::int64_t product = 1;
  while (true) {
    const auto star = text.find('*');
    const auto factor = factor_of(without_blanks(text.substr(0, star)), values);
    DSAKIT_TRY(factor);
    if (__builtin_mul_overflow(product, *factor, &product))
      return bad_input("found a product beyond 2^63, want a smaller one");
    if (star == std::string_view::npos) return product;
    text.remove_prefix(star + 1);
  }
}

} // namespace

Result<bool> holds(std::string_view constraint, const SweepValues& values) {
  const auto at = constraint.find_first_of("<>=!");
  if (at == std::string_view::npos)
    return bad_input("found " + in_quotes(constraint) + ", want a comparison such as a*2 <= b");
  const bool two = constraint.substr(at + 1, 1) == "=";
  const std::string_view comparison = constraint.substr(at, two ? 2 : 1);
  const auto left = product_of(constraint.substr(0, at), values);
  DSAKIT_TRY(left);
  const auto right = product_of(constraint.substr(at + comparison.size()), values);
  DSAKIT_TRY(right);
  if (comparison == "<=") return *left <= *right;
  if (comparison == ">=") return *left >= *right;
  if (comparison == "<") return *left < *right;
  if (comparison == ">") return *left > *right;
  if (comparison == "==") return *left == *right;
  if (comparison == "!=") return *left != *right;
  return bad_input("found " + in_quotes(comparison) + ", want <=, <, >=, >, == or !=");
}

} // namespace dsakit::harness
