// MXFP4 indexer scores of prefill rows against gathered keys, a window a row.
#include <hip/hip_runtime.h>

#include "device/index_scores_mxfp4.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

/// A gathered key; one outside the window has zero codes.
struct GatheredKey {
  bool inside;
  const std::uint8_t* codes;
  const std::uint8_t* scales;

  DSAKIT_DEVICE Mxfp4Piece piece(int offset) const {
    return inside ? load_piece(codes + offset) : Mxfp4Piece{};
  }
  DSAKIT_DEVICE std::uint32_t scale(int group) const { return inside ? scales[group] : 0u; }
};

} // namespace

DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
    dsakit_index_logits_prefill_mxfp4(IndexLogitsPrefillMxfp4Params p) {
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

  DSAKIT_SHARED(Mxfp4QueryInLds, query);
  stage_query(query, p.q_packed + row * p.q_stride, p.q_scale + row * p.q_scale_stride,
              p.weights + row * p.weights_stride, p.heads);
  // Every wave reads what all of them staged.
  __syncthreads();

  for (int tile = wave_id(); tile < kKeysPerBlock / kTile; tile += kScoreWaves) {
    const std::int64_t tile_key = first_key + tile * kTile;
    if (tile_key >= end) break;
    if (tile_key + kTile <= begin) continue;
    float total[kColumnsPerLane];
    score_tile(
        query, p.heads,
        [&](int i) -> GatheredKey {
          const std::int64_t key = tile_key + i;
          return {key >= begin && key < end, p.k_packed + key * kMxfp4Bytes,
                  p.k_scale + key * kMxfp4Groups};
        },
        total);
    for (int slot = 0; slot < kColumnsPerLane; ++slot) {
      const std::int64_t key = tile_key + accumulator_column(slot);
      if (stores_columns() && key >= begin && key < end)
        p.logits[row * p.logits_stride + key - origin] = total[slot] * p.weight_scale;
    }
  }
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexLogitsPrefillMxfp4Params& p) {
  return p.rows * workgroups_for(p.keys, kKeysPerBlock);
}

Status supports(const IndexLogitsPrefillMxfp4Params& p) {
  DSAKIT_TRY(check_index_heads(p.heads, kMaxIndexHeads));
  DSAKIT_TRY(check_multiple("q_stride", p.q_stride, 16, "bytes"));
  DSAKIT_TRY(check_aligned("q_packed", p.q_packed, 16));
  DSAKIT_TRY(check_aligned("k_packed", p.k_packed, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_logits_prefill_mxfp4(const IndexLogitsPrefillMxfp4Params& p, void*, std::size_t,
                                  hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0 || p.keys == 0 || p.columns == 0) return {};
  hipLaunchKernelGGL(dsakit_index_logits_prefill_mxfp4, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kScoreBlock), 0, stream, p);
  return launch_status("index_logits_prefill_mxfp4");
}

DSAKIT_REGISTER_KERNELS(IndexLogitsPrefillMxfp4Params,
                        {"mxfp4_mfma16", supports, no_workspace<IndexLogitsPrefillMxfp4Params>,
                         workgroups,
                         erase_stream<IndexLogitsPrefillMxfp4Params, index_logits_prefill_mxfp4>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
