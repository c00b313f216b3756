#include "judge.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../operations/topk_rows.hpp"
#include "quantised.hpp"

namespace dsakit::harness {
namespace {

/// A producer's elements, seen with the dtype of `expected`: bytes recorded without an encoding are
/// the codes that the contract says.
Result<Elements> elements_of(const Producer& producer, const Expected& expected) {
  if (producer.kind == Producer::Kind::reference) return Elements(expected.value);
  const Tensor& wanted = expected.value.tensor;
  const Tensor& found = *producer.tensor;
  if (found.elements() != wanted.elements() || size_of(found.dtype) != size_of(wanted.dtype))
    return bad_input(std::string(name(producer.kind)) + " " + expected.output + ": found " +
                     to_string(found.shape) + " of " + std::string(dsakit::name(found.dtype)) +
                     ", want " + to_string(wanted.shape) + " of " +
                     std::string(dsakit::name(wanted.dtype)));
  return Elements::as(found, wanted.dtype);
}

/// What of an output is compared: all that the operation defines, until something is taken out. A
/// byte an element is much of a cache, so there is a copy only then.
class Compared {
public:
  explicit Compared(const Expected& expected)
      : whole_(expected.mask),
        elements_(static_cast<std::size_t>(expected.value.tensor.elements())) {}

  const Mask& mask() const { return changed_ ? *changed_ : whole_; }
  bool has(std::size_t i) const { return mask().empty() || mask()[i] != 0; }
  void take_out(std::size_t i) {
    if (!changed_) changed_ = whole_.empty() ? Mask(elements_, 1) : whole_;
    (*changed_)[i] = 0;
  }

private:
  const Mask& whole_; ///< empty: all
  std::size_t elements_;
  std::optional<Mask> changed_;
};

/// Takes out what a recorded producer was free to leave, and left.
void leave_out(Compared& compared, const Tensor& recorded, const Expected& expected) {
  const std::size_t size = size_of(recorded.dtype);
  for (std::size_t i = 0; i < expected.may_be_left.size(); ++i)
    if (expected.may_be_left[i] &&
        (!expected.before || std::memcmp(recorded.bytes.data() + i * size,
                                         expected.before->bytes.data() + i * size, size) == 0))
      compared.take_out(i);
}

Status add_bound(std::vector<double>& sum, const Producer& producer, const std::string& output,
                 ReferenceRun& reference) {
  if (producer.kind == Producer::Kind::reference) return {};
  const auto bound = reference.bound(output, producer.accumulation);
  DSAKIT_TRY(bound);
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] += (**bound)[i];
  return {};
}

/// Takes out what `producer` may not hold. The reference's own answer is right.
Status keep_valid(Mask& valid, const Producer& producer, ReferenceRun& reference) {
  if (producer.kind == Producer::Kind::reference) return {};
  const auto of_producer =
      reference.valid_set(*producer.tensor, producer.band ? *producer.band : std::vector<double>{});
  DSAKIT_TRY(of_producer);
  for (std::size_t i = 0; i < valid.size(); ++i)
    valid[i] &= (*of_producer)[i];
  return {};
}

/// Takes out the elements that the two references do not agree on; returns how many.
std::int64_t leave_out_moved(Compared& compared, const Expected& chained, const Expected& fed) {
  const Tensor& ours = chained.value.tensor;
  const std::size_t size = size_of(ours.dtype);
  std::int64_t moved = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ours.elements()); ++i)
    if (compared.has(i) && std::memcmp(ours.bytes.data() + i * size,
                                       fed.value.tensor.bytes.data() + i * size, size) != 0) {
      compared.take_out(i);
      ++moved;
    }
  return moved;
}

/// What the difference of the inputs makes of the output, measured by the reference.
void add_propagated(std::vector<double>& bound, const Expected& chained, const Expected& fed) {
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const auto element = static_cast<std::int64_t>(i);
    const double difference = std::abs(chained.value.at(element) - fed.value.at(element));
    if (!std::isnan(difference)) bound[i] += difference; // NaN: the same infinity, or NaN, in both
  }
}

/// One side's codes and scales; none where the output is not quantised.
std::optional<Parts> parts_of(const Producer& producer, const std::string& output,
                              const Elements& values, ReferenceRun& reference) {
  const Tensor* scales = producer.scales;
  if (producer.kind == Producer::Kind::reference && !scales_output(output).empty())
    if (const auto expected = reference.expected(scales_output(output)))
      scales = &(*expected)->value.tensor;
  return take_apart(reference.data(), output, *values.tensor, scales);
}

std::optional<ReportQuantised> quantised(const Case& c, const Judged& judged, const Mask& mask,
                                         ReferenceRun& reference) {
  const auto got = parts_of(c.got, c.output, judged.got, reference);
  const auto want = parts_of(c.want, c.output, judged.want, reference);
  if (!got || !want) return std::nullopt;
  // The mask of a cache is of its bytes: it says nothing of records.
  const bool of_codes = mask.size() == static_cast<std::size_t>(want->codes.elements());
  return compare_parts(*got, *want, of_codes ? mask : Mask{});
}

std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

} // namespace

Result<const Expected*> ReferenceRun::expected(const std::string& output) {
  if (!outputs_) outputs_ = adapter_.reference(data_);
  DSAKIT_TRY(*outputs_);
  for (const Expected& expected : **outputs_)
    if (expected.output == output) return &expected;
  return bad_input(data_.id.operation + ": found output " + output + ", which it does not have");
}

Result<const std::vector<double>*> ReferenceRun::bound(const std::string& output,
                                                       Accumulation accumulation) {
  const auto key = std::pair(output, accumulation);
  if (const auto known = bounds_.find(key); known != bounds_.end()) return &known->second;
  auto bound = adapter_.bound(data_, output, accumulation);
  DSAKIT_TRY(bound);
  return &(bounds_[key] = std::move(*bound));
}

std::string_view name(Producer::Kind kind) {
  constexpr std::array<std::string_view, 3> names = {"reference", "kernel", "recorded"};
  return names[static_cast<std::size_t>(kind)];
}

Result<Judged> judge(const Case& c, ReferenceRun& reference, ReferenceRun* fed) {
  const auto expected = reference.expected(c.output);
  DSAKIT_TRY(expected);
  auto got = elements_of(c.got, **expected);
  DSAKIT_TRY(got);
  auto want = elements_of(c.want, **expected);
  DSAKIT_TRY(want);

  Compared compared(**expected);
  const auto elements = static_cast<std::size_t>(got->tensor->elements());
  for (const Producer& producer : {c.got, c.want})
    if (producer.kind == Producer::Kind::recorded)
      leave_out(compared, *producer.tensor, **expected);

  const Expected* of_recorded = nullptr;
  if (fed) {
    const auto found = fed->expected(c.output);
    DSAKIT_TRY(found);
    of_recorded = *found;
  }
  ReferenceRun& of_want = fed ? *fed : reference;
  std::int64_t moved = 0;
  Comparison comparison;
  if (c.gate == Gate::exact) {
    if (fed) moved = leave_out_moved(compared, **expected, *of_recorded);
    comparison = compare_exact(*got, *want, compared.mask());
  } else if (c.gate == Gate::topk_set) {
    Mask valid(elements, 1);
    DSAKIT_TRY(keep_valid(valid, c.got, reference));
    DSAKIT_TRY(keep_valid(valid, c.want, of_want));
    comparison = compare_valid(*got, *want, valid, compared.mask());
  } else {
    const bool one_side = !fed && (c.got.kind == Producer::Kind::reference ||
                                   c.want.kind == Producer::Kind::reference);
    if (one_side) {
      const Producer& producer = c.got.kind == Producer::Kind::reference ? c.want : c.got;
      const auto bound = reference.bound(c.output, producer.accumulation);
      DSAKIT_TRY(bound);
      comparison = compare_derived(*got, *want, **bound, compared.mask());
    } else {
      std::vector<double> bound(elements);
      DSAKIT_TRY(add_bound(bound, c.got, c.output, reference));
      DSAKIT_TRY(add_bound(bound, c.want, c.output, of_want));
      if (fed) add_propagated(bound, **expected, *of_recorded);
      comparison = compare_derived(*got, *want, bound, compared.mask());
    }
  }
  Judged judged{std::move(comparison), moved, std::move(*got), std::move(*want)};
  judged.axes = axes_of(reference.data(), c.output, judged.want.tensor->shape);
  if (!judged.comparison.passes())
    judged.quantised = quantised(c, judged, compared.mask(), reference);
  if (reference.data().id.operation == "topk" && c.output == "topk_indices")
    judged.ties = count_ties(reference.data());
  return judged;
}

std::optional<Accumulation> passing_accumulation(const Case& c, ReferenceRun& reference) {
  if (c.gate != Gate::derived ||
      (c.got.kind != Producer::Kind::recorded && c.want.kind != Producer::Kind::recorded))
    return std::nullopt;
  constexpr std::array tightest_first = {Accumulation::exact, Accumulation::fp32,
                                         Accumulation::sm90_wgmma_fp8};
  for (const Accumulation accumulation : tightest_first) {
    Case other = c;
    for (Producer* producer : {&other.got, &other.want})
      if (producer->kind == Producer::Kind::recorded) producer->accumulation = accumulation;
    if (const auto judged = judge(other, reference); judged && judged->comparison.passes())
      return accumulation;
  }
  return std::nullopt;
}

std::string tightest_gate(const Comparison& comparison) {
  if (comparison.passes()) return "relative_l2 " + three_digits(comparison.relative_l2);
  if (std::isinf(comparison.worst_abs)) return "none: non-finite values differ";
  return "absolute error " + three_digits(comparison.worst_abs);
}

std::string tightest_gate(const Case& c, const Comparison& comparison, ReferenceRun& reference) {
  if (c.gate == Gate::exact || comparison.passes() || std::isinf(comparison.worst_abs))
    return tightest_gate(comparison);
  if (c.gate == Gate::topk_set) return "none: the set is wrong";
  if (const auto accumulation = passing_accumulation(c, reference))
    return "derived with accumulation " + std::string(dsakit::name(*accumulation));
  return three_digits(comparison.used) + " x derived";
}

void fill(ReportLine& line, const Measured& measured) {
  const auto& [gate, limits, comparison, dtype, shape, axes] = measured;
  line.verdict = passes(comparison, limits) ? Verdict::pass : Verdict::fail;
  line.gate = name(gate);
  line.used = comparison.used;
  line.elements = comparison.elements;
  line.mismatches = comparison.mismatches;
  line.allowed = allowed(limits, comparison.elements);
  line.dtype = dsakit::name(dtype);
  line.worst_abs = comparison.worst_abs;
  line.worst_rel = comparison.worst_rel;
  if (comparison.ulp_max) line.relative_l2 = comparison.relative_l2; // not of integers
  line.relative_l2_limit = limits.relative_l2;
  line.ulp_max = comparison.ulp_max;
  line.ulp_p99 = comparison.ulp_p99;
  line.ulp_histogram = comparison.ulp_histogram;
  if (comparison.ulp_at) line.ulp_at = coordinates(shape, *comparison.ulp_at);
  for (std::size_t kind = 0; kind < kAnomalies; ++kind) {
    const AnomalyCount& count = comparison.anomalies[kind];
    if (count.got + count.want == 0) continue;
    ReportAnomaly anomaly{
        std::string(name(static_cast<Anomaly>(kind))), count.got, count.want, count.apart, {}};
    if (count.first) anomaly.first_at = coordinates(shape, *count.first);
    line.anomalies.push_back(std::move(anomaly));
  }
  line.map = map_of(comparison, shape, axes);
  if (comparison.first) line.first_at = coordinates(shape, *comparison.first);
  if (comparison.worst) line.worst_at = coordinates(shape, *comparison.worst);
}

void fill(ReportLine& line, const Case& c, const Judged& judged) {
  const Comparison& comparison = judged.comparison;
  const Shape& shape = judged.want.tensor->shape;
  const auto sample = [&](const Elements& values, std::int64_t i) {
    return Sample{c.gate == Gate::derived ? values.at(i) : element(*values.tensor, i),
                  hex(*values.tensor, i)};
  };
  fill(line, {c.gate, c.limits, comparison, judged.want.tensor->dtype, shape, judged.axes});
  line.moved = judged.moved;
  for (const std::int64_t i : samples_of(comparison))
    line.samples.push_back({coordinates(shape, i), sample(judged.got, i), sample(judged.want, i)});
  line.quantised = judged.quantised;
  line.ties = judged.ties;
  if (const auto shown = comparison.first ? comparison.first : comparison.worst) {
    line.got = sample(judged.got, *shown);
    line.want = sample(judged.want, *shown);
  }
}

} // namespace dsakit::harness
