// dcp_topk_merge: the 2048 best of as many candidates of each of 8 ranks.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/dcp_topk_merge.hpp"

namespace {

void dcp_topk_merge(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int32_t kK = 2048;
  constexpr std::int32_t kWorld = 8;
  const std::int64_t rows = state.range(0);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> scores(static_cast<std::size_t>(kWorld * rows * kK));
  std::vector<std::int32_t> indices(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = normal(random);
    indices[i] = static_cast<std::int32_t>(i); // differ within a row
  }

  dsakit::optimized::DcpTopkMergeParams params{};
  params.rank_scores = bench.upload(scores);
  params.rank_indices = bench.upload(indices);
  params.topk_indices =
      bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows) * kK));
  params.rank_stride = rows * kK;
  params.rows = rows;
  params.world = kWorld;
  params.k = kK;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * kK * (kWorld * 8 + 4));
}
DSAKIT_BENCHMARK(dcp_topk_merge, 1, 64);

} // namespace
