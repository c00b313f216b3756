// The CPU reference: one case per operation, 64-token pages, block_flat, e4m3fn.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/index_query.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "dsakit/reference/topk.hpp"

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

/// `n` bf16 of both signs, none of them special.
std::vector<std::uint16_t> activations(std::int64_t n) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = reference::float_to_bf16(static_cast<float>(i * 37 % 1001) * 0.01f - 5.0f);
  return bits;
}

/// Runs body() until the benchmark has seen enough; it returns a Status.
template <class Body>
void measure(benchmark::State& state, std::int64_t items, const Body& body) {
  for (auto _ : state)
    if (const Status status = body(); !status) return state.SkipWithError(status.what().c_str());
  state.SetItemsProcessed(state.iterations() * items);
}

/// 64 tokens of 64 heads.
void reference_index_query_quant(benchmark::State& state) {
  constexpr std::int64_t kRows = 64 * 64;
  const auto queries = activations(kRows * reference::kIndexHeadDim);
  std::vector<std::uint8_t> codes(queries.size());
  std::vector<float> scales(kRows);
  measure(state, kRows, [&] {
    return reference::index_query_quant(
        {Fp8Encoding::e4m3fn, ActivationDtype::bf16, ScaleKind::ue8m0, 1e-10f, 448.0f},
        queries.data(), kRows, codes.data(), scales.data());
  });
}
BENCHMARK(reference_index_query_quant)->UseRealTime()->Unit(benchmark::kMillisecond);

void reference_index_weights_fold(benchmark::State& state) {
  constexpr std::int64_t kHeads = 32;
  const auto weights = activations(kTokens * kHeads);
  const std::vector<float> scales(weights.size(), 0.25f);
  std::vector<float> folded(weights.size());
  measure(state, kTokens, [&] {
    return reference::index_weights_fold(WeightFold::bf16_intermediate, ActivationDtype::bf16,
                                         weights.data(), scales.data(), kTokens, kHeads,
                                         folded.data());
  });
}
BENCHMARK(reference_index_weights_fold)->UseRealTime()->Unit(benchmark::kMillisecond);

void reference_index_key_norm(benchmark::State& state) {
  const auto keys = activations(kTokens * reference::kIndexHeadDim);
  const std::vector<float> weight(reference::kIndexHeadDim, 1.25f);
  const std::vector<float> bias(reference::kIndexHeadDim, 0.5f);
  const reference::Norm norm = {
      IndexKNorm::layernorm, RmsNormRounding::two, ActivationDtype::bf16,   1e-5f,
      weight.data(),         bias.data(),          reference::kIndexHeadDim};
  std::vector<std::uint16_t> normed(keys.size());
  measure(state, kTokens,
          [&] { return reference::index_key_norm(norm, keys.data(), kTokens, normed.data()); });
}
BENCHMARK(reference_index_key_norm)->UseRealTime()->Unit(benchmark::kMillisecond);

/// 16 causal rows of 32 heads against the last keys of kTokens.
template <class Tier>
void reference_index_logits_prefill(benchmark::State& state) {
  constexpr std::int64_t kRows = 16, kHeads = 32;
  std::vector<std::uint8_t> codes(kTokens * reference::kIndexHeadDim);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(i * 11 % 0x7E | (i & 1) << 7); // no NaN
  const std::vector<float> scales(kTokens, 0.5f);
  const std::vector<float> weights(kRows * kHeads, 0.125f);
  const std::vector<std::int32_t> ks(kRows, 0);
  std::vector<std::int32_t> ke(kRows);
  std::iota(ke.begin(), ke.end(), static_cast<std::int32_t>(kTokens - kRows + 1));
  const reference::IndexLogitsPrefill inputs = {
      codes.data(), weights.data(), codes.data(), scales.data(), ks.data(), ke.data(),
      nullptr,      kRows,          kHeads,       kTokens,       kTokens,   Fp8Encoding::e4m3fn};
  std::vector<typename Tier::Value> logits(kRows * kTokens);
  measure(state, kRows,
          [&] { return reference::index_logits_prefill<Tier>(inputs, logits.data()); });
}
BENCHMARK(reference_index_logits_prefill<reference::Exact>)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(reference_index_logits_prefill<reference::Simulated>)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// 16 rows of 2^16 columns.
void reference_topk(benchmark::State& state) {
  constexpr std::int64_t kRows = 16, kColumns = 1 << 16, kK = 2048;
  std::vector<float> logits(kRows * kColumns);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(i * 7919 % 65521);
  const std::vector<std::int32_t> ends(kRows, kColumns);
  std::vector<std::int32_t> ids(kRows * kK);
  measure(state, kRows, [&] {
    return reference::topk(logits.data(), kRows, kColumns, nullptr, ends.data(), kK,
                           TopkOrder::rank, ids.data());
  });
}
BENCHMARK(reference_topk)->UseRealTime()->Unit(benchmark::kMillisecond);

/// 64 rows of 2048 positions.
void reference_topk_slots(benchmark::State& state) {
  constexpr std::int64_t kRows = 64, kK = 2048;
  Pool pool;
  std::vector<std::int32_t> positions(kRows * kK);
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::int32_t>(i * 7 % kTokens);
  const std::vector<std::int32_t> row_request(kRows, 0);
  std::vector<std::int32_t> slots(positions.size());
  measure(state, kRows, [&] {
    return reference::topk_slots(positions.data(), kRows, kK, pool.block_table(),
                                 row_request.data(), kPageSize, kPageSize, slots.data());
  });
}
BENCHMARK(reference_topk_slots)->UseRealTime()->Unit(benchmark::kMillisecond);

/// kTokens records.
struct MlaPool {
  Status write() {
    std::vector<std::int64_t> slots(kTokens);
    std::iota(slots.begin(), slots.end(), 0);
    return reference::mla_cache_write({Fp8Encoding::e4m3fn, ActivationDtype::bf16, 448.0f},
                                      kv_c.data(), k_pe.data(), kTokens, slots,
                                      {records.data(), kPages, kPageSize,
                                       kPageSize * reference::kMlaRecord, reference::kMlaRecord});
  }

  std::vector<std::uint16_t> kv_c = activations(kTokens * reference::kMlaLatent);
  std::vector<std::uint16_t> k_pe = activations(kTokens * reference::kMlaPe);
  std::vector<std::uint8_t> records =
      std::vector<std::uint8_t>(static_cast<std::size_t>(kTokens * reference::kMlaRecord));
};

void reference_mla_cache_write(benchmark::State& state) {
  MlaPool pool;
  measure(state, kTokens, [&] { return pool.write(); });
}
BENCHMARK(reference_mla_cache_write)->UseRealTime()->Unit(benchmark::kMillisecond);

/// 2 tokens of 64 heads over 2048 records each, in the tier that `body` runs.
template <class Body>
void run_sparse_attention(benchmark::State& state, const Body& body) {
  constexpr std::int64_t kQueries = 2, kHeads = 64, kK = 2048;
  MlaPool pool;
  if (const Status status = pool.write(); !status)
    return state.SkipWithError(status.what().c_str());
  const auto queries = activations(kQueries * kHeads * (reference::kMlaLatent + reference::kMlaPe));
  std::vector<std::int32_t> slots(kQueries * kK);
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int32_t>(i * 13 % kTokens);
  const reference::SparseAttention inputs = {queries.data(),
                                             {pool.records.data(), kPages, kPageSize,
                                              kPageSize * reference::kMlaRecord,
                                              reference::kMlaRecord},
                                             slots.data(),
                                             kQueries,
                                             kHeads,
                                             kK,
                                             0.0625,
                                             Fp8Encoding::e4m3fn,
                                             MlaScaleRead::fp32,
                                             LseBase::e};
  measure(state, kQueries, [&] {
    return body(inputs, kQueries * kHeads * reference::kMlaLatent, kQueries * kHeads);
  });
}

void reference_sparse_attention_exact(benchmark::State& state) {
  run_sparse_attention(
      state, [](const reference::SparseAttention& in, std::size_t latents, std::size_t rows) {
        std::vector<double> latent(latents), lse(rows);
        return reference::sparse_attention_exact(in, latent.data(), lse.data());
      });
}
BENCHMARK(reference_sparse_attention_exact)->UseRealTime()->Unit(benchmark::kMillisecond);

void reference_sparse_attention(benchmark::State& state) {
  run_sparse_attention(
      state, [](const reference::SparseAttention& in, std::size_t latents, std::size_t rows) {
        std::vector<std::uint16_t> latent(latents);
        std::vector<float> lse(rows);
        return reference::sparse_attention(in, latent.data(), lse.data());
      });
}
BENCHMARK(reference_sparse_attention)->UseRealTime()->Unit(benchmark::kMillisecond);

} // namespace
