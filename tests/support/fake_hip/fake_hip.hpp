// A stand-in for libamdhip64 that runs AMD code objects' kernels on host lanes: what the tests set
// and what it saw. It is as strict as the real runtime where dsakit relies on it, and where it is
// not allowed to know better: a code object of another arch does not load; device memory is closed
// to the host; work waits in its stream until somebody waits for it; a launch's packed arguments,
// block and LDS must be what the code object's metadata says, and the host lanes' parameter struct
// must be of the same size.
//
// Set through the environment, read at each call:
//   FAKE_HIP_DEVICES       how many there are; unset: none
//   FAKE_HIP_MACH          their arch, as EF_AMDGPU_MACH of an ELF header: 0x4c gfx942, 0x4f gfx950
//   FAKE_HIP_LAUNCH_ERROR  1: every launch fails
//   FAKE_HIP_DRY_RUN       1: launches are checked and written down, not run
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

/// extern "C" `fake_hip_launches` of the library: launches that were not refused.
using FakeLaunches = std::vector<FakeLaunch>*();

/// extern "C" `fake_hip_message`: what was wrong with the last call that failed a check; it is
/// printed to standard error as well.
using FakeMessage = const char*();
