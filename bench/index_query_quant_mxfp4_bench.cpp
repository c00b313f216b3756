// index_query_quant to MXFP4: 64 heads a token, 256 bytes in and 68 out a head.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_query_quant.hpp"

namespace {

void index_query_quant_mxfp4(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const std::int64_t tokens = state.range(0);
  const auto rows = static_cast<std::size_t>(tokens * kHeads);

  dsakit::optimized::IndexQueryQuantMxfp4Params params{};
  params.index_q = bench.upload(dsakit::bench::ramp_bf16(rows * 128));
  params.q_packed = bench.upload(std::vector<std::uint8_t>(rows * 64));
  params.q_scale = bench.upload(std::vector<std::uint8_t>(rows * 4));
  params.index_q_stride = kHeads * 128;
  params.tokens = tokens;
  params.heads = kHeads;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * kHeads * (256 + 68));
}
DSAKIT_BENCHMARK(index_query_quant_mxfp4, 256, 4096);

} // namespace
