// The sum of what the ranks attended to, by the weights that their lses give. One workgroup a row
// and head: lanes find a weight each, then add up the ranks' latents.
#include <hip/hip_runtime.h>

#include "device/math.hpp"
#include "dsakit/optimized/dcp_attention_merge.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kMaxWorld = 64;
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLog2E = 1.44269504088896341f;

struct MergeLds {
  float lse[kMaxWorld];
  float weight[kMaxWorld]; // first exp(lse - largest), then its share of their sum
};

/// NaN and +inf stand for no key, as -inf does.
DSAKIT_DEVICE float lse_of_rank(float lse) {
  return lse == lse && lse != -kMinusInfinity ? lse : kMinusInfinity;
}

DSAKIT_DEVICE float load(const float* latent, std::int64_t i) {
  return latent[i];
}
DSAKIT_DEVICE float load(const std::uint16_t* latent, std::int64_t i) {
  return bf16_to_float(latent[i]);
}
DSAKIT_DEVICE void store(float* latent, std::int64_t i, float value) {
  latent[i] = value;
}
DSAKIT_DEVICE void store(std::uint16_t* latent, std::int64_t i, float value) {
  latent[i] = static_cast<std::uint16_t>(float_to_bf16(value));
}

template <class Element>
DSAKIT_DEVICE void merge(const DcpAttentionMergeParams& p) {
  DSAKIT_SHARED(MergeLds, lds);
  const std::int64_t at = blockIdx.x; // row and head
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < p.world) lds.lse[lane] = lse_of_rank(p.rank_lse[lane * p.lse_rank_stride + at]);
  __syncthreads(); // every lane reads every lse
  float largest = kMinusInfinity;
  for (int rank = 0; rank < p.world; ++rank)
    if (lds.lse[rank] > largest) largest = lds.lse[rank];
  if (lane < p.world) {
    const bool empty = lds.lse[lane] == kMinusInfinity; // and -inf - -inf is NaN
    const float difference = lds.lse[lane] - largest;
    lds.weight[lane] =
        empty ? 0.0f : exponential(p.lse_base == LseBase::e ? difference : difference * kLn2);
  }
  __syncthreads(); // and every exponential
  float sum = 0;
  for (int rank = 0; rank < p.world; ++rank)
    sum += lds.weight[rank];
  __syncthreads(); // before their shares replace them
  if (lane < p.world && sum > 0) lds.weight[lane] /= sum;
  __syncthreads(); // which every lane reads

  const auto* rank_latent = static_cast<const Element*>(p.rank_latent);
  auto* corrected = static_cast<Element*>(p.corrected);
  for (int dim = lane; dim < p.dim; dim += kBlock) {
    float value = 0;
    for (int rank = 0; rank < p.world; ++rank) {
      const std::int64_t i = rank * p.latent_rank_stride + at * p.dim + dim;
      const float weight = lds.weight[rank];
      const float part = weight == 0 ? 0.0f : load(rank_latent, i) * weight;
      if (corrected) store(corrected, i, part);
      value += part;
    }
    store(p.latent, at * p.dim + dim, value);
  }
  if (lane != 0) return;
  const float log = logarithm(sum);
  p.lse[at] = sum > 0 ? largest + (p.lse_base == LseBase::e ? log : log * kLog2E) : kMinusInfinity;
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_dcp_attention_merge_bf16(DcpAttentionMergeParams p) {
  merge<std::uint16_t>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_dcp_attention_merge_fp32(DcpAttentionMergeParams p) {
  merge<float>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const DcpAttentionMergeParams& p) {
  return p.rows * p.heads;
}

Status supports(const DcpAttentionMergeParams& p) {
  if (p.world < 1 || p.world > kMaxWorld)
    return unsupported("world is " + std::to_string(p.world) + ", want 1 to " +
                       std::to_string(kMaxWorld));
  if (p.heads < 1) return unsupported("heads is " + std::to_string(p.heads) + ", want at least 1");
  if (p.dim < 1) return unsupported("dim is " + std::to_string(p.dim) + ", want at least 1");
  return check_workgroups(workgroups(p));
}

} // namespace

Status dcp_attention_merge(const DcpAttentionMergeParams& p, void*, std::size_t,
                           hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.latent_dtype == RankLatentDtype::bf16)
    hipLaunchKernelGGL(dsakit_dcp_attention_merge_bf16, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_dcp_attention_merge_fp32, grid, dim3(kBlock), 0, stream, p);
  return launch_status("dcp_attention_merge");
}

DSAKIT_REGISTER_KERNELS(DcpAttentionMergeParams,
                        {"head_each", supports, no_workspace<DcpAttentionMergeParams>, workgroups,
                         erase_stream<DcpAttentionMergeParams, dcp_attention_merge>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
