// projection: the library's product of qkv_a_proj, 7168 inputs and 2112 outputs a row.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/projection.hpp"

namespace {

void projection(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kIn = 7168;
  constexpr std::int64_t kOut = 1536 + 512 + 64;
  const std::int64_t rows = state.range(0);
  const auto values = [&](std::int64_t n) {
    return bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(n)));
  };
  bench.project(state, dsakit::optimized::projection(values(rows * kIn), values(kOut * kIn),
                                                     values(rows * kOut), rows, kIn, kOut));
  state.counters["flops"] = benchmark::Counter(static_cast<double>(2 * rows * kIn * kOut),
                                               benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(projection, 16, 4096);

} // namespace
