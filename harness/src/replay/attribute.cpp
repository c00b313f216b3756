#include "attribute.hpp"

namespace dsakit::harness {
namespace {

/// A switched point explains an error when it leaves less than that part of it, in the norm.
constexpr double kLeft = 0.25;

} // namespace

Result<std::optional<ReportAttribution>> attribute(const OperationAdapter& adapter, const Case& c,
                                                   const Judged& judged, ReferenceRun& reference) {
  const OperationData& data = reference.data();
  const bool got_is_reference = c.got.kind == Producer::Kind::reference;
  const std::vector<std::string> points = adapter.rounding_points(data);
  if (c.gate != Gate::derived || points.empty() ||
      (!got_is_reference && c.want.kind != Producer::Kind::reference))
    return std::optional<ReportAttribution>();
  const Elements& exact = got_is_reference ? judged.got : judged.want;
  const Elements& other = got_is_reference ? judged.want : judged.got;
  const Producer& producer = got_is_reference ? c.want : c.got;
  const auto bound = reference.bound(c.output, producer.accumulation);
  DSAKIT_TRY(bound);
  const auto expected = reference.expected(c.output);
  DSAKIT_TRY(expected);

  const auto tier = [&](std::optional<std::size_t> switched) -> Result<Values> {
    auto outputs = adapter.simulated(data, switched);
    DSAKIT_TRY(outputs);
    return Values{std::move(outputs->at(c.output)), {}};
  };
  const auto distance = [&](const Elements& a, const Elements& b) {
    return compare_derived(a, b, **bound, (*expected)->mask);
  };
  const auto simulated = tier(std::nullopt);
  DSAKIT_TRY(simulated);
  const Comparison as_it_is = distance(other, *simulated);
  ReportAttribution found;
  found.implementation = as_it_is.used;
  found.format = distance(*simulated, exact).used;
  double least = kLeft * as_it_is.relative_l2;
  for (std::size_t point = 0; point < points.size(); ++point) {
    const auto switched = tier(point);
    DSAKIT_TRY(switched);
    const Comparison left = distance(other, *switched);
    found.points.push_back({points[point], left.used});
    if (left.relative_l2 >= least) continue;
    least = left.relative_l2;
    found.explained_by = points[point];
  }
  return std::optional(std::move(found));
}

} // namespace dsakit::harness
