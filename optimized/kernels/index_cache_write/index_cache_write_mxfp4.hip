// Quantise indexer keys to MXFP4, one power-of-two scale for each 32 elements, and write them to
// the cache.
#include <hip/hip_runtime.h>

#include "device/index_page.hpp"
#include "device/quantise_mxfp4.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kTokensPerBlock = kBlock / kLanesPerRow;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock)
    dsakit_index_cache_write_mxfp4(IndexCacheWriteMxfp4Params p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kLanesPerRow;
  const bool inside = row < p.tokens;
  float x[8];
  unpack_bf16(inside ? load16(p.index_k + row * p.index_k_stride + 8 * part) : Bytes16{}, x);
  const Mxfp4Codes quantised = quantise_mxfp4(x, p.hadamard);

  const std::int64_t slot = inside ? p.slot_mapping[row] : -1;
  const std::int64_t page = slot / p.page_size;
  if (slot < 0 || page >= p.pages) return;
  const Mxfp4Page geometry{p.page_size, p.layout};
  const int token = static_cast<int>(slot - page * p.page_size);
  std::uint8_t* base = p.cache + page * p.page_stride;
  *reinterpret_cast<std::uint32_t*>(base + geometry.code_offset(token, 4 * part)) = quantised.codes;
  if (part % 4 == 0) base[geometry.scale_offset(token, part / 4)] = quantised.scale;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexCacheWriteMxfp4Params& p) {
  return workgroups_for(p.tokens, kTokensPerBlock);
}

Status supports(const IndexCacheWriteMxfp4Params& p) {
  DSAKIT_TRY(check_mxfp4_page(p.page_size, p.layout, p.page_stride, p.cache));
  DSAKIT_TRY(check_multiple("index_k_stride", p.index_k_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("index_k", p.index_k, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_cache_write_mxfp4(const IndexCacheWriteMxfp4Params& p, void*, std::size_t,
                               hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  hipLaunchKernelGGL(dsakit_index_cache_write_mxfp4, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kBlock), 0, stream, p);
  return launch_status("index_cache_write_mxfp4");
}

DSAKIT_REGISTER_KERNELS(IndexCacheWriteMxfp4Params,
                        {"mxfp4_rows16", supports, no_workspace<IndexCacheWriteMxfp4Params>,
                         workgroups,
                         erase_stream<IndexCacheWriteMxfp4Params, index_cache_write_mxfp4>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
