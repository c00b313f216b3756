// Request-local positions to cache slots.
#include <hip/hip_runtime.h>

#include "device/target.hpp"
#include "dsakit/optimized/topk_slots.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_topk_slots(TopkSlotsParams p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= p.rows * p.k) return;
  const int position = p.topk_indices[i];
  const int request = p.row_request[i / p.k];
  int slot = -1;
  if (position >= 0 && request >= 0 && request < p.requests) {
    const int column = position / p.page_size;
    const int page =
        column < p.table_columns ? p.block_table[request * p.table_stride + column] : -1;
    const std::int64_t wide =
        static_cast<std::int64_t>(page) * p.block_stride + position % p.page_size;
    if (page >= 0 && wide <= 0x7FFFFFFF) slot = static_cast<int>(wide);
  }
  p.slots[i] = slot;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const TopkSlotsParams& p) {
  return workgroups_for(p.rows * p.k, kBlock);
}

Status supports(const TopkSlotsParams& p) {
  if (p.k < 1) return unsupported("k is " + std::to_string(p.k) + ", want at least 1");
  if (p.page_size < 1 || p.block_stride < p.page_size)
    return unsupported("block_stride is " + std::to_string(p.block_stride) +
                       " slots, want at least page_size, " + std::to_string(p.page_size));
  return check_workgroups(workgroups(p));
}

} // namespace

Status topk_slots(const TopkSlotsParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_topk_slots, dim3(static_cast<unsigned>(workgroups(p))), dim3(kBlock), 0,
                     stream, p);
  return launch_status("topk_slots");
}

DSAKIT_REGISTER_KERNELS(TopkSlotsParams, {"lane_each", supports, no_workspace<TopkSlotsParams>,
                                          workgroups, erase_stream<TopkSlotsParams, topk_slots>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
