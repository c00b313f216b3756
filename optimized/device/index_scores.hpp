// The scoring core that the prefill and the decode logits share: one row's query against tiles of
// 16 keys. A workgroup of kScoreBlock lanes scores kKeysPerBlock keys of one row; the row's query
// is staged in LDS once, since every wave needs all of it, and keys go from memory to registers.
#pragma once

#include "device/index_page.hpp"
#include "device/matrix.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kScoreBlock = 256;
inline constexpr int kScoreWaves = kScoreBlock / kWaveSize;
inline constexpr int kKeysPerBlock = 256;
inline constexpr int kMaxIndexHeads = 64;

struct QueryInLds {
  static constexpr int kChunks = kIndexHeadDim / 16; // 16-byte chunks of a row
  // A row of 128 bytes plus 16, so that the 16 rows of a tile start in different banks.
  Bytes16 row[kMaxIndexHeads][kChunks + 1];
  float weight[kMaxIndexHeads];
};

/// All lanes copy q [heads, 128] and weights [heads] to LDS. Heads beyond the last are zero rows
/// with weight 0, up to a whole tile. A barrier must follow.
DSAKIT_DEVICE void stage_query(QueryInLds& query, const std::uint8_t* q, const float* weights,
                               int heads) {
  const int tile_heads = (heads + kTile - 1) / kTile * kTile;
  for (int i = static_cast<int>(threadIdx.x); i < tile_heads * QueryInLds::kChunks;
       i += kScoreBlock) {
    const int head = i / QueryInLds::kChunks;
    query.row[head][i % QueryInLds::kChunks] = head < heads ? load16(q + 16 * i) : Bytes16{};
  }
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < tile_heads) query.weight[lane] = lane < heads ? weights[lane] : 0.0f;
}

/// NaN stays NaN.
DSAKIT_DEVICE float relu(float x) {
  return x < 0 ? 0.0f : x;
}

/// total[slot] = sum_h max(q_h . k, 0) * w_h * kDotScale for key accumulator_column(slot) of the
/// tile, in every lane that holds the column. key_chunk(i, c): the c-th 16 bytes of the tile's i-th
/// key.
template <Fp8Encoding kEncoding, class Chunk>
DSAKIT_DEVICE void score_tile(const QueryInLds& query, int heads, Chunk key_chunk,
                              float (&total)[kColumnsPerLane]) {
  const Fp8Rows keys = load_fp8_rows<kEncoding>(key_chunk);
  const bool keys_misread = any_misread<kEncoding>(keys);
  float sum[kColumnsPerLane] = {};
  for (int first_head = 0; first_head < heads; first_head += kTile) {
    const Fp8Rows rows = load_fp8_rows<kEncoding>(
        [&](int i, int chunk) { return query.row[first_head + i][chunk]; });
    Accumulator dot = {};
    multiply<kEncoding>(dot, rows, keys, keys_misread || any_misread<kEncoding>(rows));
    for (int i = 0; i < kAccPerLane; ++i) {
      const int head = first_head + accumulator_row(i);
      // A key with NaN gives NaN in every head: the rows that fill the tile take no part.
      if (head < heads) sum[accumulator_slot(i)] += relu(dot.v[i]) * query.weight[head];
    }
  }
  for (int slot = 0; slot < kColumnsPerLane; ++slot)
    total[slot] = sum_over_rows(sum[slot]);
}

/// The logit of a total and its key's scale.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE float scale_logit(float total, float key_scale) {
  return total * (key_scale * (1 / kDotScale<kEncoding>));
}

} // namespace dsakit::optimized::DSAKIT_ARCH
