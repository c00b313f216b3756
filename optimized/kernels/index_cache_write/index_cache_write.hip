// Quantise indexer keys to e4m3 with one power-of-two scale a token, and write them to the cache.
#include <hip/hip_runtime.h>

#include "device/index_key.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kTokensPerBlock = kBlock / kLanesPerRow;

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void write_token(const IndexCacheWriteParams& p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kLanesPerRow;
  const bool inside = token < p.tokens;
  float x[8];
  unpack_bf16(inside ? load16(p.index_k + token * p.index_k_stride + 8 * part) : Bytes16{}, x);
  write_index_key<kEncoding>(p, inside ? p.slot_mapping[token] : -1, part, x);
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_cache_write_e4m3fn(IndexCacheWriteParams p) {
  write_token<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_cache_write_e4m3fnuz(IndexCacheWriteParams p) {
  write_token<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

Status supports(const IndexCacheWriteParams& p) {
  DSAKIT_TRY(check_index_page(p.page_size, p.layout, p.page_stride, p.cache));
  DSAKIT_TRY(check_multiple("index_k_stride", p.index_k_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("index_k", p.index_k, 16));
  DSAKIT_TRY(check_amax_floor("index_k_floor", p.amax_floor));
  return check_workgroups(workgroups_for(p.tokens, kTokensPerBlock));
}

std::int64_t workgroups(const IndexCacheWriteParams& p) {
  return workgroups_for(p.tokens, kTokensPerBlock);
}

} // namespace

Status index_cache_write(const IndexCacheWriteParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_index_cache_write_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_cache_write_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("index_cache_write");
}

DSAKIT_REGISTER_KERNELS(IndexCacheWriteParams,
                        {"rows16", supports, no_workspace<IndexCacheWriteParams>, workgroups,
                         erase_stream<IndexCacheWriteParams, index_cache_write>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
