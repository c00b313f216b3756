// Sweeps: the configurations of a kernel, each gated and timed on problems in a process of its own;
// the results as lines of a file that can be resumed, merged and made into a tuned file
// (docs/sweep.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/progress.hpp"
#include "dsakit/optimized/configuration.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// One configuration on one problem.
struct SweepCandidate {
  std::string problem; ///< JSON; what a recording holds goes in by its SHA-256
  std::string operation;
  optimized::Configuration configuration; ///< of every axis; all 0: the kernel's default
  std::vector<std::string> arguments;     ///< that name it to `dsakit bench`
  bool foreign = false;                   ///< a library's kernel

  bool is_default() const;
};

struct SweepSpace {
  std::vector<SweepCandidate> candidates; ///< problem by problem, its default first
  std::int64_t excluded = 0;              ///< by constraints
};

/// bad_input, one line that names the file and the place, for anything but a space (docs/sweep.md)
/// with problems that `bench` understands, and keys and values that some kernel lists. A library
/// lists none: the keys and values of `foreign`, the operations that one takes, are its to judge.
Result<SweepSpace> read_sweep_space(const std::string& path,
                                    const std::vector<std::string>& foreign = {});

/// What a time is of, beside problem and configuration.
struct SweepIdentity {
  std::string device;            ///< Device::description()
  std::string toolchain;         ///< of the host code, and how it was built
  std::string code_hash;         ///< SHA-256 of the program
  std::string library_hash = {}; ///< SHA-256 of the library, in its place for foreign candidates
};

/// Of this program and the library, if `library` is not empty. Opens the device, a GPU in a child
/// process.
Result<SweepIdentity> sweep_identity(optimized::DeviceKind kind, const optimized::HostOptions& host,
                                     int time_limit_s, const std::string& library = "");

struct SweepOptions {
  std::vector<std::string> command; ///< that times a candidate, given its arguments
  std::string kernel_library;       ///< of foreign candidates
  SweepIdentity identity;
  std::string output;
  bool resume = false;
  int jobs = 1;
  std::int64_t shard = 1; ///< of `shards`, from 1 on
  std::int64_t shards = 1;
  double budget_s = 0; ///< no candidate starts later; 0: no end
  bool random = false; ///< order, but for each problem's default, which is first
  std::uint64_t seed = 0;
  int time_limit_s = 60; ///< of a candidate
  const std::atomic<bool>* interrupted = nullptr;
  Progress progress{};
};

/// The fastest configuration of a problem so far.
struct SweepBest {
  std::string problem;
  optimized::Configuration configuration;
  double median_us = 0;
  double default_us = 0; ///< 0: the default was not timed
};

struct SweepSummary {
  std::int64_t candidates = 0; ///< of this shard
  std::int64_t done_before = 0;
  std::int64_t timed = 0;
  std::int64_t disqualified = 0;
  std::int64_t left = 0; ///< the budget or Ctrl-C ended it before these
  bool interrupted = false;
  bool default_fails = false;  ///< some problem's default is outside its gate
  std::vector<SweepBest> best; ///< of every problem with a time, those of earlier runs included
};

/// Times what the file does not hold yet, and appends a line for each; a file without a line does
/// not stay. bad_input for a file that is there already (without resume), that another sweep
/// writes, or that is damaged, and for a candidate that `bench` does not understand; no_device.
Result<SweepSummary> sweep(const SweepSpace& space, const SweepOptions& options);

/// Writes the lines of all inputs, each key once, by key: whole, or nothing. Their number.
Result<std::int64_t> merge_sweeps(const std::vector<std::string>& inputs,
                                  const std::string& output);

/// What became of the best configuration of a class of problems.
struct SweepVerdict {
  optimized::TunedChoice choice;
  double median_us = 0;
  double default_us = 0;
  bool kept = false;
  std::string why_not; ///< empty where it is kept
};

struct SweepApplyOptions {
  std::string times = "hot"; ///< hot | cold: which decide
  double min_effect = 0.03;  ///< share of the default's median
};

/// Writes the tuned file of the configurations that beat the default: by at least `min_effect`, and
/// with intervals from first to third quartile that lie apart. Kernels of libraries are left out:
/// dispatch has its own alone.
Result<std::vector<SweepVerdict>> apply_sweep(const std::string& input, const std::string& output,
                                              const SweepApplyOptions& options);

} // namespace dsakit::harness
