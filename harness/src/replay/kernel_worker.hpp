// A GPU in a process of its own, which launches one kernel after another.
#pragma once

#include <chrono>

#include <sys/types.h>

#include "../process/child.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// Opening a GPU takes longer than most launches, so one child process serves many. It is forked by
/// the first launch, and anew by one after a crash, a hang or an error of the device.
class KernelWorker {
public:
  /// `time_limit_s`: of each launch.
  KernelWorker(optimized::DeviceKind kind, const optimized::HostOptions& options, int time_limit_s)
      : kind_(kind), options_(options), time_limit_s_(time_limit_s) {}
  KernelWorker(const KernelWorker&) = delete;
  KernelWorker& operator=(const KernelWorker&) = delete;
  ~KernelWorker() { end(false); }

  /// Runs the registered adapter of the operation. device_error as of run_in_child.
  Result<KernelRun> run(const OperationData& data);

private:
  using Clock = std::chrono::steady_clock;

  Status start();
  /// Takes the child away, by force where it was not `in_time`.
  ChildEnd end(bool in_time);
  bool send(const void* bytes, std::size_t count) const;
  bool receive(void* bytes, std::size_t count) const;
  bool wait_for(short event) const;

  optimized::DeviceKind kind_;
  optimized::HostOptions options_;
  int time_limit_s_;
  pid_t child_ = -1;
  int socket_ = -1; ///< our end; does not block
  Clock::time_point deadline_;
};

} // namespace dsakit::harness
