// Quantise indexer keys to e4m3 with one power-of-two scale a token, and write them to the cache.
#include <hip/hip_runtime.h>

#include "device/fp8.hpp"
#include "device/index_page.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kLanesPerToken = 16; // 8 dims each: one 16-byte load
constexpr int kBlock = 256;
constexpr int kTokensPerBlock = kBlock / kLanesPerToken;

/// e of 2^ceil(log2(amax / qmax)): qmax is 1.75 * 2^8, 1.75 * 2^7 or 1.875 * 2^7 (spec 2.2).
/// An infinite amax gives the exponent of the largest finite one.
DSAKIT_DEVICE int scale_exponent(float amax, float qmax) {
  const std::uint32_t amax_bits = bits(amax);
  const std::uint32_t qmax_bits = bits(qmax);
  const int exponent = static_cast<int>(amax_bits >> 23) - static_cast<int>(qmax_bits >> 23);
  return exponent + ((amax_bits & 0x7FFFFFu) > (qmax_bits & 0x7FFFFFu) ? 1 : 0);
}

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void write_token(const IndexCacheWriteParams& p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerToken;
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kLanesPerToken;
  const bool inside = token < p.tokens;

  Bytes16 raw = {};
  if (inside) raw = load16(p.index_k + token * p.index_k_stride + 8 * part);
  float x[8];
  std::uint32_t amax = 0; // bf16 magnitudes order as integers
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t element = raw.word[i / 2] >> 16 * (i % 2) & 0xFFFFu;
    const std::uint32_t magnitude = element & 0x7FFFu;
    x[i] = bf16_to_float(element);
    if (magnitude <= 0x7F80u && magnitude > amax) amax = magnitude; // NaN takes no part
  }
  amax = max_of_16(amax);

  const std::int64_t slot = inside ? p.slot_mapping[token] : -1;
  const std::int64_t page = slot / p.page_size;
  if (slot < 0 || page >= p.pages) return;

  const float row_amax = bf16_to_float(amax);
  const int exponent = scale_exponent(row_amax > p.amax_floor ? row_amax : p.amax_floor, p.qmax);
  const float scale = from_bits(static_cast<std::uint32_t>(127 + exponent) << 23);
  const float inverse = from_bits(static_cast<std::uint32_t>(127 - exponent) << 23);
  Bytes8 codes;
  for (int half = 0; half < 2; ++half) {
    float y[4];
    for (int i = 0; i < 4; ++i)
      y[i] = x[4 * half + i] * inverse;
    codes.word[half] = convert_fp8<kEncoding>(y);
  }

  const IndexPage geometry{p.page_size, p.layout};
  const int in_page = static_cast<int>(slot - page * p.page_size);
  std::uint8_t* base = p.cache + page * p.page_stride;
  store8_aligned4(base + geometry.chunk_offset(in_page, part / 2) + part % 2 * 8, codes);
  if (part == 0) *reinterpret_cast<float*>(base + geometry.scale_offset(in_page)) = scale;
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
  // Scale and inverse scale must be normal numbers: 2^-126 <= floor / qmax.
  if (!(p.amax_floor >= 0x1p-117f)) return unsupported("index_k_floor below 2^-117");
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
