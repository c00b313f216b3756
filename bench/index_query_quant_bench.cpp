// index_query_quant: 64 heads a token, 256 bytes in and 128 out a head, folds its scale into a
// weight.
#include <cmath>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_query_quant.hpp"

namespace {

void index_query_quant(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const std::int64_t tokens = state.range(0);
  const auto rows = static_cast<std::size_t>(tokens * kHeads);

  dsakit::optimized::IndexQueryQuantParams params{};
  params.index_q = bench.upload(dsakit::bench::ramp_bf16(rows * 128));
  params.weights = bench.upload(dsakit::bench::ramp_bf16(rows));
  params.q_fp8 = bench.upload(std::vector<std::uint8_t>(rows * 128));
  params.q_scale = bench.upload(std::vector<float>(rows));
  params.folded = bench.upload(std::vector<float>(rows));
  params.index_q_stride = kHeads * 128;
  params.weights_stride = kHeads;
  params.tokens = tokens;
  params.heads = kHeads;
  params.amax_floor = 1e-10f;
  params.qmax = 448;
  params.head_scale = 0.125f;
  params.softmax_scale = static_cast<float>(1 / std::sqrt(128.0));
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * kHeads * (256 + 2 + 128 + 4 + 4));
}
DSAKIT_BENCHMARK(index_query_quant, 256, 4096);

} // namespace
