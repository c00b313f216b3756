#include "mend.hpp"

#include <cmath>
#include <cstring>
#include <map>

#include "../operations/launch.hpp"
#include "../replay/names.hpp"

namespace dsakit::harness {
namespace {

using ByName = std::map<std::string, Tensor>;

OperationData data_of(const Problem& problem, const Pair& pair) {
  OperationData data = problem.data();
  if (!pair.scale_read.empty()) data.contract["mla_scale_read"] = pair.scale_read;
  return data;
}

std::optional<ByName> reference_of(const Problem& problem, const Pair& pair) {
  auto expected = find_adapter(problem.id.operation)->reference(data_of(problem, pair));
  if (!expected) return std::nullopt;
  ByName outputs;
  for (Expected& output : *expected)
    outputs[output.output] = std::move(output.value.tensor);
  return outputs;
}

/// Empty where the operation derives none.
std::vector<double> bound_of(const Problem& problem, const Pair& pair) {
  const auto bound = find_adapter(problem.id.operation)
                         ->bound(data_of(problem, pair), pair.output, pair.accumulation);
  return bound ? *bound : std::vector<double>{};
}

bool is_number(Dtype dtype) {
  return dtype == Dtype::float32 || dtype == Dtype::bfloat16 || dtype == Dtype::float16;
}

void store(Tensor& tensor, std::int64_t i, double value) {
  if (tensor.dtype == Dtype::float32) {
    tensor.as<float>()[i] = static_cast<float>(value);
    return;
  }
  Tensor one(tensor.dtype, {1});
  round_to(one, {value});
  tensor.as<std::uint16_t>()[i] = *one.as<std::uint16_t>();
}

/// One tensor of the problem as it was and as it is.
struct Sides {
  const Tensor& wrong;      ///< as recorded
  const Tensor& right_then; ///< the reference's
  const Tensor& right_now;
  std::vector<double> bound_then; ///< empty: held to the reference's very bits
  std::vector<double> bound_now;
};

/// Another number, or none where bits are all that can differ.
std::optional<double> number_with_error(const Sides& s, Carried carried, std::int64_t i) {
  const double wrong = element(s.wrong, i), then = element(s.right_then, i),
               now = element(s.right_now, i);
  if (!is_number(s.wrong.dtype) || !std::isfinite(wrong) || !std::isfinite(then) ||
      !std::isfinite(now))
    return std::nullopt;
  const auto place = static_cast<std::size_t>(i);
  if (!s.bound_then.empty() && std::abs(wrong - then) <= s.bound_then[place])
    return now; // it was rounding
  if (carried == Carried::ratio && then != 0) return now * (wrong / then);
  if (s.bound_then.empty()) return std::nullopt;
  const bool grows = s.bound_then[place] > 0 && s.bound_now[place] > 0;
  return now + (wrong - then) * (grows ? s.bound_now[place] / s.bound_then[place] : 1);
}

/// Gives element i of `to`, which is the reference's, its error.
void carry(const Sides& s, Carried carried, std::int64_t i, Tensor& to) {
  const std::size_t size = size_of(to.dtype), at = static_cast<std::size_t>(i) * size;
  if (std::memcmp(s.wrong.bytes.data() + at, s.right_then.bytes.data() + at, size) == 0) return;
  if (const auto number = number_with_error(s, carried, i)) {
    store(to, i, *number);
    return;
  }
  for (std::size_t b = at; b < at + size; ++b)
    to.bytes[b] ^= s.wrong.bytes[b] ^ s.right_then.bytes[b];
}

} // namespace

bool mend_outputs(const Pair& pair, Gate gate, Carried carried, const Problem& from, Problem& to) {
  const auto now = reference_of(to, pair);
  if (!now) return false;
  for (auto& [name, recorded] : to.tensors.outputs)
    recorded.tensor.bytes = now->at(output_of(name, recorded.attributes)).bytes;
  if (!pair.of_recorded()) return true;

  const auto then = reference_of(from, pair);
  if (!then) return false;
  const Tensor& wrong = from.tensors.outputs.at(pair.tensor).tensor;
  Tensor& mended = to.tensors.outputs.at(pair.tensor).tensor;
  const Tensor& right_then = then->at(pair.output);
  const Tensor& right_now = now->at(pair.output);
  if (right_then.bytes == right_now.bytes) { // as for a selection of scores in the same order
    mended.bytes = wrong.bytes;
    return true;
  }
  Sides sides{wrong, right_then, right_now, {}, {}};
  if (gate == Gate::derived) {
    sides.bound_then = bound_of(from, pair);
    sides.bound_now = bound_of(to, pair);
  }
  for (std::int64_t i = 0; i < mended.elements(); ++i)
    carry(sides, carried, i, mended);
  return true;
}

} // namespace dsakit::harness
