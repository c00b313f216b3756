// The process exit codes: fixed, never a count or a flag word (design 9). Reports say theirs, a
// sweep reads those of the processes that it starts.
#pragma once

namespace dsakit::harness {

inline constexpr int kExitPass = 0;
inline constexpr int kExitMismatch = 1;     ///< numeric mismatch or confirmed regression
inline constexpr int kExitBadInput = 2;     ///< usage, file, contract, rule
inline constexpr int kExitKernelFailed = 3; ///< failed, hung, refused or unsupported
inline constexpr int kExitInconclusive = 4; ///< too noisy to say
inline constexpr int kExitNothingRan = 77; ///< no such device or operation; what CTest calls a skip
inline constexpr int kExitInterrupted = 130; ///< Ctrl-C

} // namespace dsakit::harness
