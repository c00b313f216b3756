// The scoring core of the MXFP4 logits, prefill and decode: as device/index_scores.hpp, with codes
// and scales multiplied by device/matrix_mxfp4.hpp.
#pragma once

#include "device/index_scores.hpp"
#include "device/matrix_mxfp4.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

struct Mxfp4QueryInLds {
  Mxfp4StagedRow row[kMaxIndexHeads];
  std::uint32_t scales[kMaxIndexHeads]; // of group g byte g
  float weight[kMaxIndexHeads];
};

/// All lanes copy codes [heads, 64], scales [heads, 4] and bf16 weights [heads] to LDS. Heads
/// beyond the last are zero rows with weight 0, up to a whole tile. A barrier must follow.
DSAKIT_DEVICE void stage_query(Mxfp4QueryInLds& query, const std::uint8_t* codes,
                               const std::uint8_t* scales, const std::uint16_t* weights,
                               int heads) {
  const int tile_heads = (heads + kTile - 1) / kTile * kTile;
  const int lane = static_cast<int>(threadIdx.x);
  // kMaxIndexHeads * kMxfp4Groups is a lane's worth each.
  if (lane < tile_heads * kMxfp4Groups) {
    const int head = lane / kMxfp4Groups;
    stage_group(query.row[head], lane % kMxfp4Groups,
                head < heads ? load16(codes + 16 * lane) : Bytes16{});
  }
  if (lane < tile_heads) {
    std::uint32_t packed = 0;
    for (int g = 0; g < kMxfp4Groups; ++g)
      if (lane < heads)
        packed |= static_cast<std::uint32_t>(scales[lane * kMxfp4Groups + g]) << 8 * g;
    query.scales[lane] = packed;
    query.weight[lane] = lane < heads ? bf16_to_float(weights[lane]) : 0.0f;
  }
}
static_assert(kMaxIndexHeads * kMxfp4Groups <= kScoreBlock);

/// total[slot] = sum_h max(dot_h, 0) * w_h for key accumulator_column(slot) of the tile, in every
/// lane that holds the column. key(i): where the tile's i-th key is, for load_mxfp4_rows.
template <class Key>
DSAKIT_DEVICE void score_tile(const Mxfp4QueryInLds& query, int heads, Key key,
                              float (&total)[kColumnsPerLane]) {
  const Mxfp4Rows keys = load_mxfp4_rows(key);
  float sum[kColumnsPerLane] = {};
  for (int first_head = 0; first_head < heads; first_head += kTile) {
    Accumulator dot = {};
    multiply(dot, load_staged_rows(query.row + first_head, query.scales + first_head), keys);
    for (int i = 0; i < kAccPerLane; ++i) {
      const int head = first_head + accumulator_row(i);
      // A key with NaN gives NaN in every head: the rows that fill the tile take no part.
      if (head < heads) sum[accumulator_slot(i)] += relu(dot.v[i]) * query.weight[head];
    }
  }
  for (int slot = 0; slot < kColumnsPerLane; ++slot)
    total[slot] = sum_over_rows(sum[slot]);
}

} // namespace dsakit::optimized::DSAKIT_ARCH
