// Kernels of others, from a shared library with the entry points of dsakit/plugin.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/plugin.h"

namespace dsakit::harness {

/// Loaded into this process, whose end it may be: its constructors run, and so do its functions.
/// A tool that must survive loads it in run_in_child alone, as KernelRunner does.
class KernelLibrary {
public:
  /// device_error: it does not load, lacks an entry point, or is of another ABI version. It stays
  /// loaded until the process ends.
  static Result<KernelLibrary> load(const std::string& path);

  /// Its kernel for the operation, or nullptr. device_error where what it returns is unusable.
  Result<const dsakit_kernel_v1*> find(const std::string& operation) const;
  /// Those of kOperations that it has a kernel for.
  Result<std::vector<std::string>> operations() const;
  /// "libmine.so"
  const std::string& name() const { return name_; }

private:
  KernelLibrary(std::string name, decltype(&dsakit_kernel) kernel)
      : name_(std::move(name)), kernel_(kernel) {}

  std::string name_;
  decltype(&dsakit_kernel) kernel_;
};

/// A kernel of a library with an operation's tensors on a device, ready to be launched.
class ForeignLaunch {
public:
  /// Uploads the inputs and poisons the outputs. `device` outlives it. unsupported: the
  /// library has no kernel for the operation, or that refuses.
  /// A configuration that is asked for becomes settings: {"lanes": 512} is "configuration.lanes".
  static Result<ForeignLaunch> prepare(const KernelLibrary& library, const OperationData& data,
                                       optimized::Device& device);
  ForeignLaunch(ForeignLaunch&&) noexcept;
  ~ForeignLaunch();

  /// "libmine.so:NAME"
  std::string kernel() const;
  /// Puts the work on the device's stream and does not wait. The outputs of an operation that
  /// writes in place are not put back in between.
  Status launch() const;
  /// What one launch that has ended made. device_error where it changed an input.
  Result<KernelRun> take() const;

private:
  struct State;
  explicit ForeignLaunch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The operations that the library has kernels for, found in a child process: device_error where it
/// cannot be used, unsupported where there are none.
Result<std::vector<std::string>> library_operations(const std::string& path, int time_limit_s);

/// prepare, one timed launch, take.
Result<KernelRun> run_foreign(const KernelLibrary& library, const OperationData& data,
                              optimized::Device& device);

} // namespace dsakit::harness
