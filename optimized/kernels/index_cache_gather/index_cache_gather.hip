// Copy the keys and scales of whole requests out of the paged index cache.
#include <hip/hip_runtime.h>

#include "device/index_page.hpp"
#include "device/vector.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kLanesPerRow = 8; // 16 bytes each
constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kLanesPerRow;

/// The last request that starts at or before `row`; -1 before the first. Empty requests share a
/// start, so the last of them is the one that may hold the row.
DSAKIT_DEVICE int find_request(const std::int32_t* cu_seq_lens, int requests, std::int64_t row) {
  int low = 0; // first request that starts after row
  int high = requests;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (cu_seq_lens[middle] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low - 1;
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_cache_gather(IndexCacheGatherParams p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  if (row >= p.rows) return;

  const int request =
      p.row_request ? p.row_request[row] : find_request(p.cu_seq_lens, p.requests, row);
  if (request < 0 || request >= p.requests) return;
  const std::int64_t position = row - p.cu_seq_lens[request];
  if (position < 0 || row >= p.cu_seq_lens[request + 1]) return;

  const std::int64_t column = position / p.page_size;
  const std::int64_t page =
      column < p.table_columns ? p.block_table[request * p.table_stride + column] : -1;
  Bytes16 codes = {};
  float scale = 0;
  if (page >= 0 && page < p.pages) {
    const IndexPage geometry{p.page_size, p.layout};
    const int token = static_cast<int>(position % p.page_size);
    const std::uint8_t* base = p.cache + page * p.page_stride;
    codes = load16_aligned4(base + geometry.chunk_offset(token, part));
    scale = *reinterpret_cast<const float*>(base + geometry.scale_offset(token));
  }
  store16(p.k_fp8 + row * kIndexHeadDim + 16 * part, codes);
  if (part == 0) p.k_scale[row] = scale;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

Status supports(const IndexCacheGatherParams& p) {
  DSAKIT_TRY(check_index_page(p.page_size, p.layout, p.page_stride, p.cache));
  DSAKIT_TRY(check_aligned("k_fp8", p.k_fp8, 16));
  return check_workgroups(workgroups_for(p.rows, kRowsPerBlock));
}

std::int64_t workgroups(const IndexCacheGatherParams& p) {
  return workgroups_for(p.rows, kRowsPerBlock);
}

} // namespace

Status index_cache_gather(const IndexCacheGatherParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_index_cache_gather, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kBlock), 0, stream, p);
  return launch_status("index_cache_gather");
}

DSAKIT_REGISTER_KERNELS(IndexCacheGatherParams,
                        {"copy16", supports, no_workspace<IndexCacheGatherParams>, workgroups,
                         erase_stream<IndexCacheGatherParams, index_cache_gather>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
