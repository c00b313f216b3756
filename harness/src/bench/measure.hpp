// Times of one problem on a device that is open.
#pragma once

#include <set>
#include <string>

#include "dsakit/harness/kernel_library.hpp"
#include "problem.hpp"

namespace dsakit::harness {

/// What was measured.
struct Measurement {
  std::string kernel;
  bool graph = false;
  BenchTiming hot, cold;
  std::set<std::string> symbols; ///< that were launched; empty on CUDA and of a library
};

/// bytes of all tensors of the problem.
double bytes_of(const BenchProblem& problem);

/// Hot, and cold: enough copies of all tensors that their turn outruns the device's last cache.
/// Launches that take less than kGraphBelow_us are timed as graphs of many, where there are graphs.
/// `copies`: so many instead; 0: enough. `library`: whose kernel it is; nullptr: ours.
Result<Measurement> measure(const BenchProblem& problem, optimized::Device& device, int samples,
                            std::int64_t copies, const BenchSampler& sampler,
                            const KernelLibrary* library = nullptr);

std::string serialise(const Measurement& measurement);
Measurement parse_measurement(const std::string& text);

} // namespace dsakit::harness
