// The CPU reference: one case per operation, 64-token pages, block_flat, e4m3fn.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/index_logits.hpp"

namespace {

using namespace dsakit;

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kPageSize = 64;
constexpr std::int64_t kPages = kTokens / kPageSize;
constexpr std::int64_t kPageStride = kPageSize * 132;

const IndexPages kContract = {Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, kPageSize};

/// One request of kTokens keys in a pool of kPages pages, logical page = physical page.
struct Pool {
  Pool() {
    std::vector<std::uint16_t> keys(kTokens * reference::kIndexHeadDim);
    for (std::size_t i = 0; i < keys.size(); ++i)
      keys[i] = reference::float_to_bf16(static_cast<float>(i * 37 % 1001) - 500.0f);
    index_k = keys;
    std::iota(slots.begin(), slots.end(), 0);
    std::iota(table.begin(), table.end(), 0);
  }

  Status write() {
    return reference::index_cache_write(
        {kContract, ActivationDtype::bf16, ScaleKind::ue8m0, 1e-4f, 448.0f}, index_k.data(),
        kTokens, slots, {pages.data(), kPages, kPageStride});
  }
  reference::IndexCache<const std::uint8_t> cache() const {
    return {pages.data(), kPages, kPageStride};
  }
  reference::BlockTable block_table() const { return {table.data(), 1, kPages}; }

  std::vector<std::uint16_t> index_k;
  std::vector<std::int64_t> slots = std::vector<std::int64_t>(kTokens);
  std::vector<std::int32_t> table = std::vector<std::int32_t>(kPages);
  std::vector<std::uint8_t> pages = std::vector<std::uint8_t>(kPages * kPageStride);
};

void reference_index_cache_write(benchmark::State& state) {
  Pool pool;
  for (auto _ : state)
    if (const Status status = pool.write(); !status)
      return state.SkipWithError(status.what().c_str());
  state.SetItemsProcessed(state.iterations() * kTokens);
}
BENCHMARK(reference_index_cache_write)->UseRealTime()->Unit(benchmark::kMillisecond);

void reference_index_cache_gather(benchmark::State& state) {
  Pool pool;
  if (const Status status = pool.write(); !status)
    return state.SkipWithError(status.what().c_str());
  const std::vector<std::int32_t> cu_seq_lens = {0, kTokens};
  std::vector<std::uint8_t> k_fp8(kTokens * reference::kIndexHeadDim);
  std::vector<float> k_scale(kTokens);
  for (auto _ : state)
    if (const Status status =
            reference::index_cache_gather(kContract, pool.cache(), pool.block_table(), cu_seq_lens,
                                          {}, kTokens, k_fp8.data(), k_scale.data());
        !status)
      return state.SkipWithError(status.what().c_str());
  state.SetItemsProcessed(state.iterations() * kTokens);
}
BENCHMARK(reference_index_cache_gather)->UseRealTime()->Unit(benchmark::kMillisecond);

/// 4 rows of 64 heads against all keys.
template <class Tier>
void reference_index_logits_decode(benchmark::State& state) {
  constexpr std::int64_t kRows = 4, kHeads = 64;
  Pool pool;
  if (const Status status = pool.write(); !status)
    return state.SkipWithError(status.what().c_str());
  std::vector<std::uint8_t> queries(kRows * kHeads * reference::kIndexHeadDim);
  for (std::size_t i = 0; i < queries.size(); ++i)
    queries[i] = static_cast<std::uint8_t>(i * 11 % 0x7E | (i & 1) << 7); // no NaN
  const std::vector<float> weights(kRows * kHeads, 0.125f);
  const std::vector<std::int32_t> row_lens(kRows, kTokens);
  const std::vector<std::int32_t> row_request(kRows, 0);
  const reference::IndexLogitsDecode inputs = {
      queries.data(),  weights.data(),     pool.cache(), pool.block_table(),
      row_lens.data(), row_request.data(), kRows,        kHeads,
      kTokens};
  std::vector<typename Tier::Value> logits(kRows * kTokens);
  for (auto _ : state)
    if (const Status status =
            reference::index_logits_decode<Tier>(kContract, inputs, logits.data());
        !status)
      return state.SkipWithError(status.what().c_str());
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * kRows * kHeads * kTokens * reference::kIndexHeadDim,
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(reference_index_logits_decode<reference::Exact>)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(reference_index_logits_decode<reference::Simulated>)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

} // namespace
