// HIP on NVIDIA, reduced to what the launchers use.
#pragma once

#include <cuda_runtime.h>

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
#define hipSuccess cudaSuccess
#define hipGetLastError cudaGetLastError
#define hipGetErrorString cudaGetErrorString
#define hipLaunchKernelGGL(kernel, grid, block, lds_bytes, stream, ...)                            \
  kernel<<<(grid), (block), (lds_bytes), (stream)>>>(__VA_ARGS__)
