// mla_cache_write: 1152 bytes in and 656 bytes out a token.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/mla_cache_write.hpp"

namespace {

void mla_cache_write(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const std::int64_t tokens = state.range(0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int64_t>(i);

  dsakit::optimized::MlaCacheWriteParams params{};
  params.kv_c = bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(tokens) * 512));
  params.k_pe = bench.upload(dsakit::bench::ramp_bf16(static_cast<std::size_t>(tokens) * 64));
  params.slot_mapping = bench.upload(slots);
  params.pages = (tokens + 63) / 64;
  params.cache =
      bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(params.pages) * 64 * 656));
  params.kv_c_stride = 512;
  params.k_pe_stride = 64;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.tokens = tokens;
  params.page_size = 64;
  params.qmax = 448;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * (1152 + 656));
}
DSAKIT_BENCHMARK(mla_cache_write, 2048, 32768);

} // namespace
