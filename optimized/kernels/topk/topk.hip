// The k largest logits of a row: radix selection over (score, position), then a sort in LDS
// (device/selection.hpp).
#include <hip/hip_runtime.h>

#include "device/math.hpp"
#include "device/selection.hpp"
#include "dsakit/optimized/topk.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

/// Where the request has the key in column `index` of the rank.
DSAKIT_DEVICE std::int32_t position_in_request(const TopkParams& p, int index) {
  if (p.dcp_world == 1) return index;
  const std::int64_t block =
      static_cast<std::int64_t>(index / p.dcp_interleave) * p.dcp_world + p.dcp_rank;
  return static_cast<std::int32_t>(block * p.dcp_interleave + index % p.dcp_interleave);
}

/// One row by a workgroup of kLanes.
template <int kLanes>
DSAKIT_DEVICE void select_row(const TopkParams& p) {
  const std::int64_t row_index = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int start = p.row_starts ? p.row_starts[row_index] : 0;
  const int n = p.row_ends[row_index] - start;
  const float* row = p.logits + row_index * p.logits_stride + start;
  std::int32_t* out = p.topk_indices + row_index * p.topk_stride;
  float* scores = p.dcp_scores ? p.dcp_scores + row_index * p.topk_stride : nullptr;
  if (n <= p.k) {
    for (int i = lane; i < p.k; i += kLanes) {
      out[i] = i < n ? position_in_request(p, i) : -1;
      if (scores) scores[i] = i < n ? row[i] : kMinusInfinity;
    }
    return;
  }

  DSAKIT_SHARED(SelectionLds, lds);
  const auto candidate_at = [&](int i) { return candidate_of(row[i], i); };
  int shift;
  std::uint64_t prefix;
  find_threshold<kLanes>(lds, n, static_cast<std::uint32_t>(p.k), candidate_at, shift, prefix);
  collect_in_order<kLanes>(lds, n, p.k, candidate_at, shift, prefix,
                           p.order == TopkOrder::ascending);
  for (int i = lane; i < p.k; i += kLanes) {
    const int index = position_of(lds.selected[i]);
    out[i] = position_in_request(p, index);
    if (scores) scores[i] = row[index];
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(256) dsakit_topk_256(TopkParams p) {
  select_row<256>(p);
}
DSAKIT_KERNEL __launch_bounds__(512) dsakit_topk_512(TopkParams p) {
  select_row<512>(p);
}
DSAKIT_KERNEL __launch_bounds__(1024) dsakit_topk_1024(TopkParams p) {
  select_row<1024>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const TopkParams& p) {
  return p.rows;
}

std::int32_t standard_lanes(const TopkParams&) {
  return kSelectionBlock;
}

std::string problem_class(const TopkParams& p) {
  return class_of({{"rows", p.rows}, {"columns", p.logits_stride}, {"k", p.k}});
}

const Tuning<TopkParams>& tuning() {
  static const Tuning<TopkParams> list = {"topk",
                                          {{"lanes",
                                            "lanes of the workgroup that takes a row",
                                            {256, 512, 1024},
                                            &TopkParams::lanes,
                                            standard_lanes}},
                                          problem_class};
  return list;
}

Status supports(const TopkParams& p) {
  if (p.k < 1 || p.k > kMaxSelected)
    return unsupported("k is " + std::to_string(p.k) + ", want 1 to " +
                       std::to_string(kMaxSelected));
  if (p.dcp_world < 1 || p.dcp_interleave < 1)
    return unsupported("dcp_world is " + std::to_string(p.dcp_world) + " and dcp_interleave " +
                       std::to_string(p.dcp_interleave) + ", want at least 1 each");
  if (p.dcp_rank < 0 || p.dcp_rank >= p.dcp_world)
    return unsupported("dcp_rank is " + std::to_string(p.dcp_rank) + ", want 0 to " +
                       std::to_string(p.dcp_world - 1));
  if (p.lanes != 0 && p.lanes != 256 && p.lanes != 512 && p.lanes != 1024)
    return unsupported("lanes is " + std::to_string(p.lanes) + ", want 256, 512 or 1024");
  return check_workgroups(workgroups(p));
}

} // namespace

Status topk(const TopkParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  const std::int32_t lanes = p.lanes != 0 ? p.lanes : standard_lanes(p);
  const dim3 grid(static_cast<unsigned>(p.rows)), block(static_cast<unsigned>(lanes));
  if (lanes == 256)
    hipLaunchKernelGGL(dsakit_topk_256, grid, block, 0, stream, p);
  else if (lanes == 512)
    hipLaunchKernelGGL(dsakit_topk_512, grid, block, 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_topk_1024, grid, block, 0, stream, p);
  return launch_status("topk");
}

DSAKIT_REGISTER_KERNELS(TopkParams, {"radix64", supports, no_workspace<TopkParams>, workgroups,
                                     erase_stream<TopkParams, topk>, &tuning()})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
