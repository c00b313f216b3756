// index_logits_decode in MXFP4: 64 heads, one row a request, 68 bytes in and 4 bytes out a key.
#include <cmath>
#include <numeric>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"

namespace {

void index_logits_decode_mxfp4(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kHeads = 64;
  const auto context = static_cast<std::int32_t>(state.range(0));
  const std::int64_t rows = kind == dsakit::optimized::DeviceKind::host ? 2 : 64;
  const std::int32_t columns = context / 64;
  const std::int64_t pages = rows * columns;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  const auto heads = static_cast<std::size_t>(rows * kHeads);
  std::vector<std::uint8_t> cache =
      dsakit::bench::random_codes(static_cast<std::size_t>(pages) * 4352);
  for (std::int64_t page = 0; page < pages; ++page)
    std::fill_n(cache.begin() + page * 4352 + 4096, 256, std::uint8_t{125});

  dsakit::optimized::IndexLogitsDecodeMxfp4Params params{};
  params.q_packed = bench.upload(dsakit::bench::random_codes(heads * 64));
  params.q_scale = bench.upload(std::vector<std::uint8_t>(heads * 4, 126));
  params.cache = bench.upload(cache);
  params.weights = bench.upload(dsakit::bench::ramp_bf16(heads));
  params.block_table = bench.upload(table);
  params.row_lens =
      bench.upload(std::vector<std::int32_t>(static_cast<std::size_t>(rows), context));
  params.logits = bench.upload(std::vector<float>(static_cast<std::size_t>(rows * context)));
  params.q_stride = kHeads * 64;
  params.q_scale_stride = kHeads * 4;
  params.weights_stride = kHeads;
  params.logits_stride = context;
  params.page_stride = 4352;
  params.table_stride = columns;
  params.rows = rows;
  params.pages = pages;
  params.heads = kHeads;
  params.requests = static_cast<std::int32_t>(rows);
  params.table_columns = columns;
  params.next_n = 1;
  params.columns = context;
  params.page_size = 64;
  params.weight_scale = static_cast<float>(1 / std::sqrt(kHeads * 128.0));
  params.layout = dsakit::IndexPageLayout::flat;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * context * (68 + 4));
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * 128 * kHeads * static_cast<double>(rows * context),
                         benchmark::Counter::kIsIterationInvariantRate);
}
DSAKIT_BENCHMARK(index_logits_decode_mxfp4, 4096, 32768);

} // namespace
