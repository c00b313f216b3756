// Which of the builds of a kernel this is, and what that target has.
//   DSAKIT_AMDGPU       clang's HIP for an AMD GPU
//   DSAKIT_NVIDIA       nvcc
//   DSAKIT_HOST_LANES   a C++ compiler; DSAKIT_HOST_ARCH (942 | 950) says whose intrinsics are
//   modelled
// Kernels use none of these: they include the rest of this folder.
#pragma once

#include <hip/hip_runtime.h>

#include "dsakit/core/contract_enums.hpp"

#if defined(__CUDACC__)
#define DSAKIT_NVIDIA 1
#define DSAKIT_ARCH sm_90
#elif defined(__HIP__) && defined(__clang__)
#define DSAKIT_AMDGPU 1
#define DSAKIT_ARCH hip // one build a target GPU; a program may hold several in one fat binary
#else
#define DSAKIT_HOST_LANES 1
#if DSAKIT_HOST_ARCH == 942
#define DSAKIT_ARCH gfx942
#elif DSAKIT_HOST_ARCH == 950
#define DSAKIT_ARCH gfx950
#else
#error "DSAKIT_HOST_ARCH must be 942 or 950"
#endif
#endif

// gfx942 is FNUZ hardware, everything else OCP.
#if defined(__gfx942__) || DSAKIT_HOST_ARCH == 942
#define DSAKIT_FP8_FNUZ_HARDWARE 1
#else
#define DSAKIT_FP8_FNUZ_HARDWARE 0
#endif

// gfx950 multiplies MXFP4 with its scales; elsewhere device/matrix_mxfp4.hpp does it exactly.
#if defined(__gfx950__) || DSAKIT_HOST_ARCH == 950
#define DSAKIT_MXFP4_HARDWARE 1
#else
#define DSAKIT_MXFP4_HARDWARE 0
#endif

#if DSAKIT_HOST_LANES
// Two builds live in one program, so their kernels have C++ names.
#define DSAKIT_KERNEL __global__ void
/// The workgroup's LDS, as one struct a kernel.
#define DSAKIT_SHARED(Type, name)                                                                  \
  Type& name = *static_cast<Type*>(::dsakit::optimized::host::current->lds(sizeof(Type)))
#else
#define DSAKIT_KERNEL extern "C" __global__ void
#define DSAKIT_SHARED(Type, name) __shared__ Type name
#endif

#define DSAKIT_DEVICE __device__ __forceinline__

// Launchers are host code: absent from the pass that compiles for the GPU.
#if !defined(__HIP_DEVICE_COMPILE__) && !defined(__CUDA_ARCH__)
#define DSAKIT_HOST_PASS 1
#endif

namespace dsakit::optimized::DSAKIT_ARCH {

#if DSAKIT_NVIDIA
inline constexpr int kWaveSize = 32;
#else
inline constexpr int kWaveSize = 64;
#endif

/// The encoding that the matrix and conversion instructions read and write.
inline constexpr Fp8Encoding kNativeFp8 =
    DSAKIT_FP8_FNUZ_HARDWARE ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn;

} // namespace dsakit::optimized::DSAKIT_ARCH
