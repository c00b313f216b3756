// What the adapters share: guarded device memory, and one timed launch.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/kernel.hpp"
#include "dsakit/reference/dense.hpp"

namespace dsakit::harness {

/// Device memory between two guards in one allocation, so that they are truly adjacent.
class DeviceBuffer {
public:
  static Result<DeviceBuffer> upload(optimized::Device& device, const std::byte* data,
                                     std::size_t bytes);
  static Result<DeviceBuffer> upload(optimized::Device& device, const Tensor& tensor) {
    return upload(device, tensor.bytes.data(), tensor.bytes.size());
  }
  static Result<DeviceBuffer> upload(optimized::Device& device, const std::vector<float>& values) {
    return upload(device, reinterpret_cast<const std::byte*>(values.data()),
                  values.size() * sizeof(float));
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

/// The byte that poisons an output of that dtype: 0xFF makes NaN as e4m3fn, bf16 and float. Of an
/// id that would be -1, which is a right one, so it is 0xFE there.
constexpr std::byte poison_byte(Dtype dtype) {
  return dtype == Dtype::int32 ? std::byte{0xFE} : std::byte{0xFF};
}

/// unsupported for activations of another dtype, which no kernel takes.
Status need_bf16(const ContractValues& contract);

/// The recorded weight [outputs, inputs] of the operation, as the reference takes it.
reference::Weight weight_of(const OperationData& data);

/// The recorded weight on the device, as bf16: an fp8 one is widened there.
Result<DeviceBuffer> upload_weight(optimized::Device& device, const OperationData& data);

/// Elements of a norm's parameter, fp32 or an activation dtype.
std::vector<float> widened(const Tensor& parameter);

/// Exact values rounded to the activation dtype of `tensor`, which has as many elements.
void round_to(Tensor& tensor, const std::vector<double>& exact);

/// A tensor full of poison.
Tensor poisoned(Dtype dtype, Shape shape);

/// Downloads the output `name` of `run` from `buffer`, as a tensor of the form of `tensor`; notes
/// what was written beside it.
Status take_output(KernelRun& run, const std::string& name, const DeviceBuffer& buffer,
                   Tensor tensor);

/// Notes the first element of an output that the kernel may not write, and wrote: it differs from
/// `untouched`.
template <class MayWrite>
void note_beyond(KernelRun& run, const std::string& name, const Tensor& untouched,
                 MayWrite may_write) {
  const Tensor& got = run.outputs.at(name);
  const std::size_t size = size_of(got.dtype);
  for (std::int64_t i = 0; i < got.elements() && !run.stray; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (!may_write(i) && std::memcmp(&got.bytes[at], &untouched.bytes[at], size) != 0)
      run.stray = StrayWrite{name, coordinates(got.shape, i)};
  }
}

/// Projects by the library of the device, and waits.
Result<KernelRun> project(const OperationData& data, optimized::Device& device,
                          const optimized::ProjectionParams& params);

/// Launches once, timed, and waits; or leaves that to the observer.
Status launch_ready(LaunchObserver* observer, optimized::Device& device, KernelRun& run,
                    const std::function<Status(void* stream)>& once);

/// Chooses the kernel and its configuration, launches it and waits.
template <class Params>
Result<KernelRun> launch(LaunchObserver* observer, optimized::Device& device, const Params& problem,
                         const optimized::Configuration& asked = {}) {
  const auto choice =
      optimized::choose<Params>(device.arch(), device.description(), problem, asked);
  DSAKIT_TRY(choice);
  const optimized::Kernel<Params>& kernel = *choice->kernel;
  const Params& params = choice->params;

  KernelRun run;
  run.kernel = kernel.name;
  run.configuration = choice->configuration;
  if (kernel.tuning) run.problem_class = kernel.tuning->problem_class(params);
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
  const auto once = [&](void* stream) {
    return kernel.launch(params, workspace->template as<void>(), scratch.size(), stream);
  };
  DSAKIT_TRY(launch_ready(observer, device, run, once));
  return run;
}

template <class Params>
Result<KernelRun> launch(const OperationData& data, optimized::Device& device,
                         const Params& params) {
  return launch(data.observer, device, params, data.configuration);
}

} // namespace dsakit::harness
