#include "same_inputs.hpp"

#include "dsakit/harness/compare.hpp"

namespace dsakit::harness {

std::string form_of(const Tensor& tensor) {
  return to_string(tensor.shape) + " of " + std::string(dsakit::name(tensor.dtype));
}

std::string differ(const std::string& got, const std::string& want) {
  return "found " + got + " and " + want + ", want the same";
}

std::string differ(const std::string& what, const std::string& got, const std::string& want) {
  return what + ": " + differ(got, want);
}

Status same_contract(const ContractValues& got, const ContractValues& want, std::int64_t step) {
  const std::string where = "contract of step " + std::to_string(step) + ", key ";
  for (const auto& [key, value] : got) {
    const auto other = want.find(key);
    if (other == want.end()) return bad_input(differ(where + key, value, "no value"));
    if (other->second != value) return bad_input(differ(where + key, value, other->second));
  }
  for (const auto& [key, value] : want)
    if (!got.contains(key)) return bad_input(differ(where + key, "no value", value));
  return {};
}

std::string input_differs(const Tensor& got, const Tensor& want, ReportLine& line) {
  if (got.shape != want.shape || got.dtype != want.dtype)
    return differ(form_of(got), form_of(want));
  const Comparison comparison = compare_exact(Elements(got), Elements(want), {});
  if (!comparison.first) return {};
  line.elements = comparison.elements;
  line.mismatches = comparison.mismatches;
  line.first_at = coordinates(got.shape, *comparison.first);
  line.got = Sample{element(got, *comparison.first), hex(got, *comparison.first)};
  line.want = Sample{element(want, *comparison.first), hex(want, *comparison.first)};
  return differ(line.got->hex, line.want->hex);
}

} // namespace dsakit::harness
