// dcp_attention_merge: 96 heads of 512 bf16 latents from each of 8 ranks.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/dcp_attention_merge.hpp"

namespace {

void dcp_attention_merge(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int32_t kWorld = 8;
  constexpr std::int32_t kHeads = 96;
  constexpr std::int32_t kDim = 512;
  const std::int64_t rows = state.range(0);
  std::vector<float> lses(static_cast<std::size_t>(kWorld * rows * kHeads));
  for (std::size_t i = 0; i < lses.size(); ++i)
    lses[i] = static_cast<float>(i % 13) - 6;

  dsakit::optimized::DcpAttentionMergeParams params{};
  params.rank_latent = bench.upload(dsakit::bench::ramp_bf16(lses.size() * kDim));
  params.rank_lse = bench.upload(lses);
  params.latent =
      bench.upload(std::vector<std::uint16_t>(static_cast<std::size_t>(rows * kHeads) * kDim));
  params.lse = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * kHeads)));
  params.latent_rank_stride = rows * kHeads * kDim;
  params.lse_rank_stride = rows * kHeads;
  params.rows = rows;
  params.world = kWorld;
  params.heads = kHeads;
  params.dim = kDim;
  params.latent_dtype = dsakit::optimized::RankLatentDtype::bf16;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * kHeads * kDim * (kWorld + 1) * 2);
}
DSAKIT_BENCHMARK(dcp_attention_merge, 1, 64);

} // namespace
