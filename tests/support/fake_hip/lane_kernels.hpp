// Every kernel as host lanes run it, found by what the HIP runtime knows of it: symbol and arch.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "dsakit/optimized/kernel.hpp"

namespace fake_hip {

struct LaneKernel {
  std::size_t argument_bytes; ///< of its parameter struct on the host
  /// The kernel's body for one lane, on a copy of the packed arguments.
  std::function<void()> (*bind)(const void* arguments);
};

/// nullptr where host lanes have no such kernel.
const LaneKernel* find_lane_kernel(dsakit::optimized::Arch arch, const std::string& symbol);

} // namespace fake_hip
