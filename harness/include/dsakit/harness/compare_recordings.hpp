// Comparison of two recordings of the same inputs, without a device.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"

namespace dsakit::harness {

struct CompareOptions {
  std::string got;
  std::string want;
  bool allow_missing = false;
  std::string repeat; ///< further options, as `reproduce` says them again ///< an output on one
                      ///< side only is skipped
};

/// Outputs are matched by step, operation and name, and held to their rules: exact, or derived from
/// the inputs of `got` with the sum of both producers' bounds. bad_input where the contracts or the
/// inputs differ, since then the outputs may rightly differ, and where an output is on one side
/// only.
Result<Report> compare_recordings(const CompareOptions& options, Rules& rules);

} // namespace dsakit::harness
