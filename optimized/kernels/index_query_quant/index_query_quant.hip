// Quantise indexer queries to e4m3 with one power-of-two scale a head, and fold the scales into the
// head weights in the same launch.
#include <hip/hip_runtime.h>

#include "device/index_weights.hpp"
#include "device/quantise.hpp"
#include "dsakit/optimized/index_query_quant.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kLanesPerRow;

template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void quantise_row(const IndexQueryQuantParams& p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  const bool inside = row < p.tokens * p.heads;
  const std::int64_t token = row / p.heads;
  const std::int64_t head = row % p.heads;
  float x[8];
  unpack_bf16(
      inside ? load16(p.index_q + token * p.index_q_stride + head * 128 + 8 * part) : Bytes16{}, x);
  const float amax = amax_of_row(x);
  if (!inside) return;

  const int exponent = scale_exponent(amax > p.amax_floor ? amax : p.amax_floor, p.qmax);
  float y[8];
  for (int i = 0; i < 8; ++i) {
    const float scaled = x[i] * power_of_two(-exponent);
    y[i] = scaled > p.qmax ? p.qmax : scaled < -p.qmax ? -p.qmax : scaled; // NaN stays NaN
  }
  store8(p.q_fp8 + row * 128 + 8 * part, convert_fp8x8<kEncoding>(y));
  if (part == 0) {
    const float scale = power_of_two(exponent);
    p.q_scale[row] = scale;
    if (p.weights)
      p.folded[row] = fold_weight(p.weights[token * p.weights_stride + head], scale, p.head_scale,
                                  p.softmax_scale, p.weight_fold);
  }
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_query_quant_e4m3fn(IndexQueryQuantParams p) {
  quantise_row<Fp8Encoding::e4m3fn>(p);
}
DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_index_query_quant_e4m3fnuz(IndexQueryQuantParams p) {
  quantise_row<Fp8Encoding::e4m3fnuz>(p);
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexQueryQuantParams& p) {
  return workgroups_for(p.tokens * p.heads, kRowsPerBlock);
}

Status supports(const IndexQueryQuantParams& p) {
  if (p.heads < 1) return unsupported("heads is " + std::to_string(p.heads) + ", want at least 1");
  if ((p.weights == nullptr) != (p.folded == nullptr))
    return unsupported("weights and folded go together");
  DSAKIT_TRY(check_multiple("index_q_stride", p.index_q_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("index_q", p.index_q, 16));
  DSAKIT_TRY(check_aligned("q_fp8", p.q_fp8, 16));
  DSAKIT_TRY(check_amax_floor("index_q_floor", p.amax_floor));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_query_quant(const IndexQueryQuantParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  const dim3 grid(static_cast<unsigned>(workgroups(p)));
  if (p.encoding == Fp8Encoding::e4m3fn)
    hipLaunchKernelGGL(dsakit_index_query_quant_e4m3fn, grid, dim3(kBlock), 0, stream, p);
  else
    hipLaunchKernelGGL(dsakit_index_query_quant_e4m3fnuz, grid, dim3(kBlock), 0, stream, p);
  return launch_status("index_query_quant");
}

DSAKIT_REGISTER_KERNELS(IndexQueryQuantParams,
                        {"rows16", supports, no_workspace<IndexQueryQuantParams>, workgroups,
                         erase_stream<IndexQueryQuantParams, index_query_quant>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
