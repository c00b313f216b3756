// One candidate of a sweep, gated and timed by a child process.
#pragma once

#include <nlohmann/json.hpp>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/sweep.hpp"

namespace dsakit::harness {

/// The line of a candidate's result, times or why it is disqualified. A failure ends the sweep: the
/// device is not there, or `bench` does not understand the candidate, or was interrupted.
Result<nlohmann::json> try_candidate(const SweepCandidate& candidate, const SweepOptions& options);

} // namespace dsakit::harness
