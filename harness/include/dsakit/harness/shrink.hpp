// Shrink: the smallest part of a recorded operation that still fails, as a recording of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/rules.hpp"

namespace dsakit::harness {

struct ShrinkOptions {
  std::string input;
  std::string output;
  std::string operation;
  optimized::DeviceKind device = optimized::DeviceKind::host;
  optimized::HostOptions host;
  std::vector<ContractOverride> overrides;
  int time_limit_s = 60;      ///< of each launch on a GPU or of a library
  std::string kernel_library; ///< as of replay
  bool synthesize = false;    ///< scrambled values in place of the recorded ones
  std::uint64_t seed = 0;     ///< of those
  std::string repeat;         ///< options that `reproduce` repeats
};

struct Shrunk {
  std::string not_written; ///< why; empty: it was written
  std::int64_t step = 0;   ///< of the input
  std::string tensor;      ///< with its producer
  std::string subject;     ///< kernel | reference, as in a report
  std::string against;     ///< reference | recorded
  std::string reason;      ///< of a kernel that faulted or hung; empty: numbers are wrong
  struct Extent {
    std::string name; ///< "rows"
    std::int64_t from;
    std::int64_t to;
  };
  std::vector<Extent> extents;   ///< that became smaller
  std::int64_t bytes_before = 0; ///< of the operation's tensors
  std::int64_t bytes_after = 0;
  std::int64_t trials = 0;
  std::optional<std::uint64_t> seed; ///< with which the scrambled values fail
  std::string reproduce;             ///< command line
};

/// Called after each trial; BYTES of the smallest problem so far that fails.
using ShrinkProgress = std::function<void(std::int64_t trials, std::int64_t bytes)>;

/// Writes the first step of the operation that fails, cut down while the same output fails in the
/// same comparison. On host lanes what was recorded is judged by the reference before a kernel
/// runs. Where nothing fails, or nothing with scrambled values, nothing is written.
Result<Shrunk> shrink(const ShrinkOptions& options, Rules& rules,
                      const ShrinkProgress& progress = {});

} // namespace dsakit::harness
