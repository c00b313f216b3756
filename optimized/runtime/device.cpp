#include "dsakit/optimized/device.hpp"

#include "dsakit/optimized/native_stream.hpp"

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/hip_runtime.hpp"
#include "runtime/host_device.hpp"

namespace dsakit::optimized {

Status Device::begin_capture() {
  return unsupported(description() + " captures no graphs");
}

Result<std::unique_ptr<DeviceGraph>> Device::end_capture() {
  return unsupported(description() + " captures no graphs");
}

Result<std::unique_ptr<Device>> open_device(DeviceKind kind, const HostOptions& host) {
  switch (kind) {
  case DeviceKind::host:
    return open_host_device(host);
  case DeviceKind::hip:
    return open_hip_device();
  case DeviceKind::cuda:
#if DSAKIT_CUDA
    return open_cuda_device();
#else
    return Status(Code::no_device, "cuda: this build has no NVIDIA kernels (preset cuda has)");
#endif
  }
  return bad_input("unknown device kind");
}

void* native_stream(Device& device) {
  switch (device.kind()) {
  case DeviceKind::host:
    return nullptr;
  case DeviceKind::hip:
    return hip_stream(device);
  case DeviceKind::cuda:
    return device.stream();
  }
  return nullptr;
}

} // namespace dsakit::optimized
