// Where two recordings of one run part.
#pragma once

#include <string>

#include "dsakit/harness/bisect.hpp"

namespace dsakit::harness {

/// The command that makes a small file of what is wrong in `file`.
std::string next_command(const Environment& environment, const BisectOptions& options,
                         const std::string& file, const std::string& operation);

/// Feeds both through the reference: what its answers to the two inputs differ by is what the
/// inputs explain of an output.
Result<Bisection> part(const BisectOptions& options, Rules& rules);

} // namespace dsakit::harness
