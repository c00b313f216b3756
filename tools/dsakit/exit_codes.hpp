// The exit code of each failure, and what --help says of them.
#pragma once

#include "dsakit/core/status.hpp"
#include "dsakit/harness/exit_codes.hpp"

using dsakit::harness::kExitBadInput;
using dsakit::harness::kExitInconclusive;
using dsakit::harness::kExitInterrupted;
using dsakit::harness::kExitKernelFailed;
using dsakit::harness::kExitMismatch;
using dsakit::harness::kExitNothingRan;
using dsakit::harness::kExitPass;

inline constexpr const char* kExitCodesHelp =
    "Exit codes: 0 pass; 1 numeric mismatch; 2 usage or bad input; 3 a kernel failed or is\n"
    "unsupported; 4 inconclusive; 77 nothing ran (no such device or operation); 130 interrupted.";

constexpr int exit_code(dsakit::Code code) {
  switch (code) {
  case dsakit::Code::ok:
    return kExitPass;
  case dsakit::Code::bad_input:
    return kExitBadInput;
  case dsakit::Code::unsupported:
  case dsakit::Code::device_error:
    return kExitKernelFailed;
  case dsakit::Code::no_device:
    return kExitNothingRan;
  case dsakit::Code::interrupted:
    return kExitInterrupted;
  }
  return kExitKernelFailed;
}
