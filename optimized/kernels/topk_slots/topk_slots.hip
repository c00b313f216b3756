// Request-local positions to cache slots, all of them or those of one rank.
#include <hip/hip_runtime.h>

#include "device/target.hpp"
#include "dsakit/optimized/topk_slots.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;

struct CompactLds {
  std::int32_t up_to[kBlock]; // slots of this lane and those before it
};

/// Where the rank holds a position; -1 where another does.
DSAKIT_DEVICE int local_index(const TopkSlotsParams& p, int position) {
  if (p.dcp_world == 1) return position;
  const int block = position / p.dcp_interleave;
  if (block % p.dcp_world != p.dcp_rank) return -1;
  return block / p.dcp_world * p.dcp_interleave + position % p.dcp_interleave;
}

/// -1 where there is none.
DSAKIT_DEVICE int slot_of(const TopkSlotsParams& p, std::int64_t row, int position) {
  const int request = p.row_request[row];
  int slot = -1;
  if (position >= 0 && request >= 0 && request < p.requests) {
    const int index = local_index(p, position);
    const int column = index / p.page_size;
    const int page = index >= 0 && column < p.table_columns
                         ? p.block_table[request * p.table_stride + column]
                         : -1;
    const std::int64_t wide =
        static_cast<std::int64_t>(page) * p.block_stride + index % p.page_size;
    if (page >= 0 && wide <= 0x7FFFFFFF) slot = static_cast<int>(wide);
  }
  return slot;
}

} // namespace

/// A lane an element.
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_topk_slots(TopkSlotsParams p) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= p.rows * p.k) return;
  p.slots[i] = slot_of(p, i / p.k, p.topk_indices[i]);
}

/// A workgroup a row, a lane a run of consecutive elements: the lanes' counts are added up, and
/// each lane then knows where its slots go.
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_topk_slots_compact(TopkSlotsParams p) {
  DSAKIT_SHARED(CompactLds, lds);
  const std::int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int run = (p.k + kBlock - 1) / kBlock;
  const int first = lane * run < p.k ? lane * run : p.k;
  const int end = p.k - first < run ? p.k : first + run;
  const std::int32_t* positions = p.topk_indices + row * p.k;

  int found = 0;
  for (int i = first; i < end; ++i) {
    const int slot = slot_of(p, row, positions[i]);
    if (p.slots) p.slots[row * p.k + i] = slot;
    found += slot >= 0 ? 1 : 0;
  }
  lds.up_to[lane] = found;
  for (int distance = 1; distance < kBlock; distance *= 2) {
    __syncthreads(); // the sums of the last step are written
    const int before = lane >= distance ? lds.up_to[lane - distance] : 0;
    __syncthreads(); // and read, before the next ones replace them
    lds.up_to[lane] += before;
  }
  __syncthreads(); // the last lane's sum is the row's
  const int count = lds.up_to[kBlock - 1];
  if (p.counts && lane == 0) p.counts[row] = count;
  if (!p.compact_slots) return;
  std::int32_t* out = p.compact_slots + row * p.k;
  int place = lds.up_to[lane] - found;
  for (int i = first; i < end; ++i) {
    const int slot = slot_of(p, row, positions[i]);
    if (slot >= 0) out[place++] = slot;
  }
  for (int i = count + lane; i < p.k; i += kBlock)
    out[i] = -1;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

Status supports(const TopkSlotsParams& p) {
  if (p.k < 1) return unsupported("k is " + std::to_string(p.k) + ", want at least 1");
  if (p.page_size < 1 || p.block_stride < p.page_size)
    return unsupported("block_stride is " + std::to_string(p.block_stride) +
                       " slots, want at least page_size, " + std::to_string(p.page_size));
  if (p.dcp_world < 1 || p.dcp_interleave < 1)
    return unsupported("dcp_world is " + std::to_string(p.dcp_world) + " and dcp_interleave " +
                       std::to_string(p.dcp_interleave) + ", want at least 1 each");
  if (p.dcp_rank < 0 || p.dcp_rank >= p.dcp_world)
    return unsupported("dcp_rank is " + std::to_string(p.dcp_rank) + ", want 0 to " +
                       std::to_string(p.dcp_world - 1));
  return {};
}

std::int64_t workgroups(const TopkSlotsParams& p) {
  return workgroups_for(p.rows * p.k, kBlock);
}

Status supports_each(const TopkSlotsParams& p) {
  DSAKIT_TRY(supports(p));
  if (p.compact_slots || p.counts) return unsupported("takes no row as a whole, want slots alone");
  return check_workgroups(workgroups(p));
}

std::int64_t workgroups_of_rows(const TopkSlotsParams& p) {
  return p.rows;
}

Status supports_rows(const TopkSlotsParams& p) {
  DSAKIT_TRY(supports(p));
  return check_workgroups(workgroups_of_rows(p));
}

} // namespace

Status topk_slots(const TopkSlotsParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports_each(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_topk_slots, dim3(static_cast<unsigned>(workgroups(p))), dim3(kBlock), 0,
                     stream, p);
  return launch_status("topk_slots");
}

Status topk_slots_compact(const TopkSlotsParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports_rows(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_topk_slots_compact, dim3(static_cast<unsigned>(p.rows)), dim3(kBlock),
                     0, stream, p);
  return launch_status("topk_slots");
}

DSAKIT_REGISTER_KERNELS(TopkSlotsParams,
                        {"lane_each", supports_each, no_workspace<TopkSlotsParams>, workgroups,
                         erase_stream<TopkSlotsParams, topk_slots>},
                        {"row_scan", supports_rows, no_workspace<TopkSlotsParams>,
                         workgroups_of_rows, erase_stream<TopkSlotsParams, topk_slots_compact>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
