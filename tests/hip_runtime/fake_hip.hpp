// What the stand-in HIP runtime saw. Its devices are set through the environment, read at each
// call: FAKE_HIP_DEVICES (a count) and FAKE_HIP_MACH (the arch, as EF_AMDGPU_MACH of an ELF
// header).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct FakeLaunch {
  std::string kernel;
  unsigned grid[3];
  unsigned block[3];
  std::vector<std::uint8_t> arguments;
};

/// extern "C" `fake_hip_launches` of the library.
using FakeLaunches = std::vector<FakeLaunch>*();
