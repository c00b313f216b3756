// index_logits_decode: 64 heads, one row a request, 132 bytes in and 4 bytes out a key.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace {

void index_logits_decode(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const auto context = static_cast<std::int32_t>(state.range(0));
  const std::int64_t rows = kind == dsakit::optimized::DeviceKind::host ? 2 : 64;
  const std::int32_t columns = context / 64;
  const std::int64_t pages = rows * columns;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<std::int32_t>(i);

  dsakit::optimized::IndexLogitsDecodeParams params{};
  params.q =
      bench.upload(dsakit::bench::random_codes(static_cast<std::size_t>(rows * kHeads) * 128));
  std::vector<std::uint8_t> cache =
      dsakit::bench::random_codes(static_cast<std::size_t>(pages) * 8448);
  for (std::int64_t page = 0; page < pages; ++page)
    for (int token = 0; token < 64; ++token) {
      const float scale = 0.125f;
      __builtin_memcpy(cache.data() + page * 8448 + 8192 + 4 * token, &scale, sizeof scale);
    }
  params.cache = bench.upload(cache);
  params.weights = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * kHeads), 0.25f));
  params.block_table = bench.upload(table);
  params.row_lens =
      bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), context));
  params.logits = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * context)));
  params.q_stride = kHeads * 128;
  params.weights_stride = kHeads;
  params.logits_stride = context;
  params.page_stride = 8448;
  params.table_stride = columns;
  params.rows = rows;
  params.pages = pages;
  params.heads = kHeads;
  params.requests = static_cast<std::int32_t>(rows);
  params.table_columns = columns;
  params.next_n = 1;
  params.columns = context;
  params.page_size = 64;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * context * (132 + 4));
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * 128 * kHeads * static_cast<double>(rows * context),
                         benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(index_logits_decode, 4096, 32768);

} // namespace
