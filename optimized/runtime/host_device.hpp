// DeviceKind::host: the AMD lane code on the CPU.
#pragma once

#include <memory>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {

Result<std::unique_ptr<Device>> open_host_device(const HostOptions& options);

} // namespace dsakit::optimized
