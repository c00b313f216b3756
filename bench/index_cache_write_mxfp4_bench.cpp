// index_cache_write to MXFP4 pages: 256 bytes in and 68 bytes out a token.
#include <numeric>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace {

void index_cache_write_mxfp4(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const std::int64_t tokens = state.range(0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);

  dsakit::optimized::IndexCacheWriteMxfp4Params params{};
  params.index_k = bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(tokens) * 128));
  params.slot_mapping = bench.upload(slots);
  params.pages = (tokens + 63) / 64;
  params.cache =
      bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(params.pages) * 4352));
  params.index_k_stride = 128;
  params.page_stride = 4352;
  params.tokens = tokens;
  params.page_size = 64;
  params.layout = dsakit::IndexPageLayout::flat;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * (256 + 68));
}
DSAKIT_BENCHMARK(index_cache_write_mxfp4, 4096, 32768);

} // namespace
