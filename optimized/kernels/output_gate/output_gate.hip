// The output gate, 8 elements a lane.
#include <hip/hip_runtime.h>

#include "device/math.hpp"
#include "dsakit/optimized/output_gate.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;

/// The power of e is at most 1, so that neither overflows nor a small sigmoid is lost.
DSAKIT_DEVICE float sigmoid(float x) {
  const float power = exponential(x < 0 ? x : -x);
  return (x < 0 ? power : 1.0f) / (1.0f + power);
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_output_gate(OutputGateParams p) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const std::int64_t row = chunk / (p.width / 8);
  const std::int64_t column = chunk % (p.width / 8) * 8;
  if (row >= p.rows) return;
  Bytes16 gated = {};
  if (!p.row_lens || p.row_lens[row] > 0) {
    float value[8];
    float gate[8];
    unpack_bf16(load16(p.attn_value + row * p.attn_value_stride + column), value);
    unpack_bf16(load16(p.gate + row * p.gate_stride + column), gate);
    for (int i = 0; i < 8; ++i) {
      float s = sigmoid(gate[i]);
      if (p.rounding == GateRounding::two) s = bf16_to_float(float_to_bf16(s));
      gated.word[i / 2] |= float_to_bf16(value[i] * s) << 16 * (i % 2);
    }
  }
  store16(p.attn_gated + row * p.attn_gated_stride + column, gated);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const OutputGateParams& p) {
  return workgroups_for(p.rows * (p.width / 8), kBlock);
}

Status supports(const OutputGateParams& p) {
  if (p.width < 8) return unsupported("width is " + std::to_string(p.width) + ", want at least 8");
  DSAKIT_TRY(check_multiple("width", p.width, 8, "elements"));
  DSAKIT_TRY(check_multiple("attn_value_stride", p.attn_value_stride, 8, "elements"));
  DSAKIT_TRY(check_multiple("gate_stride", p.gate_stride, 8, "elements"));
  DSAKIT_TRY(check_multiple("attn_gated_stride", p.attn_gated_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("attn_value", p.attn_value, 16));
  DSAKIT_TRY(check_aligned("gate", p.gate, 16));
  DSAKIT_TRY(check_aligned("attn_gated", p.attn_gated, 16));
  return check_workgroups(workgroups(p));
}

} // namespace

Status output_gate(const OutputGateParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_output_gate, dim3(static_cast<unsigned>(workgroups(p))), dim3(kBlock),
                     0, stream, p);
  return launch_status("output_gate");
}

DSAKIT_REGISTER_KERNELS(OutputGateParams, {"lane_8", supports, no_workspace<OutputGateParams>,
                                           workgroups, erase_stream<OutputGateParams, output_gate>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
