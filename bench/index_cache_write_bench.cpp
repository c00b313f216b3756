// index_cache_write: 256 bytes in and 132 bytes out a token.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace {

void index_cache_write(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const std::int64_t tokens = state.range(0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int64_t>(i);

  dsakit::optimized::IndexCacheWriteParams params{};
  params.index_k = bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(tokens) * 128));
  params.slot_mapping = bench.upload(slots);
  params.pages = (tokens + 63) / 64;
  params.cache =
      bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(params.pages) * 8448));
  params.index_k_stride = 128;
  params.page_stride = 8448;
  params.tokens = tokens;
  params.page_size = 64;
  params.amax_floor = 1e-4f;
  params.qmax = 448;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * (256 + 132));
}
DSAKIT_BENCHMARK(index_cache_write, 4096, 32768);

} // namespace
