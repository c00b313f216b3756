// The fold of the head weights alone, from given query scales.
#include <hip/hip_runtime.h>

#include "device/index_weights.hpp"
#include "dsakit/optimized/index_weights_fold.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_weights_fold(IndexWeightsFoldParams p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (row >= p.tokens * p.heads) return;
  const std::uint16_t weight = p.weights[row / p.heads * p.weights_stride + row % p.heads];
  p.folded[row] = fold_weight(weight, p.q_scale[row], p.head_scale, p.softmax_scale, p.weight_fold);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexWeightsFoldParams& p) {
  return workgroups_for(p.tokens * p.heads, kBlock);
}

Status supports(const IndexWeightsFoldParams& p) {
  if (p.heads < 1) return unsupported("heads is " + std::to_string(p.heads) + ", want at least 1");
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_weights_fold(const IndexWeightsFoldParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  hipLaunchKernelGGL(dsakit_index_weights_fold, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kBlock), 0, stream, p);
  return launch_status("index_weights_fold");
}

DSAKIT_REGISTER_KERNELS(IndexWeightsFoldParams,
                        {"lane_each", supports, no_workspace<IndexWeightsFoldParams>, workgroups,
                         erase_stream<IndexWeightsFoldParams, index_weights_fold>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
