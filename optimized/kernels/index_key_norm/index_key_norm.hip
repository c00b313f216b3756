// LayerNorm or RMSNorm of indexer keys; fused, the normed key is quantised and written to the cache
// while it is still in registers.
#include <hip/hip_runtime.h>

#include "device/index_key.hpp"
#include "dsakit/optimized/index_key_norm.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kTokensPerBlock = kBlock / kLanesPerRow;

DSAKIT_DEVICE float round_bf16(float x) {
  return bf16_to_float(float_to_bf16(x));
}

DSAKIT_DEVICE float reciprocal_root(float x) {
  return 1.0f / __builtin_sqrtf(x);
}

/// x: elements 8 * part ... + 7 of a key; normed in place, rounded to bf16.
DSAKIT_DEVICE void norm_key(const IndexKeyNormParams& p, int part, float (&x)[8]) {
  if (p.norm == IndexKNorm::layernorm) {
    float sum = 0;
    for (int i = 0; i < 8; ++i)
      sum += x[i];
    const float mean = sum_of_16(sum) / kIndexHeadDim;
    float squares = 0;
    for (int i = 0; i < 8; ++i)
      squares += (x[i] - mean) * (x[i] - mean);
    const float r = reciprocal_root(sum_of_16(squares) / kIndexHeadDim + p.eps);
    for (int i = 0; i < 8; ++i) // one rounding, as PyTorch's GPU kernel: the two may cancel
      x[i] = round_bf16(__builtin_fmaf((x[i] - mean) * r, round_bf16(p.weight[8 * part + i]),
                                       round_bf16(p.bias[8 * part + i])));
    return;
  }
  float squares = 0;
  for (int i = 0; i < 8; ++i)
    squares += x[i] * x[i];
  const float r = reciprocal_root(sum_of_16(squares) / kIndexHeadDim + p.eps);
  for (int i = 0; i < 8; ++i) {
    const float n = p.rounding == RmsNormRounding::two ? round_bf16(x[i] * r) : x[i] * r;
    x[i] = round_bf16(n * round_bf16(p.weight[8 * part + i]));
  }
}

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void norm_token(const IndexKeyNormParams& p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kLanesPerRow;
  const bool inside = token < p.tokens;
  float x[8];
  unpack_bf16(inside ? load16(p.index_k_raw + token * p.index_k_raw_stride + 8 * part) : Bytes16{},
              x);
  norm_key(p, part, x);
  if (inside && p.index_k) {
    Bytes16 y = {};
    for (int i = 0; i < 8; ++i)
      y.word[i / 2] |= float_to_bf16(x[i]) << 16 * (i % 2);
    store16(p.index_k + token * kIndexHeadDim + 8 * part, y);
  }
  if (p.write_cache) {
    const bool has_slot = inside && token < p.cache.tokens;
    write_index_key<kEncoding>(p.cache, has_slot ? p.cache.slot_mapping[token] : -1, part, x);
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_key_norm_e4m3fn(IndexKeyNormParams p) {
  norm_token<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_key_norm_e4m3fnuz(IndexKeyNormParams p) {
  norm_token<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexKeyNormParams& p) {
  return workgroups_for(p.tokens, kTokensPerBlock);
}

Status supports(const IndexKeyNormParams& p) {
  if (p.norm == IndexKNorm::layernorm && p.bias == nullptr)
    return unsupported("layernorm without a bias");
  DSAKIT_TRY(check_multiple("index_k_raw_stride", p.index_k_raw_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("index_k_raw", p.index_k_raw, 16));
  DSAKIT_TRY(check_aligned("index_k", p.index_k, 16));
  if (p.write_cache) {
    DSAKIT_TRY(
        check_index_page(p.cache.page_size, p.cache.layout, p.cache.page_stride, p.cache.cache));
    DSAKIT_TRY(check_amax_floor("index_k_floor", p.cache.amax_floor));
    if (p.cache.tokens > p.tokens)
      return unsupported(std::to_string(p.cache.tokens) + " slots for " + std::to_string(p.tokens) +
                         " tokens");
  }
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_key_norm(const IndexKeyNormParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.cache.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_index_key_norm_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_key_norm_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("index_key_norm");
}

DSAKIT_REGISTER_KERNELS(IndexKeyNormParams,
                        {"rows16", supports, no_workspace<IndexKeyNormParams>, workgroups,
                         erase_stream<IndexKeyNormParams, index_key_norm>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
