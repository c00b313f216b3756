// index_cache_gather of MXFP4 pages: 68 bytes in and 68 bytes out a row.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"

namespace {

void index_cache_gather_mxfp4(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  const auto rows = static_cast<std::int32_t>(state.range(0));
  const std::int32_t pages = rows / 64;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  for (std::int32_t i = 0; i < pages; ++i)
    table[static_cast<std::size_t>(i)] = pages - 1 - i;

  dsakit::optimized::IndexCacheGatherMxfp4Params params{};
  params.cache = bench.upload(dsakit::bench::random_codes(static_cast<std::size_t>(pages) * 4352));
  params.block_table = bench.upload(table);
  params.cu_seq_lens = bench.upload(std::vector<std::int32_t>{0, rows});
  params.k_packed = bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(rows) * 64));
  params.k_scale = bench.upload(std::vector<std::uint8_t>(static_cast<std::size_t>(rows) * 4));
  params.page_stride = 4352;
  params.table_stride = pages;
  params.rows = rows;
  params.pages = pages;
  params.requests = 1;
  params.table_columns = pages;
  params.page_size = 64;
  params.layout = dsakit::IndexPageLayout::flat;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * 2 * 68);
}
DSAKIT_BENCHMARK(index_cache_gather_mxfp4, 4096, 131072);

} // namespace
