// What launchers share: checks that name the value found and the value wanted, grid sizes, and the
// registry entry of each operation. Host code only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "device/target.hpp"
#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/optimized/kernel.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline Status check_multiple(const char* what, std::int64_t value, std::int64_t of,
                             const char* unit) {
  if (value >= 0 && value % of == 0) return {};
  return unsupported(std::string(what) + " is " + std::to_string(value) + " " + unit +
                     ", want a multiple of " + std::to_string(of));
}

inline Status check_aligned(const char* what, const void* p, std::uintptr_t to) {
  if (reinterpret_cast<std::uintptr_t>(p) % to == 0) return {};
  return unsupported(std::string(what) + " is not aligned to " + std::to_string(to) + " bytes");
}

inline Status check_index_page(std::int64_t page_size, IndexPageLayout layout,
                               std::int64_t page_stride, const void* cache) {
  if (layout != IndexPageLayout::block_flat && layout != IndexPageLayout::mfma_preshuffle)
    return unsupported("index_page_layout " + std::string(name(layout)) +
                       " does not hold FP8 keys, want block_flat | mfma_preshuffle");
  if (page_size < 1)
    return unsupported("page_size is " + std::to_string(page_size) + ", want at least 1");
  if (layout == IndexPageLayout::mfma_preshuffle)
    DSAKIT_TRY(check_multiple("page_size", page_size, 16, "tokens"));
  DSAKIT_TRY(check_multiple("page_stride", page_stride, 4, "bytes"));
  if (page_stride < page_size * 132)
    return unsupported("page_stride is " + std::to_string(page_stride) + " bytes, want at least " +
                       std::to_string(page_size * 132));
  return check_aligned("index_cache", cache, 4);
}

inline Status check_mxfp4_page(std::int64_t page_size, IndexPageLayout layout,
                               std::int64_t page_stride, const void* cache) {
  if (layout != IndexPageLayout::flat && layout != IndexPageLayout::preshuffle64)
    return unsupported("index_page_layout " + std::string(name(layout)) +
                       " does not hold MXFP4 keys, want flat | preshuffle64");
  if (page_size < 1)
    return unsupported("page_size is " + std::to_string(page_size) + ", want at least 1");
  if (layout == IndexPageLayout::preshuffle64 && page_size != 64)
    return unsupported("page_size is " + std::to_string(page_size) +
                       ", want 64 for index_page_layout preshuffle64");
  DSAKIT_TRY(check_multiple("page_stride", page_stride, 4, "bytes"));
  if (page_stride < page_size * 68)
    return unsupported("page_stride is " + std::to_string(page_stride) + " bytes, want at least " +
                       std::to_string(page_size * 68));
  return check_aligned("index_cache", cache, 4);
}

inline Status check_index_heads(std::int32_t heads, std::int32_t most) {
  if (heads >= 1 && heads <= most) return {};
  return unsupported("heads is " + std::to_string(heads) + ", want 1 to " + std::to_string(most));
}

/// Scale and inverse scale must be normal numbers: 2^-126 <= floor / qmax.
inline Status check_amax_floor(const char* what, float floor) {
  if (floor >= 0x1p-117f) return {};
  char found[32];
  std::snprintf(found, sizeof found, "%.3g", static_cast<double>(floor));
  return unsupported(std::string(what) + " is " + found + ", want at least 2^-117");
}

inline Status check_mla_cache(std::int64_t page_size, std::int64_t page_stride,
                              std::int64_t record_stride, const void* cache) {
  if (page_size < 1)
    return unsupported("page_size is " + std::to_string(page_size) + ", want at least 1");
  DSAKIT_TRY(check_multiple("page_stride", page_stride, 16, "bytes"));
  DSAKIT_TRY(check_multiple("record_stride", record_stride, 16, "bytes"));
  if (record_stride < 656)
    return unsupported("record_stride is " + std::to_string(record_stride) +
                       " bytes, want at least 656");
  return check_aligned("mla_cache", cache, 16);
}

inline std::int64_t workgroups_for(std::int64_t items, std::int64_t per_workgroup) {
  return items / per_workgroup + (items % per_workgroup != 0 ? 1 : 0);
}

/// HIP and CUDA take at most 2^31 - 1 workgroups along x; HIP counts lanes in 32 bits, too.
inline Status check_workgroups(std::int64_t workgroups) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / 256;
  if (workgroups <= most) return {};
  return unsupported("the launch needs " + std::to_string(workgroups) +
                     " workgroups, want at most " + std::to_string(most));
}

inline Status launch_status(const char* operation) {
  const hipError_t error = hipGetLastError();
  if (error == hipSuccess) return {};
  return {Code::device_error, std::string(operation) + ": " + hipGetErrorString(error)};
}

template <class Params>
std::size_t no_workspace(const Params&) {
  return 0;
}

/// A launcher behind the registry's untyped stream.
template <class Params, Status (*kLaunch)(const Params&, void*, std::size_t, hipStream_t)>
Status erase_stream(const Params& params, void* workspace, std::size_t bytes, void* stream) {
  return kLaunch(params, workspace, bytes, static_cast<hipStream_t>(stream));
}

} // namespace dsakit::optimized::DSAKIT_ARCH

/// Defines what runtime/registry.cpp asks of each arch for the kernels of one operation.
#define DSAKIT_REGISTER_KERNELS(Params, ...)                                                       \
  const std::vector<Kernel<Params>>& registered(const Params*) {                                   \
    static const std::vector<Kernel<Params>> list = {__VA_ARGS__};                                 \
    return list;                                                                                   \
  }
