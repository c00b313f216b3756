// An fp8 weight to bf16, 8 elements a lane.
#include <hip/hip_runtime.h>

#include "device/fp8.hpp"
#include "dsakit/optimized/weight_dequant.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kPerLane = 8; // a block of scales is a multiple of it
constexpr std::int64_t kScaleBlock = 128;

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void widen(const WeightDequantParams& p) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t output = chunk / (p.inputs / kPerLane);
  const std::int64_t input = chunk % (p.inputs / kPerLane) * kPerLane;
  if (output >= p.outputs) return;
  const std::int64_t scale_columns = (p.inputs + kScaleBlock - 1) / kScaleBlock;
  const float scale = p.scales[p.format == WeightFormat::fp8_channel
                                   ? output
                                   : output / kScaleBlock * scale_columns + input / kScaleBlock];
  const std::int64_t at = output * p.inputs + input;
  const Bytes8 codes = *reinterpret_cast<const Bytes8*>(p.codes + at);
  Bytes16 weight = {};
  for (int i = 0; i < kPerLane; ++i) {
    const float value = fp8_to_float<kEncoding>(codes.word[i / 4] >> 8 * (i % 4) & 0xFFu) * scale;
    weight.word[i / 2] |= float_to_bf16(value) << 16 * (i % 2);
  }
  store16(p.weight + at, weight);
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_weight_dequant_e4m3fn(WeightDequantParams p) {
  widen<Fp8Encoding::e4m3fn>(p);
}

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_weight_dequant_e4m3fnuz(WeightDequantParams p) {
  widen<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const WeightDequantParams& p) {
  return workgroups_for(p.outputs * (p.inputs / kPerLane), kBlock);
}

Status supports(const WeightDequantParams& p) {
  if (p.format == WeightFormat::bf16)
    return unsupported("weight_format is bf16, want fp8_channel | fp8_block");
  DSAKIT_TRY(check_multiple("inputs", p.inputs, kPerLane, "elements"));
  DSAKIT_TRY(check_aligned("codes", p.codes, 8));
  DSAKIT_TRY(check_aligned("weight", p.weight, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status weight_dequant(const WeightDequantParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.outputs == 0 || p.inputs == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_weight_dequant_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_weight_dequant_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("weight_dequant");
}

DSAKIT_REGISTER_KERNELS(WeightDequantParams,
                        {"lane_8_fp8", supports, no_workspace<WeightDequantParams>, workgroups,
                         erase_stream<WeightDequantParams, weight_dequant>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
