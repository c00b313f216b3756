// The process exit codes: fixed, never a count or a flag word (design 9).
#pragma once

#include "dsakit/core/status.hpp"

inline constexpr int kExitPass = 0;
inline constexpr int kExitMismatch = 1;      ///< numeric mismatch or confirmed regression
inline constexpr int kExitBadInput = 2;      ///< usage, file, contract, rule
inline constexpr int kExitKernelFailed = 3;  ///< failed, hung, refused or unsupported
inline constexpr int kExitInconclusive = 4;  ///< too noisy to say
inline constexpr int kExitNothingRan = 77;   ///< no such device; what CTest calls a skip
inline constexpr int kExitInterrupted = 130; ///< Ctrl-C

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
