// HIP for the host executor: one fiber a lane (optimized/runtime/host_executor.hpp).
#pragma once

#include "dsakit/optimized/launch.hpp"
#include "runtime/host_executor.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(max_threads)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

using hipStream_t = dsakit::optimized::LaunchStream*;
using hipError_t = int;
inline constexpr hipError_t hipSuccess = 0;

#define threadIdx (::dsakit::optimized::host::thread_index())
#define blockIdx (::dsakit::optimized::host::block_index())

__forceinline__ void __syncthreads() {
  ::dsakit::optimized::host::workgroup_barrier();
}

inline hipError_t hipGetLastError() {
  return dsakit::optimized::take_launch_error();
}
inline const char* hipGetErrorString(hipError_t) {
  return dsakit::optimized::launch_error_text();
}

#define hipLaunchKernelGGL(kernel, grid, block, lds_bytes, stream, ...)                            \
  ::dsakit::optimized::launch_kernel(                                                              \
      #kernel, (grid), (block), (stream), [=] { kernel(__VA_ARGS__); }, __VA_ARGS__)
