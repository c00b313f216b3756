// Which rounding explains an error: the simulated tier with one of its rounding points switched.
#pragma once

#include "judge.hpp"

namespace dsakit::harness {

/// Where one side is the reference and its operation has rounding points. Nothing for a gate other
/// than derived.
Result<std::optional<ReportAttribution>> attribute(const OperationAdapter& adapter, const Case& c,
                                                   const Judged& judged, ReferenceRun& reference);

} // namespace dsakit::harness
