// FP8 indexer scores of prefill rows against gathered keys, a window a row.
#include <hip/hip_runtime.h>

#include "device/index_scores.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void score_keys(const IndexLogitsPrefillParams& p) {
  const std::int64_t blocks_per_row = (p.keys + kKeysPerBlock - 1) / kKeysPerBlock;
  const std::int64_t row = blockIdx.x / blocks_per_row;
  const int first_key = static_cast<int>(blockIdx.x % blocks_per_row) * kKeysPerBlock;
  // The keys of the row's window whose columns exist.
  const std::int64_t origin = p.column_origin ? p.column_origin[row] : 0;
  std::int64_t begin = p.ks[row] > origin ? p.ks[row] : origin;
  std::int64_t end = p.ke[row] < origin + p.columns ? p.ke[row] : origin + p.columns;
  if (begin < 0) begin = 0;
  if (end > p.keys) end = p.keys;
  if (first_key >= end || first_key + kKeysPerBlock <= begin) return;

  DSAKIT_SHARED(QueryInLds, query);
  stage_query(query, p.q + row * p.q_stride, p.weights + row * p.weights_stride, p.heads);
  // Every wave reads what all of them staged.
  __syncthreads();

  for (int tile = wave_id(); tile < kKeysPerBlock / kTile; tile += kScoreWaves) {
    const std::int64_t tile_key = first_key + tile * kTile;
    if (tile_key >= end) break;
    if (tile_key + kTile <= begin) continue;
    float total[kColumnsPerLane];
    score_tile<kEncoding>(
        query, p.heads,
        [&](int i, int chunk) {
          const std::int64_t key = tile_key + i;
          if (key < begin || key >= end) return Bytes16{};
          return load16(p.k_fp8 + key * kIndexHeadDim + 16 * chunk);
        },
        total);
    for (int slot = 0; slot < kColumnsPerLane; ++slot) {
      const std::int64_t key = tile_key + accumulator_column(slot);
      if (stores_columns() && key >= begin && key < end)
        p.logits[row * p.logits_stride + key - origin] =
            scale_logit<kEncoding>(total[slot], p.k_scale[key]);
    }
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
    dsakit_index_logits_prefill_e4m3fn(IndexLogitsPrefillParams p) {
  score_keys<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
    dsakit_index_logits_prefill_e4m3fnuz(IndexLogitsPrefillParams p) {
  score_keys<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexLogitsPrefillParams& p) {
  return p.rows * workgroups_for(p.keys, kKeysPerBlock);
}

Status supports(const IndexLogitsPrefillParams& p) {
  DSAKIT_TRY(check_index_heads(p.heads, kMaxIndexHeads));
  DSAKIT_TRY(check_multiple("q_stride", p.q_stride, 16, "bytes"));
  DSAKIT_TRY(check_aligned("q", p.q, 16));
  DSAKIT_TRY(check_aligned("k_fp8", p.k_fp8, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_logits_prefill(const IndexLogitsPrefillParams& p, void*, std::size_t,
                            hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0 || p.keys == 0 || p.columns == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_index_logits_prefill_e4m3fn, grid, dim3(kScoreBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_logits_prefill_e4m3fnuz, grid, dim3(kScoreBlock), 0, stream, p);
  return launch_status("index_logits_prefill");
}

DSAKIT_REGISTER_KERNELS(IndexLogitsPrefillParams,
                        {"mfma16", supports, no_workspace<IndexLogitsPrefillParams>, workgroups,
                         erase_stream<IndexLogitsPrefillParams, index_logits_prefill>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
