// index_key_norm: LayerNorm, quantise and write to the cache in one launch; 256 bytes in, 132 out.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_key_norm.hpp"

namespace {

void index_key_norm(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const std::int64_t tokens = state.range(0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int64_t>(i);

  dsakit::optimized::IndexKeyNormParams params{};
  params.index_k_raw =
      bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(tokens) * 128));
  params.weight = bench.upload(std::vector<float>(128, 1.0f));
  params.bias = bench.upload(std::vector<float>(128, 0.25f));
  params.index_k_raw_stride = 128;
  params.tokens = tokens;
  params.eps = 1e-5f;
  params.write_cache = true;
  params.cache.slot_mapping = bench.upload(slots);
  params.cache.tokens = tokens;
  params.cache.pages = (tokens + 63) / 64;
  params.cache.cache =
      bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(params.cache.pages) * 8448));
  params.cache.page_stride = 8448;
  params.cache.page_size = 64;
  params.cache.amax_floor = 1e-4f;
  params.cache.qmax = 448;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * (256 + 132));
}
DSAKIT_BENCHMARK(index_key_norm, 4096, 32768);

} // namespace
