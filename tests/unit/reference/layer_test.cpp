// The layer as a whole: arrangements of a step that may not change a bit, ranks, padding, refusals.
#include "dsakit/reference/layer.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <iostream>
#include <string>

#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "support/layer_problem.hpp"

namespace dsakit::reference {
namespace layer_test {

using testing::layer_contract;
using testing::layer_contract_values;
using testing::LayerRun;
using testing::OwnedStep;
using testing::random_step;
using testing::random_weights;
using testing::run_layer;
using testing::small_layer;

/// Every tensor of both has the same bytes.
void expect_same(const LayerRun& a, const LayerRun& b, const std::string& what) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size()) << what;
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.count(name)) << what << ": " << name;
    EXPECT_EQ(tensor.bytes, b.tensors.at(name).bytes) << what << ": " << name;
  }
  EXPECT_EQ(a.topk, b.topk) << what;
}

/// A layer and a step of it; index heads and top-k small enough that rows select.
struct Problem {
  LayerConfig config = small_layer();
  ContractValues values;
  LayerWeights weights;
  OwnedStep step;

  Problem(bool mxfp4, std::vector<std::int32_t> query_lens, std::vector<std::int32_t> seq_lens,
          std::int64_t padding, unsigned seed, const std::string& dtype = "bf16")
      : values(layer_contract_values(mxfp4, "e4m3fn", dtype)) {
    config.indexer_kv_dtype = mxfp4 ? "mxfp4" : "fp8";
    std::mt19937 random(seed);
    weights = random_weights(config, random);
    step = random_step(config, layer_contract(values), std::move(query_lens), std::move(seq_lens),
                       padding, random);
  }

  /// On a copy of the step, so that caches start alike.
  LayerRun run(const LayerConfig& other, OwnedStep* after = nullptr) const {
    OwnedStep copy = step;
    LayerRun result = run_layer(other, layer_contract(values), weights, copy);
    if (after) *after = std::move(copy);
    return result;
  }
  LayerRun run() const { return run(config); }
};

TEST(LayerArrangement, S35_S36_NoBudgetOfLogitsChangesABit) {
  for (bool mxfp4 : {false, true}) {
    const Problem p(mxfp4, {40, 3, 70, 31}, {100, 130, 70, 90}, 2, 1);
    OwnedStep want_caches;
    const LayerRun want = p.run(p.config, &want_caches);
    for (std::int64_t bytes : {4, 2000, 4 * 41 * 100, 4 * 73 * 300, 4 * 200 * 300}) {
      LayerConfig config = p.config;
      config.max_logits_bytes = bytes;
      OwnedStep caches;
      expect_same(want, p.run(config, &caches), std::to_string(bytes) + " bytes");
      EXPECT_EQ(want_caches.index_cache, caches.index_cache);
      EXPECT_EQ(want_caches.mla_cache, caches.mla_cache);
    }
  }
}

TEST(LayerArrangement, S34_DecodeIsTheSameFlattenedNativeAndAsPrefill) {
  for (bool mxfp4 : {false, true}) {
    const Problem p(mxfp4, {2, 1, 2, 0, 1}, {70, 200, 2, 40, 1}, 1, 2);
    const LayerRun want = p.run();
    LayerConfig config = p.config;
    config.native_decode = true;
    expect_same(want, p.run(config), "native");
    config.num_speculative_tokens = 0; // requests of 2 tokens are prefills, between decodes
    expect_same(want, p.run(config), "mixed");
    config.num_speculative_tokens = -1; // all of them
    expect_same(want, p.run(config), "prefill");
  }
}

TEST(LayerArrangement, S56_ATokenHasTheSameBitsInEveryBatch) {
  const Problem all(false, {2, 50, 1, 20}, {90, 50, 66, 80}, 0, 3);
  const LayerRun want = all.run();
  for (std::size_t b = 0, row = 0; b < 4;
       row += static_cast<std::size_t>(all.step.query_lens[b]), ++b) {
    Problem one = all;
    const auto count = static_cast<std::size_t>(all.step.query_lens[b]);
    const auto hidden = static_cast<std::size_t>(all.config.hidden_size);
    const auto columns = static_cast<std::size_t>(all.step.columns);
    const auto slice = [](const auto& from, std::size_t first, std::size_t n) {
      return std::decay_t<decltype(from)>(from.begin() + static_cast<std::ptrdiff_t>(first),
                                          from.begin() + static_cast<std::ptrdiff_t>(first + n));
    };
    one.step.tokens = static_cast<std::int64_t>(count);
    one.step.hidden_states = slice(all.step.hidden_states, row * hidden, count * hidden);
    one.step.query_lens = {all.step.query_lens[b]};
    one.step.seq_lens = {all.step.seq_lens[b]};
    one.step.slot_mapping = slice(all.step.slot_mapping, row, count);
    one.step.block_table = slice(all.step.block_table, b * columns, columns);
    const LayerRun got = one.run();
    for (const auto& [name, tensor] : got.tensors) {
      if (name == "index_logits") continue; // as wide as the longest request of its batch
      const Tensor& whole = want.tensors.at(name);
      const auto bytes = static_cast<std::ptrdiff_t>(tensor.bytes.size());
      const auto first =
          static_cast<std::ptrdiff_t>(row) * bytes / static_cast<std::ptrdiff_t>(count);
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), whole.bytes.begin() + first))
          << name << " of request " << b;
    }
  }
}

TEST(LayerArrangement, S29_APrefillInTwoStepsEqualsOne) {
  for (bool mxfp4 : {false, true}) {
    const Problem all(mxfp4, {60}, {90}, 0, 12);
    OwnedStep want_caches;
    const LayerRun want = all.run(all.config, &want_caches);
    OwnedStep step = all.step;
    std::ptrdiff_t row = 0;
    for (std::int32_t rows : {35, 25}) {
      const std::ptrdiff_t hidden = all.config.hidden_size;
      step.tokens = rows;
      step.query_lens = {rows};
      step.seq_lens = {static_cast<std::int32_t>(30 + row + rows)};
      step.hidden_states.assign(all.step.hidden_states.begin() + row * hidden,
                                all.step.hidden_states.begin() + (row + rows) * hidden);
      step.slot_mapping.assign(all.step.slot_mapping.begin() + row,
                               all.step.slot_mapping.begin() + row + rows);
      const LayerRun got = run_layer(all.config, layer_contract(all.values), all.weights, step);
      for (const auto& [name, tensor] : got.tensors) {
        if (name == "index_logits") continue; // narrower in the first step
        const auto first = row * static_cast<std::ptrdiff_t>(tensor.bytes.size()) / rows;
        EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(),
                               want.tensors.at(name).bytes.begin() + first))
            << name << " from row " << row;
      }
      row += rows;
    }
    EXPECT_EQ(step.index_cache, want_caches.index_cache);
    EXPECT_EQ(step.mla_cache, want_caches.mla_cache);
  }
}

TEST(LayerArrangement, SameBitsForAnyNumberOfThreads) {
  const Problem p(false, {33, 2}, {64, 150}, 0, 4);
  const LayerRun want = p.run();
  for (std::size_t threads : {1, 2, 3}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    expect_same(want, p.run(), std::to_string(threads) + " threads");
  }
}

TEST(LayerRows, S24_S41_PaddingGivesZerosAndNoStaleSelectionSurvives) {
  Problem p(false, {1, 2, 1}, {80, 0, 66}, 3, 5); // the middle request is a replayed graph's
  const auto hidden = static_cast<std::size_t>(p.config.hidden_size);
  for (std::size_t row : {1, 2, 4, 5, 6}) // of no key: whatever they hold
    std::fill_n(p.step.hidden_states.begin() + static_cast<std::ptrdiff_t>(row * hidden), hidden,
                std::uint16_t{0x7FC0});
  OwnedStep step = p.step;
  const LayerRun run = run_layer(p.config, layer_contract(p.values), p.weights, step, 20);
  const auto k = static_cast<std::size_t>(p.config.dsa->index_topk);
  for (std::size_t row = 0; row < 20; ++row) {
    const bool padding = row == 1 || row == 2 || (row >= 4 && row < 7);
    for (std::size_t i = 0; i < k; ++i) {
      const std::int32_t index = run.topk[row * k + i];
      if (row >= 7)
        EXPECT_EQ(index, 77) << "a row past the step was written";
      else if (padding)
        EXPECT_EQ(index, -1) << row;
      else
        EXPECT_TRUE(index >= 0 && index < (row == 0 ? 80 : 66)) << row;
    }
    for (std::size_t i = 0; i < hidden && row < 7; ++i) {
      const std::uint16_t bits = run.output.as<std::uint16_t>()[row * hidden + i];
      if (padding)
        EXPECT_EQ(bits, 0) << row;
      else
        EXPECT_FALSE(std::isnan(bf16_to_float(bits))) << row;
    }
  }
}

TEST(LayerRows, S41_S58_AShorterStepLeavesNoRowOfALongerOne) {
  const Problem longer(false, {30}, {90}, 0, 6);
  Problem shorter(false, {5}, {10}, 2, 7);
  shorter.weights = longer.weights;
  const std::int64_t k = longer.config.dsa->index_topk;
  std::vector<std::int32_t> buffer(static_cast<std::size_t>(30 * k));
  auto layer = KimiK3DSAAttention::create(longer.config, layer_contract(longer.values),
                                          longer.weights, {buffer.data(), 30, k});
  ASSERT_TRUE(layer);
  OwnedStep step = longer.step;
  ASSERT_TRUE(layer->forward(step.view()));
  step = shorter.step;
  ASSERT_TRUE(layer->forward(step.view()));
  for (std::int64_t row = 0; row < 7; ++row)
    for (std::int64_t i = 0; i < k; ++i)
      EXPECT_EQ(buffer[static_cast<std::size_t>(row * k + i)],
                row < 5 && i < 6 + row ? i : -1); // fewer keys than k: all of them, in order
}

TEST(LayerRows, ADummyRunComputesNothingAndReportsTheWorkspace) {
  Problem p(false, {4}, {4}, 0, 8);
  p.step.pages = 0;
  OwnedStep step = p.step;
  LayerConfig config = p.config;
  config.max_model_len = 1000;
  config.max_num_seqs = 100;
  config.max_logits_bytes = 4096;
  const LayerRun run = run_layer(config, layer_contract(p.values), p.weights, step);
  EXPECT_EQ(run.tensors.size(), 1u); // run_layer's own logits: no operation ran
  EXPECT_EQ(run.topk[0], 77);
  for (std::int64_t i = 0; i < run.output.elements(); ++i)
    EXPECT_EQ(run.output.as<std::uint16_t>()[i], 0);

  std::int32_t cell = 0;
  auto layer = KimiK3DSAAttention::create(config, layer_contract(p.values), p.weights,
                                          {&cell, 1, config.dsa->index_topk});
  ASSERT_TRUE(layer);
  const LayerWorkspace workspace = layer->workspace();
  EXPECT_EQ(workspace.max_total_seq_len, 40000);
  EXPECT_EQ(workspace.max_model_len, 1000);
  EXPECT_EQ(workspace.gathered_bytes, 40000 * 132);
  EXPECT_EQ(workspace.decode_rows, 200);
  EXPECT_EQ(workspace.logits_bytes, 200 * 1000 * 4);

  step.tokens = 0;
  step.query_lens.clear();
  step.seq_lens.clear();
  EXPECT_TRUE(layer->forward(step.view()));
}

TEST(LayerState, NormWeightsFollowAReloadAndTheActivationDtype) {
  for (const char* dtype : {"bf16", "fp16"}) {
    Problem p(false, {3}, {40}, 0, 9, dtype);
    const LayerRun before = p.run();
    const auto keys = [&](const LayerRun& run) {
      return std::vector<std::uint16_t>(run.tensors.at("index_k").as<std::uint16_t>(),
                                        run.tensors.at("index_k").as<std::uint16_t>() + 3 * 128);
    };
    float& weight = p.weights.norms.at("k_index_norm.weight")[5];
    weight = 1.0f + 0x1p-10f; // a tie of bf16: 1; in fp16 it stays
    const auto reloaded = keys(p.run());
    weight = 1.0f;
    EXPECT_EQ(reloaded == keys(p.run()), std::string(dtype) == "bf16");
    EXPECT_NE(reloaded, keys(before));
  }
}

/// The ranks' heads side by side, without those that only pad.
Tensor joined(const std::vector<LayerRun>& ranks, const std::string& name, const Tensor& whole) {
  Tensor all(whole.dtype, whole.shape);
  const std::int64_t tokens = whole.shape[0], width = whole.elements() / tokens;
  const std::int64_t part = ranks[0].tensors.at(name).elements() / tokens;
  for (std::int64_t rank = 0; rank < std::ssize(ranks); ++rank) {
    const Tensor& from = ranks[static_cast<std::size_t>(rank)].tensors.at(name);
    for (std::int64_t t = 0; t < tokens; ++t)
      std::copy_n(from.as<std::uint16_t>() + t * part,
                  std::clamp<std::int64_t>(width - rank * part, 0, part),
                  all.as<std::uint16_t>() + t * width + rank * part);
  }
  return all;
}

struct Exactly {
  std::vector<double> value, bound;
};

Exactly exactly_projected(const LayerWeights& weights, const std::string& name, const Tensor& x) {
  const Weight w = weights.projections.at(name).view();
  Exactly exact{std::vector<double>(static_cast<std::size_t>(x.shape[0] * w.outputs)), {}};
  exact.bound = exact.value;
  EXPECT_TRUE(project_exact({x.as<std::uint16_t>(), x.shape[0], w, ActivationDtype::bf16},
                            exact.value.data(), exact.bound.data()));
  return exact;
}

double value_at(const Tensor& tensor, std::size_t i) {
  return bf16_to_float(tensor.as<std::uint16_t>()[i]);
}

/// The sum of the ranks against the whole layer, and what every rank must have alike.
void check_ranks(const Problem& p, const LayerRun& whole, std::int64_t count) {
  LayerConfig config = p.config;
  config.parallel.tensor_parallel_size = count;
  config.reduce_results = false;
  std::vector<LayerRun> ranks;
  std::vector<Tensor> partials;
  for (std::int64_t rank = 0; rank < count; ++rank) {
    auto part = slice_weights(config, p.weights, rank);
    ASSERT_TRUE(part) << part.status().what();
    OwnedStep step = p.step;
    ranks.push_back(run_layer(config, layer_contract(p.values), *part, step));
    partials.push_back(ranks.back().output);
    for (const char* name : {"index_q", "index_k", "index_weights", "index_logits", "topk_indices",
                             "topk_slots", "kv_c", "k_pe"})
      ASSERT_EQ(ranks.back().tensors.at(name).bytes, whole.tensors.at(name).bytes) << name;
  }
  // q: equal inputs, so both lie within the bound of one exact product.
  const Tensor q = joined(ranks, "q", whole.tensors.at("q"));
  Tensor hidden(Dtype::bfloat16, {p.step.tokens, config.hidden_size});
  std::copy(p.step.hidden_states.begin(), p.step.hidden_states.end(), hidden.as<std::uint16_t>());
  const Exactly exact_q = config.q_lora_rank ? exactly_projected(p.weights, "q_b_proj",
                                                                 whole.tensors.at("index_q_input"))
                                             : exactly_projected(p.weights, "q_proj", hidden);
  for (std::size_t i = 0; i < exact_q.value.size(); ++i)
    ASSERT_LE(std::fabs(value_at(q, i) - exact_q.value[i]), exact_q.bound[i]) << "q " << i;

  // The heads' values may differ by roundings that fall otherwise, never by as much as one head's
  // value from another's.
  const std::string name = config.mla_use_output_gate ? "attn_gated" : "attn_value";
  const Tensor& x = whole.tensors.at(name);
  const Tensor rank_x = joined(ranks, name, x);
  double largest = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.elements()); ++i)
    largest = std::max(largest, std::fabs(value_at(x, i)));
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.elements()); ++i)
    ASSERT_LE(std::fabs(value_at(x, i) - value_at(rank_x, i)), 0x1p-6 * largest) << name << i;

  // sum_r bf16(y_r): the bound of the whole product, a rounding of each share and of the sum.
  auto sum = sum_partials(partials, ActivationDtype::bf16);
  ASSERT_TRUE(sum);
  const Exactly exact = exactly_projected(p.weights, "o_proj", x);
  const Exactly exact_ranks = exactly_projected(p.weights, "o_proj", rank_x);
  for (std::size_t i = 0; i < exact.value.size(); ++i) {
    double shares = 0;
    for (const Tensor& partial : partials)
      shares += std::fabs(value_at(partial, i)) * 0x1p-8;
    const double gate =
        2 * exact.bound[i] + shares + std::fabs(exact.value[i] - exact_ranks.value[i]);
    ASSERT_LE(std::fabs(value_at(*sum, i) - value_at(whole.output, i)), gate) << "output " << i;
  }
}

TEST(LayerRanks, S44_SlicesSummedEqualTheWholeAndRanksAgreeOnTheIndexer) {
  std::mt19937 draw(10);
  const auto one_of = [&](std::initializer_list<std::int64_t> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(draw() % values.size()));
  };
  for (int round = 0; round < 67; ++round) { // times three numbers of ranks: 201 configurations
    const auto seed = static_cast<unsigned>(draw());
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto length = static_cast<std::int32_t>(1 + draw() % 150);
    Problem p(draw() % 2 != 0, {static_cast<std::int32_t>(1 + draw() % 3)}, {length + 3}, 0, seed);
    p.config.num_attention_heads = one_of({1, 3, 4, 6, 8, 9});
    p.config.dsa->index_num_heads = one_of({16, 32});
    p.config.mla_use_output_gate = draw() % 2 != 0;
    if (draw() % 2) p.config.q_lora_rank.reset();
    if (draw() % 2) p.config.dsa->index_k_norm_type = "rmsnorm";
    std::mt19937 random(seed);
    p.weights = random_weights(p.config, random);
    if (draw() % 2)
      for (auto& [name, weight] : p.weights.projections)
        if (name != "wk_index" && name != "wv_index")
          weight = testing::to_fp8(weight, WeightFormat::fp8_channel);
    const LayerRun whole = p.run();
    for (std::int64_t ranks : {2, 4, 8})
      check_ranks(p, whole, ranks);
    if (HasFatalFailure()) return;
    std::cout << seed << ' ';
  }
  std::cout << ": seeds, each on 2, 4 and 8 ranks\n";
}

} // namespace layer_test
} // namespace dsakit::reference
