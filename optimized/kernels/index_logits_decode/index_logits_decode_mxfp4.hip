// MXFP4 indexer scores of a decode row against its cached keys, straight from the paged cache.
#include <hip/hip_runtime.h>

#include "device/index_scores_mxfp4.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

/// A key in its page; one without a page has zero codes.
struct CachedKey {
  bool present;
  const std::uint8_t* page;
  int token;
  Mxfp4Page geometry;

  DSAKIT_DEVICE Mxfp4Piece piece(int offset) const {
    return present ? load_piece(page + geometry.code_offset(token, offset)) : Mxfp4Piece{};
  }
  DSAKIT_DEVICE std::uint32_t scale(int group) const {
    return present ? page[geometry.scale_offset(token, group)] : 0u;
  }
};

} // namespace

DSAKIT_KERNEL __launch_bounds__(kScoreBlock)
    dsakit_index_logits_decode_mxfp4(IndexLogitsDecodeMxfp4Params p) {
  const std::int64_t blocks_per_row = (p.columns + kKeysPerBlock - 1) / kKeysPerBlock;
  const std::int64_t row = blockIdx.x / blocks_per_row;
  const int first_key = static_cast<int>(blockIdx.x % blocks_per_row) * kKeysPerBlock;
  const int length = p.row_lens[row] < p.columns ? p.row_lens[row] : p.columns;
  if (first_key >= length) return;

  DSAKIT_SHARED(Mxfp4QueryInLds, query);
  stage_query(query, p.q_packed + row * p.q_stride, p.q_scale + row * p.q_scale_stride,
              p.weights + row * p.weights_stride, p.heads);
  // Every wave reads what all of them staged.
  __syncthreads();

  const int request = p.row_request ? p.row_request[row] : static_cast<int>(row / p.next_n);
  const bool request_valid = request >= 0 && request < p.requests;
  const std::int32_t* table = p.block_table + (request_valid ? request : 0) * p.table_stride;
  const Mxfp4Page geometry{p.page_size, p.layout};

  const auto find_key = [&](int key) -> CachedKey {
    const int column = key / p.page_size;
    const bool in_table = request_valid && key < length && column < p.table_columns;
    const std::int64_t page = in_table ? table[column] : -1;
    const bool present = page >= 0 && page < p.pages;
    return {present, p.cache + (present ? page : 0) * p.page_stride, key % p.page_size, geometry};
  };

  for (int tile = wave_id(); tile < kKeysPerBlock / kTile; tile += kScoreWaves) {
    const int tile_key = first_key + tile * kTile;
    if (tile_key >= length) break;
    float total[kColumnsPerLane];
    score_tile(query, p.heads, [&](int i) { return find_key(tile_key + i); }, total);
    for (int slot = 0; slot < kColumnsPerLane; ++slot) {
      const int key = tile_key + accumulator_column(slot);
      if (!stores_columns() || key >= length) continue;
      p.logits[row * p.logits_stride + key] =
          find_key(key).present ? total[slot] * p.weight_scale : -__builtin_inff();
    }
  }
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexLogitsDecodeMxfp4Params& p) {
  return p.rows * workgroups_for(p.columns, kKeysPerBlock);
}

Status supports(const IndexLogitsDecodeMxfp4Params& p) {
  DSAKIT_TRY(check_mxfp4_page(p.page_size, p.layout, p.page_stride, p.cache));
  DSAKIT_TRY(check_index_heads(p.heads, kMaxIndexHeads));
  if (p.row_request == nullptr && p.next_n < 1)
    return unsupported("next_n is " + std::to_string(p.next_n) + ", want at least 1");
  DSAKIT_TRY(check_multiple("q_stride", p.q_stride, 16, "bytes"));
  DSAKIT_TRY(check_aligned("q_packed", p.q_packed, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_logits_decode_mxfp4(const IndexLogitsDecodeMxfp4Params& p, void*, std::size_t,
                                 hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0 || p.columns == 0) return {};
  hipLaunchKernelGGL(dsakit_index_logits_decode_mxfp4, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kScoreBlock), 0, stream, p);
  return launch_status("index_logits_decode_mxfp4");
}

DSAKIT_REGISTER_KERNELS(IndexLogitsDecodeMxfp4Params,
                        {"mxfp4_mfma16", supports, no_workspace<IndexLogitsDecodeMxfp4Params>,
                         workgroups,
                         erase_stream<IndexLogitsDecodeMxfp4Params, index_logits_decode_mxfp4>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
