// Copy the keys and scales of whole requests out of the paged index cache.
#include <hip/hip_runtime.h>

#include "device/index_gather.hpp"
#include "device/index_page.hpp"
#include "device/vector.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kLanesPerRow = 8; // 16 bytes each
constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kLanesPerRow;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_cache_gather(IndexCacheGatherParams p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  if (row >= p.rows) return;

  const GatherPlace place = place_of_row(p, row);
  if (!place.inside) return;
  Bytes16 codes = {};
  float scale = 0;
  if (place.page >= 0) {
    const IndexPage geometry{p.page_size, p.layout};
    const std::uint8_t* base = p.cache + place.page * p.page_stride;
    codes = load16_aligned4(base + geometry.chunk_offset(place.token, part));
    scale = *reinterpret_cast<const float*>(base + geometry.scale_offset(place.token));
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
