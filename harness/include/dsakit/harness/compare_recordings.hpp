// Comparison of two recordings of the same inputs, without a device.
#pragma once

#include <atomic>
#include <regex>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/progress.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"

namespace dsakit::harness {

/// One `--map REGEX=REPLACEMENT`: every match in a name of `want` is replaced ($1: a group).
struct NameMap {
  std::string text; ///< as given, for messages
  std::regex pattern;
  std::string replacement;
};

/// Split at the last '='. bad_input without one, for an empty or a broken REGEX.
Result<NameMap> parse_map(const std::string& text);

struct CompareOptions {
  std::string got;
  std::string want;
  std::vector<NameMap> maps;  ///< applied in order to the names of `want`, as `export` writes them
  bool allow_missing = false; ///< what is on one side only is skipped
  std::string repeat;         ///< further options, as `reproduce` says them again
  const std::atomic<bool>* interrupted = nullptr; ///< then the report is partial
  Progress progress;
};

/// The command line that repeats a comparison.
std::string compare_command(const CompareOptions& options);

/// Outputs are matched by step, operation and name, and held to their rules: exact, or derived from
/// the inputs of `got` with the sum of both producers' bounds. Inputs that differ are lines of the
/// verdict error, the outputs of their operations are not compared, and the file is bad input,
/// since they may rightly differ. bad_input where the contracts differ, and where an output is on
/// one side only.
Result<Report> compare_recordings(const CompareOptions& options, Rules& rules);

} // namespace dsakit::harness
