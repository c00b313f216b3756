// RMSNorm of rows of any width, a wave a row: the norms of the layer's queries and latents.
#include <hip/hip_runtime.h>

#include "device/lane.hpp"
#include "dsakit/optimized/rms_norm.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kWaveSize;

DSAKIT_DEVICE float round_bf16(float x) {
  return bf16_to_float(float_to_bf16(x));
}

/// The sum over the wave: the same bits in each of its lanes.
DSAKIT_DEVICE float sum_of_wave(float x) {
  x = sum_of_16(x);
  x += from_lane_xor<16>(x);
  if constexpr (kWaveSize == 64) x += from_lane_xor<32>(x);
  return x;
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_rms_norm(RmsNormParams p) {
  const int chunks = p.width / 8;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + wave_id();
  const bool inside = row < p.rows;
  const std::uint16_t* x_row = p.x + row * p.x_stride;
  float x[8];
  float squares = 0;
  for (int c = lane_id(); inside && c < chunks; c += kWaveSize) {
    unpack_bf16(load16(x_row + 8 * c), x);
    for (int i = 0; i < 8; ++i)
      squares += x[i] * x[i];
  }
  const float mean = sum_of_wave(squares) / static_cast<float>(p.width);
  const float r = 1.0f / __builtin_sqrtf(mean + p.eps);

  // The row once more, now out of a cache: no width is too wide for registers.
  for (int c = lane_id(); inside && c < chunks; c += kWaveSize) {
    unpack_bf16(load16(x_row + 8 * c), x);
    Bytes16 y = {};
    for (int i = 0; i < 8; ++i) {
      const float n = p.rounding == RmsNormRounding::two ? round_bf16(x[i] * r) : x[i] * r;
      y.word[i / 2] |= float_to_bf16(n * round_bf16(p.weight[8 * c + i])) << 16 * (i % 2);
    }
    store16(p.y + row * p.y_stride + 8 * c, y);
  }
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const RmsNormParams& p) {
  return workgroups_for(p.rows, kRowsPerBlock);
}

Status supports(const RmsNormParams& p) {
  if (p.width < 8) return unsupported("width is " + std::to_string(p.width) + ", want at least 8");
  DSAKIT_TRY(check_multiple("width", p.width, 8, "elements"));
  DSAKIT_TRY(check_multiple("x_stride", p.x_stride, 8, "elements"));
  DSAKIT_TRY(check_multiple("y_stride", p.y_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("x", p.x, 16));
  DSAKIT_TRY(check_aligned("y", p.y, 16));
  DSAKIT_TRY(check_aligned("weight", p.weight, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status rms_norm(const RmsNormParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_rms_norm, dim3(static_cast<unsigned>(workgroups(p))), dim3(kBlock), 0,
                     stream, p);
  return launch_status("rms_norm");
}

DSAKIT_REGISTER_KERNELS(RmsNormParams, {"wave_row", supports, no_workspace<RmsNormParams>,
                                        workgroups, erase_stream<RmsNormParams, rms_norm>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
