// Copy the MXFP4 keys and scales of whole requests out of the paged index cache.
#include <hip/hip_runtime.h>

#include "device/index_gather.hpp"
#include "device/index_page.hpp"
#include "device/vector.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kLanesPerRow = kMxfp4Groups; // a group each: 16 bytes and a scale
constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kLanesPerRow;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock)
    dsakit_index_cache_gather_mxfp4(IndexCacheGatherMxfp4Params p) {
  const int group = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  if (row >= p.rows) return;
  const GatherPlace place = place_of_row(p, row);
  if (!place.inside) return;
  Bytes16 codes = {};
  std::uint8_t scale = 0;
  if (place.page >= 0) {
    const Mxfp4Page geometry{p.page_size, p.layout};
    const std::uint8_t* base = p.cache + place.page * p.page_stride;
    codes = load16_aligned4(base + geometry.code_offset(place.token, 16 * group));
    scale = base[geometry.scale_offset(place.token, group)];
  }
  store16(p.k_packed + row * kMxfp4Bytes + 16 * group, codes);
  p.k_scale[row * kMxfp4Groups + group] = scale;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexCacheGatherMxfp4Params& p) {
  return workgroups_for(p.rows, kRowsPerBlock);
}

Status supports(const IndexCacheGatherMxfp4Params& p) {
  DSAKIT_TRY(check_mxfp4_page(p.page_size, p.layout, p.page_stride, p.cache));
  DSAKIT_TRY(check_aligned("k_packed", p.k_packed, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_cache_gather_mxfp4(const IndexCacheGatherMxfp4Params& p, void*, std::size_t,
                                hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_index_cache_gather_mxfp4, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kBlock), 0, stream, p);
  return launch_status("index_cache_gather_mxfp4");
}

DSAKIT_REGISTER_KERNELS(IndexCacheGatherMxfp4Params,
                        {"mxfp4_copy16", supports, no_workspace<IndexCacheGatherMxfp4Params>,
                         workgroups,
                         erase_stream<IndexCacheGatherMxfp4Params, index_cache_gather_mxfp4>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
