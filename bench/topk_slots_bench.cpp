// topk_slots: 2048 positions a row, 4 bytes in and 4 bytes out each.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/topk_slots.hpp"

namespace {

void topk_slots(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int32_t kK = 2048;
  constexpr std::int32_t kTableColumns = 512;
  const std::int64_t rows = state.range(0);
  const auto requests = static_cast<std::int32_t>(rows);
  std::vector<std::int32_t> indices(static_cast<std::size_t>(rows) * kK);
  for (std::size_t i = 0; i < indices.size(); ++i)
    indices[i] = static_cast<std::int32_t>(i * 7919 % (kTableColumns * 64));
  std::vector<std::int32_t> table(static_cast<std::size_t>(rows) * kTableColumns);
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<std::int32_t>(i);
  std::vector<std::int32_t> row_request(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < row_request.size(); ++i)
    row_request[i] = static_cast<std::int32_t>(i);

  dsakit::optimized::TopkSlotsParams params{};
  params.topk_indices = bench.upload(indices);
  params.block_table = bench.upload(table);
  params.row_request = bench.upload(row_request);
  params.slots = bench.upload(std::vector<std::int32_t>(indices.size()));
  params.rows = rows;
  params.table_stride = kTableColumns;
  params.k = kK;
  params.requests = requests;
  params.table_columns = kTableColumns;
  params.page_size = 64;
  params.block_stride = 64;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * kK * 8);
}
DSAKIT_BENCHMARK(topk_slots, 64, 1024);

} // namespace
