// Quantise indexer queries to MXFP4, one power-of-two scale for each 32 elements.
#include <hip/hip_runtime.h>

#include "device/index_page.hpp"
#include "device/quantise_mxfp4.hpp"
#include "dsakit/optimized/index_query_quant.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 256;
constexpr int kRowsPerBlock = kBlock / kLanesPerRow;

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock)
    dsakit_index_query_quant_mxfp4(IndexQueryQuantMxfp4Params p) {
  const int part = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kLanesPerRow;
  const bool inside = row < p.tokens * p.heads;
  const std::int64_t token = row / p.heads;
  const std::int64_t head = row % p.heads;
  float x[8];
  unpack_bf16(
      inside ? load16(p.index_q + token * p.index_q_stride + head * 128 + 8 * part) : Bytes16{}, x);
  const Mxfp4Codes quantised = quantise_mxfp4(x, p.hadamard);
  if (!inside) return;
  *reinterpret_cast<std::uint32_t*>(p.q_packed + row * kMxfp4Bytes + 4 * part) = quantised.codes;
  if (part % 4 == 0) p.q_scale[row * kMxfp4Groups + part / 4] = quantised.scale;
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const IndexQueryQuantMxfp4Params& p) {
  return workgroups_for(p.tokens * p.heads, kRowsPerBlock);
}

Status supports(const IndexQueryQuantMxfp4Params& p) {
  if (p.heads < 1) return unsupported("heads is " + std::to_string(p.heads) + ", want at least 1");
  DSAKIT_TRY(check_multiple("index_q_stride", p.index_q_stride, 8, "elements"));
  DSAKIT_TRY(check_aligned("index_q", p.index_q, 16));
  DSAKIT_TRY(check_aligned("q_packed", p.q_packed, 4));
  return check_workgroups(workgroups(p));
}

} // namespace

Status index_query_quant_mxfp4(const IndexQueryQuantMxfp4Params& p, void*, std::size_t,
                               hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.tokens == 0) return {};
  hipLaunchKernelGGL(dsakit_index_query_quant_mxfp4, dim3(static_cast<unsigned>(workgroups(p))),
                     dim3(kBlock), 0, stream, p);
  return launch_status("index_query_quant_mxfp4");
}

DSAKIT_REGISTER_KERNELS(IndexQueryQuantMxfp4Params,
                        {"mxfp4_rows16", supports, no_workspace<IndexQueryQuantMxfp4Params>,
                         workgroups,
                         erase_stream<IndexQueryQuantMxfp4Params, index_query_quant_mxfp4>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
