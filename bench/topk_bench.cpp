// topk: the 2048 best of each row of random logits.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/topk.hpp"

namespace {

void topk(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int32_t kK = 2048;
  const auto columns = static_cast<std::int32_t>(state.range(0));
  const std::int64_t rows = kind == dsakit::optimized::DeviceKind::host ? 2 : 64;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<std::size_t>(rows * columns));
  for (float& x : logits)
    x = normal(random);

  dsakit::optimized::TopkParams params{};
  params.logits = bench.upload(logits);
  params.row_ends =
      bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), columns));
  params.topk_indices =
      bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows) * kK));
  params.logits_stride = columns;
  params.topk_stride = kK;
  params.rows = rows;
  params.k = kK;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * (std::int64_t{columns} + kK) * 4);
}
DSAKIT_BENCHMARK(topk, 32768, 131072);

} // namespace
