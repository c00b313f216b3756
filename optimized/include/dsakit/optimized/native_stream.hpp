// The stream of a device as its own runtime has it, for code that launches without us.
#pragma once

#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {

/// The hipStream_t or cudaStream_t that the device's work is in; nullptr of the host device, whose
/// work is done when a call returns. Device::stream() is what our launchers take.
void* native_stream(Device& device);

} // namespace dsakit::optimized
