// The k best of all ranks' candidates: the selection of device/selection.hpp, in which padding is
// 0, below every candidate.
#include <hip/hip_runtime.h>

#include "device/selection.hpp"
#include "dsakit/optimized/dcp_topk_merge.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

DSAKIT_KERNEL __launch_bounds__(kSelectionBlock) dsakit_dcp_topk_merge(DcpTopkMergeParams p) {
  DSAKIT_SHARED(SelectionLds, lds);
  const std::int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int n = p.world * p.k;
  const auto candidate_at = [&](int i) -> std::uint64_t {
    const std::int64_t at = i / p.k * p.rank_stride + row * p.k + i % p.k;
    const int position = p.rank_indices[at];
    return position < 0 ? 0 : candidate_of(p.rank_scores[at], position);
  };

  if (lane == 0) lds.filled = 0;
  __syncthreads(); // the count is zero
  std::uint32_t found = 0;
  for (int i = lane; i < n; i += kSelectionBlock)
    found += candidate_at(i) != 0 ? 1 : 0;
  lds_fetch_add(&lds.filled, found);
  __syncthreads(); // every lane's candidates are counted
  const int candidates = static_cast<int>(lds.filled);
  __syncthreads(); // and the count is read, before it is used again

  const int wanted = candidates < p.k ? candidates : p.k;
  int shift = 0;
  std::uint64_t prefix = 1; // every candidate
  if (candidates > p.k)
    find_threshold<kSelectionBlock>(lds, n, static_cast<std::uint32_t>(p.k), candidate_at, shift,
                                    prefix);
  collect_in_order<kSelectionBlock>(lds, n, wanted, candidate_at, shift, prefix,
                                    p.order == TopkOrder::ascending);
  for (int i = lane; i < p.k; i += kSelectionBlock)
    p.topk_indices[row * p.k + i] = i < wanted ? position_of(lds.selected[i]) : -1;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kMaxWorld = 64;

std::int64_t workgroups(const DcpTopkMergeParams& p) {
  return p.rows;
}

Status supports(const DcpTopkMergeParams& p) {
  if (p.k < 1 || p.k > kMaxSelected)
    return unsupported("k is " + std::to_string(p.k) + ", want 1 to " +
                       std::to_string(kMaxSelected));
  if (p.world < 1 || p.world > kMaxWorld)
    return unsupported("world is " + std::to_string(p.world) + ", want 1 to " +
                       std::to_string(kMaxWorld));
  return check_workgroups(workgroups(p));
}

} // namespace

Status dcp_topk_merge(const DcpTopkMergeParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_dcp_topk_merge, dim3(static_cast<unsigned>(p.rows)),
                     dim3(kSelectionBlock), 0, stream, p);
  return launch_status("dcp_topk_merge");
}

DSAKIT_REGISTER_KERNELS(DcpTopkMergeParams,
                        {"radix64_merge", supports, no_workspace<DcpTopkMergeParams>, workgroups,
                         erase_stream<DcpTopkMergeParams, dcp_topk_merge>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
