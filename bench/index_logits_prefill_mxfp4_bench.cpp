// index_logits_prefill in MXFP4: 64 heads; one request's causal windows over its own keys.
#include <cmath>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"

namespace {

void index_logits_prefill_mxfp4(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
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
  const auto heads = static_cast<std::size_t>(rows * kHeads);
  const auto all_keys = static_cast<std::size_t>(keys);

  dsakit::optimized::IndexLogitsPrefillMxfp4Params params{};
  params.q_packed = bench.upload(dsakit::bench::random_codes(heads * 64));
  params.q_scale = bench.upload(std::vector<std::uint8_t>(heads * 4, 126));
  params.k_packed = bench.upload(dsakit::bench::random_codes(all_keys * 64));
  params.k_scale = bench.upload(std::vector<std::uint8_t>(all_keys * 4, 125));
  params.weights = bench.upload(dsakit::bench::ramp_bf16(heads));
  params.ks = bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0));
  params.ke = bench.upload(ke);
  params.logits = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * keys)));
  params.q_stride = kHeads * 64;
  params.q_scale_stride = kHeads * 4;
  params.weights_stride = kHeads;
  params.logits_stride = keys;
  params.rows = rows;
  params.heads = kHeads;
  params.keys = keys;
  params.columns = keys;
  params.weight_scale = static_cast<float>(1 / std::sqrt(kHeads * 128.0));
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * scored * 4);
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * 128 * kHeads * static_cast<double>(scored),
                                                benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(index_logits_prefill_mxfp4, 4096, 32768);

} // namespace
