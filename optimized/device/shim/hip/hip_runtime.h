// Stands in for ROCm's <hip/hip_runtime.h> where no ROCm is installed. Kernels and launchers are
// ordinary HIP: on a ROCm machine they build against the real header instead.
//   clang -x hip, device only    : attributes, indices and the barrier
//   nvcc                         : HIP names as CUDA names
//   any C++ compiler             : lanes are fibers of the host executor; a launch runs them, or
//   goes
//                                  to the HIP runtime when the stream is a GPU's
#pragma once

#if defined(__CUDACC__)
#include "shim_cuda.h"
#elif defined(__HIP__) && defined(__clang__)
#include "shim_amdgpu.h"
#else
#include "shim_host.h"
#endif
