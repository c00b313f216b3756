// DeviceKind::cuda: an NVIDIA GPU, in builds of the preset `cuda`.
#pragma once

#include <memory>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {

/// Device 0. no_device: no driver, no device, or one that is not sm_90.
Result<std::unique_ptr<Device>> open_cuda_device();

} // namespace dsakit::optimized
