// Where two recordings of one run part.
#pragma once

#include "dsakit/harness/bisect.hpp"

namespace dsakit::harness {

/// Feeds both through the reference: what its answers to the two inputs differ by is what the
/// inputs explain of an output.
Result<Bisection> part(const BisectOptions& options, Rules& rules);

} // namespace dsakit::harness
