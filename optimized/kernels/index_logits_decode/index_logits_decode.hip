// FP8 indexer scores of a decode row against its cached keys, straight from the paged cache.
//
// One workgroup scores 256 keys for one row. The row's query is staged in LDS once, since every
// wave needs all of it; keys go from memory to registers, a tile of 16 at a time and wave.
#include <hip/hip_runtime.h>

#include "device/index_page.hpp"
#include "device/matrix.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kWaves = kBlock / kWaveSize;
constexpr int kKeysPerBlock = 256;
constexpr int kMaxHeads = 64;
constexpr int kChunks = kIndexHeadDim / 16; // 16-byte chunks of a row

struct QueryInLds {
  // A row of 128 bytes plus 16, so that the 16 rows of a tile start in different banks.
  Bytes16 row[kMaxHeads][kChunks + 1];
  float weight[kMaxHeads];
};

/// Heads beyond the last are zero rows with weight 0, up to a whole tile.
DSAKIT_DEVICE void stage_query(QueryInLds& query, const IndexLogitsDecodeParams& p,
                               std::int64_t row, int head_tiles) {
  const std::uint8_t* q = p.q + row * p.q_stride;
  const int chunks = head_tiles * kTile * kChunks;
  for (int i = static_cast<int>(threadIdx.x); i < chunks; i += kBlock) {
    const int head = i / kChunks;
    query.row[head][i % kChunks] = head < p.heads ? load16(q + 16 * i) : Bytes16{};
  }
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < head_tiles * kTile)
    query.weight[lane] = lane < p.heads ? p.weights[row * p.weights_stride + lane] : 0.0f;
}

/// NaN stays NaN.
DSAKIT_DEVICE float relu(float x) {
  return x < 0 ? 0.0f : x;
}

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void score_keys(const IndexLogitsDecodeParams& p) {
  const std::int64_t blocks_per_row = (p.columns + kKeysPerBlock - 1) / kKeysPerBlock;
  const std::int64_t row = blockIdx.x / blocks_per_row;
  const int first_key = static_cast<int>(blockIdx.x % blocks_per_row) * kKeysPerBlock;
  const int length = p.row_lens[row] < p.columns ? p.row_lens[row] : p.columns;
  if (first_key >= length) return;

  DSAKIT_SHARED(QueryInLds, query);
  const int head_tiles = (p.heads + kTile - 1) / kTile;
  stage_query(query, p, row, head_tiles);
  // Every wave reads what all of them staged.
  __syncthreads();

  const int request = p.row_request ? p.row_request[row] : static_cast<int>(row / p.next_n);
  const bool request_valid = request >= 0 && request < p.requests;
  const std::int32_t* table = p.block_table + request * p.table_stride;
  const IndexPage geometry{p.page_size, p.layout};

  /// Physical page of a key, or -1.
  const auto page_of = [&](int key) -> std::int64_t {
    const int column = key / p.page_size;
    if (!request_valid || key >= length || column >= p.table_columns) return -1;
    const std::int64_t page = table[column];
    return page < p.pages ? page : -1;
  };

  for (int tile = wave_id(); tile < kKeysPerBlock / kTile; tile += kWaves) {
    const int tile_key = first_key + tile * kTile;
    if (tile_key >= length) break;
    const Fp8Rows keys = load_fp8_rows<kEncoding>([&](int i, int chunk) {
      const int key = tile_key + i;
      const std::int64_t page = page_of(key);
      if (page < 0) return Bytes16{};
      return load16_aligned4(p.cache + page * p.page_stride +
                             geometry.chunk_offset(key % p.page_size, chunk));
    });
    const bool keys_misread = any_misread<kEncoding>(keys);

    float sum[kColumnsPerLane] = {};
    for (int head_tile = 0; head_tile < head_tiles; ++head_tile) {
      const Fp8Rows heads = load_fp8_rows<kEncoding>(
          [&](int i, int chunk) { return query.row[head_tile * kTile + i][chunk]; });
      Accumulator dot = {};
      multiply<kEncoding>(dot, heads, keys, keys_misread || any_misread<kEncoding>(heads));
      for (int i = 0; i < kAccPerLane; ++i) {
        const int head = head_tile * kTile + accumulator_row(i);
        // A key with NaN gives NaN in every head: the rows that fill the tile take no part.
        if (head < p.heads) sum[accumulator_slot(i)] += relu(dot.v[i]) * query.weight[head];
      }
    }

    for (int slot = 0; slot < kColumnsPerLane; ++slot) {
      const float total = sum_over_rows(sum[slot]);
      const int key = tile_key + accumulator_column(slot);
      if (!stores_columns() || key >= length) continue;
      const std::int64_t page = page_of(key);
      float logit = -__builtin_inff();
      if (page >= 0) {
        const auto* scale = reinterpret_cast<const float*>(
            p.cache + page * p.page_stride + geometry.scale_offset(key % p.page_size));
        logit = total * (*scale * (1 / kDotScale<kEncoding>));
      }
      p.logits[row * p.logits_stride + key] = logit;
    }
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock)
    dsakit_index_logits_decode_e4m3fn(IndexLogitsDecodeParams p) {
  score_keys<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock)
    dsakit_index_logits_decode_e4m3fnuz(IndexLogitsDecodeParams p) {
  score_keys<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexLogitsDecodeParams& p) {
  return p.rows * workgroups_for(p.columns, kKeysPerBlock);
}

Status supports(const IndexLogitsDecodeParams& p) {
  DSAKIT_TRY(check_index_page(p.page_size, p.layout, p.page_stride, p.cache));
  if (p.heads < 1 || p.heads > kMaxHeads)
    return unsupported("heads is " + std::to_string(p.heads) + ", want 1 to " +
                       std::to_string(kMaxHeads));
  if (p.row_request == nullptr && p.next_n < 1)
    return unsupported("next_n is " + std::to_string(p.next_n) + ", want at least 1");
  DSAKIT_TRY(check_multiple("q_stride", p.q_stride, 16, "bytes"));
  DSAKIT_TRY(check_aligned("q", p.q, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_logits_decode(const IndexLogitsDecodeParams& p, void*, std::size_t,
                           hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0 || p.columns == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_index_logits_decode_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_logits_decode_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("index_logits_decode");
}

DSAKIT_REGISTER_KERNELS(IndexLogitsDecodeParams,
                        {"mfma16", supports, no_workspace<IndexLogitsDecodeParams>, workgroups,
                         erase_stream<IndexLogitsDecodeParams, index_logits_decode>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
