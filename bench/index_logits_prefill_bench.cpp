// index_logits_prefill: 64 heads; one request's causal windows over its own keys.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"

namespace {

void index_logits_prefill(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const auto keys = static_cast<std::int32_t>(state.range(0));
  const std::int64_t rows = kind == dsakit::optimized::DeviceKind::host ? 2 : 1024;
  std::vector<std::int32_t> ke(static_cast<std::size_t>(rows));
  std::int64_t scored = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    ke[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(keys - rows + r + 1);
    scored += ke[static_cast<std::size_t>(r)];
  }

  dsakit::optimized::IndexLogitsPrefillParams params{};
  params.q =
      bench.upload(dsakit::bench::random_codes(static_cast<std::size_t>(rows * kHeads) * 128));
  params.k_fp8 = bench.upload(dsakit::bench::random_codes(static_cast<std::size_t>(keys) * 128));
  params.k_scale = bench.upload(std::vector<float>(static_cast<std::size_t>(keys), 0.125f));
  params.weights = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * kHeads), 0.25f));
  params.ks = bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0));
  params.ke = bench.upload(ke);
  params.logits = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * keys)));
  params.q_stride = kHeads * 128;
  params.weights_stride = kHeads;
  params.logits_stride = keys;
  params.rows = rows;
  params.heads = kHeads;
  params.keys = keys;
  params.columns = keys;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * scored * 4);
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * 128 * kHeads * static_cast<double>(scored),
                                                benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(index_logits_prefill, 4096, 32768);

} // namespace
