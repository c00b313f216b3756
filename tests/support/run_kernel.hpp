// Launches the kernel that the registry picks, and waits.
#pragma once

#include <gtest/gtest.h>

#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/kernel.hpp"

namespace dsakit::testing {

template <class Params>
Status run_kernel(optimized::Device& device, const Params& params) {
  auto kernel = optimized::pick<Params>(device.arch(), params);
  if (!kernel) return kernel.status();
  DSAKIT_TRY((*kernel)->launch(params, nullptr, 0, device.stream()));
  return device.synchronize();
}

} // namespace dsakit::testing
