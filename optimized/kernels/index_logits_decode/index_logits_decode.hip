// FP8 indexer scores of a decode row against its cached keys, straight from the paged cache.
#include <hip/hip_runtime.h>

#include "device/index_scores.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void score_keys(const IndexLogitsDecodeParams& p) {
  const std::int64_t blocks_per_row = (p.columns + kKeysPerBlock - 1) / kKeysPerBlock;
  const std::int64_t row = blockIdx.x / blocks_per_row;
  const int first_key = static_cast<int>(blockIdx.x % blocks_per_row) * kKeysPerBlock;
  const int length = p.row_lens[row] < p.columns ? p.row_lens[row] : p.columns;
  if (first_key >= length) return;

  DSAKIT_SHARED(QueryInLds, query);
  stage_query(query, p.q + row * p.q_stride, p.weights + row * p.weights_stride, p.heads);
  // Every wave reads what all of them staged.
  __syncthreads();

  const int request = p.row_request ? p.row_request[row] : static_cast<int>(row / p.next_n);
  const bool request_valid = request >= 0 && request < p.requests;
  const std::int32_t* table = p.block_table + (request_valid ? request : 0) * p.table_stride;
  const IndexPage geometry{p.page_size, p.layout};

  /// Physical page of a key, or -1.
  const auto page_of = [&](int key) -> std::int64_t {
    const int column = key / p.page_size;
    if (!request_valid || key >= length || column >= p.table_columns) return -1;
    const std::int64_t page = table[column];
    return page < p.pages ? page : -1;
  };

  for (int tile = wave_id(); tile < kKeysPerBlock / kTile; tile += kScoreWaves) {
    const int tile_key = first_key + tile * kTile;
    if (tile_key >= length) break;
    float total[kColumnsPerLane];
    score_tile<kEncoding>(
        query, p.heads,
        [&](int i, int chunk) {
          const int key = tile_key + i;
          const std::int64_t page = page_of(key);
          if (page < 0) return Bytes16{};
          return load16_aligned4(p.cache + page * p.page_stride +
                                 geometry.chunk_offset(key % p.page_size, chunk));
        },
        total);
    for (int slot = 0; slot < kColumnsPerLane; ++slot) {
      const int key = tile_key + accumulator_column(slot);
      if (!stores_columns() || key >= length) continue;
      const std::int64_t page = page_of(key);
      float logit = -__builtin_inff();
      if (page >= 0)
        logit = scale_logit<kEncoding>(
            total[slot], *reinterpret_cast<const float*>(p.cache + page * p.page_stride +
                                                         geometry.scale_offset(key % p.page_size)));
      p.logits[row * p.logits_stride + key] = logit;
    }
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
    dsakit_index_logits_decode_e4m3fn(IndexLogitsDecodeParams p) {
  score_keys<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
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
  DSAKIT_TRY(check_index_heads(p.heads, kMaxIndexHeads));
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
    hipLaunchKernelGGL(dsakit_index_logits_decode_e4m3fn, grid, dim3(kScoreBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_logits_decode_e4m3fnuz, grid, dim3(kScoreBlock), 0, stream, p);
  return launch_status("index_logits_decode");
}

DSAKIT_REGISTER_KERNELS(IndexLogitsDecodeParams,
                        {"mfma16", supports, no_workspace<IndexLogitsDecodeParams>, workgroups,
                         erase_stream<IndexLogitsDecodeParams, index_logits_decode>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
