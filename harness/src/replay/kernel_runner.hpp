// Where kernels run: host lanes in this process; a GPU in a child process for all launches; what
// others wrote, and a whole layer on a GPU, in one for each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsakit/harness/kernel_library.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"
#include "kernel_worker.hpp"

namespace dsakit::harness {

/// "host", "hip", "cuda": as --device, reports and plug-ins have it.
std::string kind_name(optimized::DeviceKind kind);

class KernelRunner {
public:
  /// `time_limit_s`: of each launch in a child, where a fault or a hang is a result and not the
  /// end. `library`: path of a plug-in, whose kernels go before the built-in ones; empty: none.
  KernelRunner(optimized::DeviceKind device, const optimized::HostOptions& host, int time_limit_s,
               std::string library = "")
      : kind_(device), options_(host), time_limit_s_(time_limit_s), library_(std::move(library)),
        worker_(std::make_unique<KernelWorker>(device, host, time_limit_s)) {}

  /// Asks the library, if any, what it has kernels for; once.
  Status look_into_library();
  /// Looks into the library and for the device, before any run(); the device's description.
  Result<std::string> open();
  Result<KernelRun> run(const OperationAdapter& adapter, const OperationData& data) const;
  /// Once more, on host lanes with the waves between barriers in another order, for each `time` its
  /// own.
  Result<KernelRun> run_again(const OperationAdapter& adapter, const OperationData& data,
                              int time = 1) const;

  /// The library's kernel; `keep` cuts the run down before it leaves the child process.
  Result<KernelRun> run_library(const OperationData& data,
                                const std::function<void(KernelRun&)>& keep) const;
  /// `body` in a child process, with the library loaded and the device open; what it gives.
  Result<std::string> in_library(
      const std::function<Result<std::string>(const KernelLibrary&, optimized::Device&)>& body)
      const;

  /// The library has a kernel for it.
  bool takes(const std::string& operation) const;
  /// The operations that the library has kernels for: "topk, topk_slots".
  std::string served() const;

private:
  bool on_host() const { return kind_ == optimized::DeviceKind::host; }

  optimized::DeviceKind kind_;
  optimized::HostOptions options_;
  int time_limit_s_;
  std::string library_;
  std::vector<std::string> operations_;     ///< of the library
  std::unique_ptr<optimized::Device> host_; ///< stays open; a GPU only ever is in a child
  std::unique_ptr<KernelWorker> worker_;    ///< of a GPU; starts at the first launch
};

} // namespace dsakit::harness
