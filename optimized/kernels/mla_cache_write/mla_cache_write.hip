// Quantise latents to e4m3 with one fp32 scale a tile of 128, and write 656-byte records.
#include <hip/hip_runtime.h>

#include "device/mla_record.hpp"
#include "device/quantise.hpp"
#include "dsakit/optimized/mla_cache_write.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kLanesPerToken = kMlaTiles * kLanesPerRow; // 16 lanes a tile
constexpr int kBlock = 256;
constexpr int kTokensPerBlock = kBlock / kLanesPerToken;
constexpr float kSmallestScale = 0x1p-126f; // FLT_MIN

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void write_record(const MlaCacheWriteParams& p) {
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerToken; // of the token
  const std::int64_t token =
      static_cast<std::int64_t>(blockIdx.x) * kTokensPerBlock + threadIdx.x / kLanesPerToken;
  const bool inside = token < p.tokens;
  float x[8];
  unpack_bf16(inside ? load16(p.kv_c + token * p.kv_c_stride + 8 * lane) : Bytes16{}, x);
  float amax = amax_of_row(x);

  const std::int64_t slot = inside ? p.slot_mapping[token] : -1;
  const std::int64_t page = slot / p.page_size;
  if (slot < 0 || page >= p.pages) return;

  if (amax > kLargestBf16) amax = kLargestBf16;
  const float quotient = amax / p.qmax;
  const float scale = quotient > kSmallestScale ? quotient : kSmallestScale;
  float y[8];
  for (int i = 0; i < 8; ++i)
    y[i] = x[i] / scale;

  std::uint8_t* record =
      p.cache + page * p.page_stride + (slot - page * p.page_size) * p.record_stride;
  store8(record + 8 * lane, convert_fp8x8<kEncoding>(y));
  if (lane % kLanesPerRow == 0)
    *reinterpret_cast<float*>(record + kMlaScaleOffset + 4 * (lane / kLanesPerRow)) = scale;
  if (lane < kMlaPe / 8)
    store16(record + kMlaPeOffset + 16 * lane, load16(p.k_pe + token * p.k_pe_stride + 8 * lane));
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_mla_cache_write_e4m3fn(MlaCacheWriteParams p) {
  write_record<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_mla_cache_write_e4m3fnuz(MlaCacheWriteParams p) {
  write_record<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const MlaCacheWriteParams& p) {
  return workgroups_for(p.tokens, kTokensPerBlock);
}

Status supports(const MlaCacheWriteParams& p) {
  DSAKIT_TRY(check_mla_cache(p.page_size, p.page_stride, p.record_stride, p.cache));
  DSAKIT_TRY(check_multiple("kv_c_stride", p.kv_c_stride, 8, "elements"));
  DSAKIT_TRY(check_multiple("k_pe_stride", p.k_pe_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("kv_c", p.kv_c, 16));
  DSAKIT_TRY(check_aligned("k_pe", p.k_pe, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status mla_cache_write(const MlaCacheWriteParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_mla_cache_write_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_mla_cache_write_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("mla_cache_write");
}

DSAKIT_REGISTER_KERNELS(MlaCacheWriteParams,
                        {"rows16", supports, no_workspace<MlaCacheWriteParams>, workgroups,
                         erase_stream<MlaCacheWriteParams, mla_cache_write>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
