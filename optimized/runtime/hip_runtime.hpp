// DeviceKind::hip: an AMD GPU through the HIP runtime, which is loaded when a device is asked for,
// so that one binary serves every ROCm and machines without it. Never run on AMD hardware so far.
#pragma once

#include <memory>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {

/// The first visible device that loads one of the embedded code objects; its stream() is a
/// LaunchStream. no_device: no HIP runtime, no device, or none that a code object was built for.
Result<std::unique_ptr<Device>> open_hip_device();

/// The hipStream_t of a device of open_hip_device().
void* hip_stream(Device& device);

} // namespace dsakit::optimized
