// Speed of the oracle: the reference at the sizes of Kimi K3.1, and Eigen's own product of the same
// number of operations beside it, on as many threads. Read `vs_eigen` as "share of Eigen's speed".
#include <benchmark/benchmark.h>
#include <tbb/parallel_for.h>

#include <Eigen/Core>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/layer.hpp"
#include "dsakit/reference/sparse_attention.hpp"

namespace {

using namespace dsakit;

std::uint32_t noise(std::uint64_t i) {
  return static_cast<std::uint32_t>((i * 0x9E3779B97F4A7C15) >> 32);
}

/// In (-1, 1).
std::vector<std::uint16_t> activations(std::int64_t n, std::uint64_t seed) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = reference::float_to_bf16(
        static_cast<float>(static_cast<std::int32_t>(noise(i + seed))) * 0x1p-31f);
  return bits;
}

/// Seconds that Eigen takes for `flops` operations in products of 256 x 512 x 256, in parallel.
double eigen_seconds(double flops) {
  constexpr Eigen::Index kRows = 256, kInner = 512;
  const auto products = static_cast<int>(flops / (2.0 * kRows * kRows * kInner)) + 1;
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(kRows, kInner);
  const Eigen::MatrixXf b = Eigen::MatrixXf::Random(kInner, kRows);
  const auto start = std::chrono::steady_clock::now();
  tbb::parallel_for(0, products, [&](int) {
    Eigen::MatrixXf c = a * b;
    benchmark::DoNotOptimize(c.data());
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs body() and compares it with Eigen at `flops` operations, before and after.
template <class Body>
void measure(benchmark::State& state, double flops, const Body& body) {
  double seconds = 0, eigen = eigen_seconds(flops);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    if (const Status status = body(); !status) return state.SkipWithError(status.what().c_str());
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  eigen = (eigen + eigen_seconds(flops)) / 2;
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["vs_eigen"] = eigen / (seconds / static_cast<double>(state.iterations()));
}

/// 64 queries of 32 heads against 32,768 keys.
void oracle_index_logits(benchmark::State& state) {
  constexpr std::int64_t kRows = 64, kHeads = 32, kKeys = 32768;
  std::vector<std::uint8_t> queries(kRows * kHeads * 128), keys(kKeys * 128);
  for (auto* codes : {&queries, &keys})
    for (std::size_t i = 0; i < codes->size(); ++i)
      (*codes)[i] = static_cast<std::uint8_t>(noise(i) % 0x7F | (noise(i) >> 24 & 0x80)); // no NaN
  const std::vector<float> weights(kRows * kHeads, 0.125f), scales(kKeys, 0.5f);
  const std::vector<std::int32_t> ks(kRows, 0), ke(kRows, kKeys);
  std::vector<float> logits(kRows * kKeys);
  measure(state, 2.0 * kRows * kHeads * kKeys * 128, [&] {
    return reference::index_logits_prefill<reference::Simulated>(
        {queries.data(), weights.data(), keys.data(), scales.data(), ks.data(), ke.data(), nullptr,
         kRows, kHeads, kKeys, kKeys, Fp8Encoding::e4m3fn},
        logits.data());
  });
}
BENCHMARK(oracle_index_logits)->UseRealTime()->Unit(benchmark::kSecond)->Iterations(1);

/// 64 queries of 96 heads over 2048 records each.
void oracle_sparse_attention(benchmark::State& state) {
  constexpr std::int64_t kQueries = 64, kHeads = 96, kK = 2048, kTokens = 8192, kPage = 64;
  std::vector<std::uint8_t> records(kTokens * reference::kMlaRecord);
  std::vector<std::int64_t> all(kTokens);
  std::iota(all.begin(), all.end(), 0);
  const auto kv_c = activations(kTokens * 512, 1), k_pe = activations(kTokens * 64, 2);
  if (const Status status = reference::mla_cache_write(
          {Fp8Encoding::e4m3fn, ActivationDtype::bf16, 448.0f}, kv_c.data(), k_pe.data(), kTokens,
          all, {records.data(), kTokens / kPage, kPage, kPage * 656, 656});
      !status)
    return state.SkipWithError(status.what().c_str());
  const auto query = activations(kQueries * kHeads * 576, 3);
  std::vector<std::int32_t> slots(kQueries * kK);
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int32_t>(i * 13 % kTokens);
  std::vector<std::uint16_t> latent(kQueries * kHeads * 512);
  std::vector<float> lse(kQueries * kHeads);
  measure(state, 2.0 * kQueries * kHeads * kK * (576 + 512), [&] {
    return reference::sparse_attention({query.data(),
                                        {records.data(), kTokens / kPage, kPage, kPage * 656, 656},
                                        slots.data(),
                                        kQueries,
                                        kHeads,
                                        kK,
                                        0.0721687824,
                                        Fp8Encoding::e4m3fn,
                                        MlaScaleRead::fp32,
                                        LseBase::e},
                                       latent.data(), lse.data());
  });
}
BENCHMARK(oracle_sparse_attention)->UseRealTime()->Unit(benchmark::kSecond)->Iterations(1);

/// 64 tokens through the output projection of 96 heads.
void oracle_projection(benchmark::State& state) {
  constexpr std::int64_t kTokens = 64, kInputs = 96 * 128, kOutputs = 7168;
  const auto x = activations(kTokens * kInputs, 7), w = activations(kInputs * kOutputs, 8);
  std::vector<std::uint16_t> y(kTokens * kOutputs);
  measure(state, 2.0 * kTokens * kInputs * kOutputs, [&] {
    return reference::project(
        {x.data(),
         kTokens,
         {WeightFormat::bf16, Fp8Encoding::e4m3fn, w.data(), nullptr, kOutputs, kInputs},
         ActivationDtype::bf16},
        y.data());
  });
}
BENCHMARK(oracle_projection)->UseRealTime()->Unit(benchmark::kSecond)->Iterations(4);

reference::LayerConfig k31() {
  return {.hidden_size = 7168,
          .num_attention_heads = 96,
          .q_lora_rank = 1536,
          .head = {128, 64, 128, 512},
          .rms_norm_eps = 1e-5,
          .mla_use_nope = true,
          .mla_use_output_gate = true,
          .rope = {"default", 1, 0},
          .dsa = reference::DsaConfig{32, 128, 2048, 0, 1, "layernorm"},
          .parallel = {1, 1, 1},
          .reduce_results = true,
          .cache_dtype = "fp8_ds_mla",
          .indexer_kv_dtype = "fp8",
          .max_model_len = 1 << 20,
          .max_num_seqs = 64,
          .num_speculative_tokens = 0,
          .max_cudagraph_capture_size = 64,
          .max_logits_bytes = 512 << 20,
          .native_decode = false};
}

/// One request of 64 new tokens behind 8,128 earlier ones.
void oracle_layer(benchmark::State& state) {
  constexpr std::int64_t kTokens = 64, kContext = 8192, kPage = 64, kPages = kContext / kPage;
  const reference::LayerConfig config = k31();
  const reference::LayerContract contract = {
      reference::Fp8Indexer{
          {IndexPages{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, kPage},
           ActivationDtype::bf16, ScaleKind::ue8m0, 1e-4f, 448.0f},
          {Fp8Encoding::e4m3fn, ActivationDtype::bf16, ScaleKind::ue8m0, 1e-10f, 448.0f},
          WeightFold::bf16_intermediate},
      {Fp8Encoding::e4m3fn, ActivationDtype::bf16, 448.0f},
      MlaScaleRead::fp32,
      LseBase::e,
      kPage,
      ActivationDtype::bf16,
      RmsNormRounding::two,
      GateRounding::two,
      TopkOrder::rank};
  reference::LayerWeights weights;
  double flops = 0;
  for (const auto& [name, shape] : reference::weight_shapes(config)) {
    if (shape.size() == 1) {
      weights.norms[name].assign(static_cast<std::size_t>(shape[0]), 1.0f);
      continue;
    }
    Tensor values(Dtype::bfloat16, shape);
    const auto bits = activations(values.elements(), noise(weights.projections.size()));
    std::copy(bits.begin(), bits.end(), values.as<std::uint16_t>());
    weights.projections[name] = {WeightFormat::bf16, Fp8Encoding::e4m3fn, std::move(values), {}};
    flops += 2.0 * kTokens * static_cast<double>(shape[0] * shape[1]);
  }
  flops += 2.0 * kTokens * kContext * 32 * 128;     // logits
  flops += 2.0 * kTokens * 96 * 2048 * (576 + 512); // attention
  const auto hidden = activations(kTokens * config.hidden_size, 9);
  std::vector<std::int64_t> all(kContext), slots(kTokens);
  std::iota(all.begin(), all.end(), 0);
  std::iota(slots.begin(), slots.end(), kContext - kTokens);
  std::vector<std::int32_t> table(kPages);
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::uint8_t> index_cache(kContext * 132), mla_cache(kContext * 656);
  const reference::IndexCache<std::uint8_t> index_pool{index_cache.data(), kPages, kPage * 132};
  const reference::MlaCache<std::uint8_t> mla_pool{mla_cache.data(), kPages, kPage, kPage * 656,
                                                   656};
  const Status filled = [&]() -> Status {
    DSAKIT_TRY(reference::index_cache_write(std::get<reference::Fp8Indexer>(contract.indexer).key,
                                            activations(kContext * 128, 4).data(), kContext, all,
                                            index_pool));
    return reference::mla_cache_write(contract.mla, activations(kContext * 512, 5).data(),
                                      activations(kContext * 64, 6).data(), kContext, all,
                                      mla_pool);
  }();
  if (!filled) return state.SkipWithError(filled.what().c_str());
  std::vector<std::int32_t> buffer(kTokens * 2048);
  auto layer = reference::KimiK3DSAAttention::create(config, contract, weights,
                                                     {buffer.data(), kTokens, 2048});
  if (!layer) return state.SkipWithError(layer.status().what().c_str());
  const std::vector<std::int32_t> query_lens = {kTokens}, seq_lens = {kContext};
  const reference::BlockTable block_table{table.data(), 1, kPages};
  measure(state, flops, [&]() -> Status {
    return layer
        ->forward({hidden.data(), kTokens, query_lens, seq_lens, slots, slots, block_table,
                   block_table, index_pool, mla_pool})
        .status();
  });
}
BENCHMARK(oracle_layer)->UseRealTime()->Unit(benchmark::kSecond)->Iterations(1);

} // namespace
