// What the kernels dsakit_selftest_* take.
#pragma once

#include <cstdint>

namespace dsakit::optimized {

struct SelftestParams {
  const std::uint32_t* input;
  std::uint32_t* output;
  std::uint32_t* scratch; // zeros
  std::int32_t workgroups;
};

} // namespace dsakit::optimized
