// Where kernels run: host lanes in this process, a GPU in a child process for each launch.
#pragma once

#include <memory>
#include <string>

#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

class KernelRunner {
public:
  /// `time_limit_s`: of each launch on a GPU, where a fault or a hang is a result and not the end.
  KernelRunner(optimized::DeviceKind device, const optimized::HostOptions& host, int time_limit_s)
      : kind_(device), options_(host), time_limit_s_(time_limit_s) {}

  /// Looks for the device, before any run(); its description.
  Result<std::string> open();
  Result<KernelRun> run(const OperationAdapter& adapter, const OperationData& data) const;
  /// Once more, on host lanes with the waves between barriers in another order, for each `time` its
  /// own.
  Result<KernelRun> run_again(const OperationAdapter& adapter, const OperationData& data,
                              int time = 1) const;

private:
  bool on_host() const { return kind_ == optimized::DeviceKind::host; }

  optimized::DeviceKind kind_;
  optimized::HostOptions options_;
  int time_limit_s_;
  std::unique_ptr<optimized::Device> host_; ///< stays open; a GPU only ever is in a child
};

} // namespace dsakit::harness
