// Launches the kernel that the registry picks, on a poisoned workspace (S35), and waits.
#pragma once

#include <gtest/gtest.h>

#include "dsakit/optimized/kernel.hpp"
#include "support/devices.hpp"

namespace dsakit::testing {

template <class Params>
Status run_kernel(optimized::Device& device, const Params& params) {
  auto kernel = optimized::pick<Params>(device.arch(), params);
  if (!kernel) return kernel.status();
  const std::size_t bytes = (*kernel)->workspace_bytes(params);
  constexpr std::uint8_t kPoison = 0xFF; // NaN, read as floats (S35)
  OnDevice<std::uint8_t> workspace(device, std::vector<std::uint8_t>(bytes, kPoison));
  DSAKIT_TRY((*kernel)->launch(params, workspace.data(), bytes, device.stream()));
  DSAKIT_TRY(device.synchronize());
  workspace.values(); // checks the canaries
  return {};
}

} // namespace dsakit::testing
