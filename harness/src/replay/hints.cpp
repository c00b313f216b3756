#include "hints.hpp"

#include <limits>

#include "hints/assumption.hpp"
#include "hints/failure.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kMost = 2;

/// Adds a hint, unless there is none or enough are known.
void add(std::vector<Hint>& hints, const Hint& hint) {
  if (!hint.empty() && hints.size() < kMost) hints.push_back(hint);
}

std::string joined(const std::vector<Hint>& hints) {
  std::string text;
  for (const Hint& hint : hints)
    text += (text.empty() ? "" : "; or: ") + hint;
  return text;
}

Hint other_accumulation(const Case& c, ReferenceRun& reference) {
  const auto accumulation = passing_accumulation(c, reference);
  if (!accumulation) return {};
  return "passes with accumulation=" + std::string(dsakit::name(*accumulation)) +
         ": the contract field accumulation may be wrong for this producer";
}

/// What explains the values: under it everything is right.
std::vector<Hint> explanations(const OperationAdapter& adapter, const Failure& f,
                               ReferenceRun& reference) {
  std::vector<Hint> hints;
  if (const auto check = AssumptionCheck::of(adapter, f)) {
    const OperationData data = check->data();
    for (const auto& assumptions : {other_contracts(data), other_inputs(data)})
      for (const Assumption& assumption : assumptions)
        if (hints.size() < kMost && check->explains(assumption))
          add(hints, whose(f.c) + " are " + assumption.hint);
  }
  add(hints, other_accumulation(f.c, reference));
  return hints;
}

} // namespace

std::string Hints::find(const Case& c, const Judged& judged) {
  const auto expected = reference_.expected(c.output);
  if (!expected) return {};
  if (const std::string hint = beyond_fp32(c, judged); !hint.empty()) return hint;
  const Failure f(c, judged, reference_.data(), **expected);
  if (const auto hints = explanations(adapter_, f, reference_); !hints.empty())
    return joined(hints);
  std::vector<Hint> hints;
  add(hints, differs_when_run_again(c));
  for (const auto pattern :
       {selection, unwritten, logarithm, packed_codes, half_of_a_conversion, scales, rounding,
        factor, not_a_number, from_elsewhere, factor_of_each_line, one_place_of_each_page,
        one_group_of_heads, rows_of_more_than_k})
    if (hints.size() < kMost) add(hints, pattern(f));
  return joined(hints);
}

/// Sums of absolute terms are at most 2^19 of their bounds (spec 8). The bound of a latent is cut
/// to the values that it weights, so that its head's lse tells.
std::string Hints::beyond_fp32(const Case& c, const Judged& judged) const {
  if (c.gate != Gate::derived) return {};
  const WrongElements wrong(c, judged);
  const bool latent = reference_.data().id.operation == "sparse_attention" && c.output == "latent";
  const auto bound = reference_.bound(latent ? "lse" : c.output, Accumulation::fp32);
  if (!bound || (*bound)->empty()) return {};
  const auto cells = judged.got.tensor->elements() / std::ssize(**bound);
  constexpr double kLargest = std::numeric_limits<float>::max() * 0x1p-19;
  const auto fits = [&](std::int64_t i) {
    return !std::isfinite(wrong.odd(i)) && std::isfinite(wrong.right(i)) &&
           !((**bound)[static_cast<std::size_t>(i / cells)] < kLargest);
  };
  if (!wrong.nearly_all(fits, 1)) return {};
  return whose(c) + " are not finite where terms are so large that a sum in fp32 leaves its range, "
                    "3.4e38; exact sums do not (docs/comparison.md, Beyond fp32)";
}

std::string Hints::differs_when_run_again(const Case& c) const {
  if (c.got.kind != Producer::Kind::kernel || !rerun_) return {};
  const auto again = rerun_();
  if (!again) return {};
  const auto output = again->outputs.find(c.output);
  if (output == again->outputs.end() || output->second.bytes == c.got.tensor->bytes) return {};
  return "run again, the kernel gives other values: a missing barrier, or something read before "
         "it is written";
}

} // namespace dsakit::harness
