// sparse_attention: 2048 records of 656 bytes a token. FLOP/s count scores and values once a head.
#include <cmath>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/sparse_attention.hpp"

namespace {

void sparse_attention(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const bool on_host = kind == dsakit::optimized::DeviceKind::host;
  const std::int32_t heads = on_host ? 16 : 128;
  const std::int32_t k = on_host ? 512 : 2048;
  const std::int64_t tokens = state.range(0);
  const std::int64_t pages = tokens * k / 64;
  std::vector<std::uint8_t> cache =
      dsakit::bench::random_codes(static_cast<std::size_t>(pages) * 64 * 656);
  for (std::int64_t slot = 0; slot < pages * 64; ++slot)
    for (int tile = 0; tile < 4; ++tile) {
      const float scale = 0.005f;
      __builtin_memcpy(cache.data() + slot * 656 + 512 + 4 * tile, &scale, sizeof scale);
    }
  // k_pe of tame bf16 values.
  for (std::int64_t slot = 0; slot < pages * 64; ++slot)
    for (int i = 1; i < 128; i += 2)
      cache[static_cast<std::size_t>(slot * 656 + 528 + i)] = 0x3F;
  std::vector<std::int32_t> slots(static_cast<std::size_t>(tokens * k));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int32_t>(i * 7919 % slots.size());
  const auto rows = static_cast<std::size_t>(tokens * heads);

  dsakit::optimized::SparseAttentionParams params{};
  params.q = bench.upload(dsakit::bench::ramp_bf16(rows * 576));
  params.cache = bench.upload(cache);
  params.slots = bench.upload(slots);
  params.latent = bench.upload(std::vector<std::uint16_t>(rows * 512));
  params.lse = bench.upload(std::vector<float>(rows));
  params.q_token_stride = heads * 576;
  params.slots_stride = k;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.tokens = tokens;
  params.pages = pages;
  params.heads = heads;
  params.k = k;
  params.page_size = 64;
  params.splits = on_host ? 1 : 4;
  params.softmax_scale = static_cast<float>(1 / std::sqrt(192.0));
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * tokens * (std::int64_t{k} * 656 + heads * 2176));
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * (576 + 512) * heads * k * static_cast<double>(tokens),
                         benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(sparse_attention, 1, 64);

} // namespace
