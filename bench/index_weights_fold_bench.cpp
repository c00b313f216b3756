// index_weights_fold: 64 heads a token, 6 bytes in and 4 out a head.
#include <cmath>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_weights_fold.hpp"

namespace {

void index_weights_fold(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const std::int64_t tokens = state.range(0);
  const auto rows = static_cast<std::size_t>(tokens * kHeads);

  dsakit::optimized::IndexWeightsFoldParams params{};
  params.weights = bench.upload(dsakit::bench::ramp_bf16(rows));
  params.q_scale = bench.upload(std::vector<float>(rows, 0.5f));
  params.folded = bench.upload(std::vector<float>(rows));
  params.weights_stride = kHeads;
  params.tokens = tokens;
  params.heads = kHeads;
  params.head_scale = 0.125f;
  params.softmax_scale = static_cast<float>(1 / std::sqrt(128.0));
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * kHeads * (2 + 4 + 4));
}
DSAKIT_BENCHMARK(index_weights_fold, 4096, 32768);

} // namespace
