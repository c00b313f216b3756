// What the adapters share: guarded device memory, and one timed launch.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/kernel.hpp"

namespace dsakit::harness {

/// Device memory between two guards in one allocation, so that they are truly adjacent.
class DeviceBuffer {
public:
  static Result<DeviceBuffer> upload(optimized::Device& device, const std::byte* data,
                                     std::size_t bytes);
  static Result<DeviceBuffer> upload(optimized::Device& device, const Tensor& tensor) {
    return upload(device, tensor.bytes.data(), tensor.bytes.size());
  }

  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer();

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(base_ + kGuard);
  }

  /// Fills `tensor`, which has the size that was uploaded. False where a guard was overwritten.
  Result<bool> download(Tensor& tensor) const;

private:
  static constexpr std::size_t kGuard = 256; // keeps the 256-byte alignment of an allocation

  DeviceBuffer(optimized::Device& device, std::byte* base, std::size_t bytes)
      : device_(&device), base_(base), bytes_(bytes) {}

  optimized::Device* device_;
  std::byte* base_;
  std::size_t bytes_;
};

/// Fills every byte with 0xFF: NaN as e4m3fn and float, -1 as an id.
void poison(Tensor& tensor);

/// Picks the kernel, launches it once and waits.
template <class Params>
Result<KernelRun> launch(optimized::Device& device, const Params& params) {
  const auto picked = optimized::pick<Params>(device.arch(), params);
  DSAKIT_TRY(picked);
  const optimized::Kernel<Params>& kernel = **picked;

  KernelRun run;
  run.kernel = kernel.name;
  run.workgroups = kernel.workgroups(params);
  for (const optimized::Kernel<Params>& other : optimized::kernels<Params>(device.arch())) {
    if (&other == &kernel) continue;
    const Status status = other.supports(params);
    run.other_kernels.push_back(std::string(other.name) + ": " +
                                (status ? "supported, not the first choice" : status.what()));
  }

  const std::vector<std::byte> scratch(kernel.workspace_bytes(params), std::byte{0xFF});
  const auto workspace = DeviceBuffer::upload(device, scratch.data(), scratch.size());
  DSAKIT_TRY(workspace);
  DSAKIT_TRY(device.start_timer());
  DSAKIT_TRY(
      kernel.launch(params, workspace->template as<void>(), scratch.size(), device.stream()));
  const auto time = device.stop_timer();
  DSAKIT_TRY(time);
  run.time_us = *time;
  DSAKIT_TRY(device.synchronize());
  return run;
}

} // namespace dsakit::harness
