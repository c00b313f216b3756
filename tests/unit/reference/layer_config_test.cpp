// What a layer is built from: every refusal of spec 7 in its order, weights, slices, chunks.
#include "dsakit/reference/layer_config.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dsakit/reference/mxfp4.hpp"
#include "support/layer_problem.hpp"

namespace dsakit::reference {
namespace layer_config_test {

using testing::layer_contract;
using testing::layer_contract_values;
using testing::random_weights;
using testing::small_layer;

std::int32_t cell = 0;

Status refusal(const LayerConfig& config, std::int32_t* buffer = &cell, std::int64_t columns = 24) {
  return check_layer(config, {buffer, 1, columns}).status();
}

TEST(LayerConfig, EveryRefusalInItsOrderWithTheValueFound) {
  // Everything that the constructor refuses, the last first; each added fault hides the former.
  LayerConfig config = small_layer();
  std::int32_t* buffer = &cell;
  const auto expect = [&](Code code, const std::string& what) {
    const Status status = refusal(config, buffer);
    EXPECT_EQ(status.code(), code) << what;
    EXPECT_EQ(status.what(), what);
  };
  ASSERT_TRUE(refusal(config));
  config.head.pe = 32;
  expect(Code::unsupported, "qk_rope_head_dim: found 32, want 64 for fp8_ds_mla");
  config.head.latent = 256;
  expect(Code::unsupported, "kv_lora_rank: found 256, want 512 for fp8_ds_mla");
  config.cache_dtype = "auto";
  expect(Code::unsupported,
         "cache_dtype: found 'auto', want fp8_ds_mla, which every fp8* resolves to");
  config.indexer_kv_dtype = "int8";
  expect(Code::bad_input, "indexer_kv_dtype: found 'int8', want fp8 or mxfp4");
  config.dsa->index_k_norm_type = "batchnorm";
  expect(Code::bad_input, "index_k_norm_type: found 'batchnorm', want layernorm or rmsnorm");
  config.indexer_kv_dtype = "mxfp4";
  config.dsa->index_num_heads = 24;
  expect(Code::bad_input, "index_num_heads: found 24, want 16, 32 or 64 for an mxfp4 indexer");
  config.dsa->index_head_dim = 64;
  expect(Code::bad_input, "index_head_dim: found 64, want 128 for an mxfp4 indexer");
  config.dsa->index_topk_freq = 4;
  expect(Code::unsupported, "index_topk_freq: found 4, want 1: layers share no indices");
  buffer = nullptr;
  expect(Code::bad_input,
         "topk_indices_buffer: found none, want the model's buffer that layers share");
  config.dsa->index_rope_dim = 64;
  expect(Code::unsupported,
         "index_rope_dim: found 64, want 0: the indexer has no rotary embedding");
  config.mla_use_nope = false;
  expect(Code::unsupported, "mla_use_nope: found false, want true: the layer has no rotary "
                            "embedding, and would leave q_pe and k_pe unrotated");
  config.parallel.prefill_context_parallel_size = 2;
  expect(Code::unsupported, "prefill_context_parallel_size: found 2, want 1");
  config.dsa.reset();
  expect(Code::bad_input, "dsa_config: found none, want one: this is a DSA layer");
}

TEST(LayerConfig, OtherRefusals) {
  const auto what = [](const std::function<void(LayerConfig&)>& change, std::int64_t columns = 24) {
    LayerConfig config = small_layer();
    change(config);
    return refusal(config, &cell, columns).what();
  };
  EXPECT_EQ(what([](LayerConfig&) {}, 23),
            "topk_indices_buffer columns: found 23, want index_topk = 24");
  EXPECT_EQ(what([](LayerConfig& c) { c.dsa->index_head_dim = 64; }),
            "index_head_dim: found 64, want 128, the quantiser's group");
  EXPECT_EQ(what([](LayerConfig& c) { c.hidden_size = 0; }),
            "hidden_size: found 0, want at least 1");
  EXPECT_EQ(what([](LayerConfig& c) { c.parallel.tensor_parallel_size = 2; }),
            "reduce_results: found true, want false for a rank alone: sum_partials adds what the "
            "ranks return");
  EXPECT_EQ(what([](LayerConfig& c) { c.dsa->index_topk_freq.reset(); }), "");
  EXPECT_EQ(what([](LayerConfig& c) { c.parallel.decode_context_parallel_size = 0; }),
            "decode_context_parallel_size: found 0, want at least 1");
  EXPECT_EQ(what([](LayerConfig& c) { c.parallel.cp_kv_cache_interleave_size = 0; }),
            "cp_kv_cache_interleave_size: found 0, want at least 1");
  EXPECT_EQ(what([](LayerConfig& c) {
              c.parallel.decode_context_parallel_size = 2;
              c.max_num_seqs = c.max_cudagraph_capture_size = 0;
            }),
            "rows of dcp_scores: found 0, want at least 1: max_num_seqs * (1 + "
            "num_speculative_tokens) or max_cudagraph_capture_size");
}

TEST(LayerConfig, HeadsThatTheRanksDoNotDivideArePaddedWithANote) {
  LayerConfig config = small_layer();
  config.num_attention_heads = 6;
  config.parallel.tensor_parallel_size = 4;
  config.reduce_results = false;
  auto notes = check_layer(config, {&cell, 1, 24});
  ASSERT_TRUE(notes);
  ASSERT_EQ(notes->size(), 1u);
  EXPECT_EQ((*notes)[0], "num_attention_heads: found 6, padded to 8 for tensor_parallel_size 4");
  EXPECT_EQ(config.local_heads(), 2);
  config.parallel.tensor_parallel_size = 3;
  EXPECT_TRUE(check_layer(config, {&cell, 1, 24})->empty());
}

TEST(LayerConfig, TheContractMustBeOfTheIndexerThatTheModelHas) {
  LayerConfig config = small_layer();
  std::mt19937 random(1);
  const LayerWeights weights = random_weights(config, random);
  const auto what = [&](bool mxfp4) {
    return KimiK3DSAAttention::create(config, layer_contract(layer_contract_values(mxfp4)), weights,
                                      {&cell, 1, 24})
        .status()
        .what();
  };
  EXPECT_EQ(what(false), "");
  EXPECT_EQ(what(true),
            "index_page_layout: found one of an mxfp4 indexer, want one for indexer_kv_dtype fp8");
  config.indexer_kv_dtype = "mxfp4";
  EXPECT_EQ(what(false),
            "index_page_layout: found one of an fp8 indexer, want one for indexer_kv_dtype mxfp4");
}

TEST(LayerWeights, RefusalsNameTheWeight) {
  const LayerConfig config = small_layer();
  std::mt19937 random(2);
  const LayerWeights good = random_weights(config, random);
  ASSERT_TRUE(check_weights(config, good));
  const auto what = [&](const std::function<void(LayerWeights&)>& change) {
    LayerWeights weights = good;
    change(weights);
    return check_weights(config, weights).what();
  };
  EXPECT_EQ(what([](LayerWeights& w) { w.projections.erase("g_proj"); }),
            "weight g_proj is missing");
  EXPECT_EQ(what([](LayerWeights& w) { w.norms.erase("k_index_norm.bias"); }),
            "weight k_index_norm.bias is missing");
  EXPECT_EQ(what([](LayerWeights& w) { w.norms["q_norm"] = {1}; }),
            "weight q_norm: the layer has none of that name");
  EXPECT_EQ(what([](LayerWeights& w) { w.norms["q_a_layernorm"].pop_back(); }),
            "weight q_a_layernorm: found [63], want [64]");
  EXPECT_EQ(what([](LayerWeights& w) { w.projections["q_b_proj"].values.shape = {64, 768}; }),
            "weight q_b_proj: found [64, 768], want [768, 64]");
  EXPECT_EQ(what([](LayerWeights& w) {
              w.projections["o_proj"].values = Tensor(Dtype::float32, {96, 512});
            }),
            "weight o_proj: found dtype float32, want bfloat16");
  for (const std::string name : {"wk_index", "wv_index"})
    for (WeightFormat format : {WeightFormat::fp8_channel, WeightFormat::fp8_block}) {
      LayerWeights weights = good;
      weights.projections[name] = testing::to_fp8(good.projections.at(name), format);
      const Status status = check_weights(config, weights);
      EXPECT_EQ(status.code(), Code::unsupported);
      EXPECT_EQ(status.what(), "weight " + name + ": found format " +
                                   std::string(dsakit::name(format)) +
                                   ", want bf16: the indexer's key and weight projections are not "
                                   "quantised");
    }
  LayerWeights fp8 = good;
  fp8.projections["q_b_proj"] =
      testing::to_fp8(good.projections.at("q_b_proj"), WeightFormat::fp8_block);
  ASSERT_TRUE(check_weights(config, fp8));
  fp8.projections["q_b_proj"].scales.shape = {1, 6};
  EXPECT_EQ(check_weights(config, fp8).what(),
            "weight q_b_proj scales: found [1, 6], want [6, 1] float32");
}

TEST(LayerWeights, SlicesHoldARanksHeadsAndZerosForThoseThatPad) {
  LayerConfig config = small_layer();
  config.num_attention_heads = 3;
  std::mt19937 random(3);
  LayerWeights whole = random_weights(config, random);
  for (WeightFormat format :
       {WeightFormat::bf16, WeightFormat::fp8_channel, WeightFormat::fp8_block}) {
    LayerWeights weights = whole;
    if (format != WeightFormat::bf16)
      for (const char* name : {"kv_b_proj", "g_proj", "o_proj"})
        weights.projections[name] = testing::to_fp8(whole.projections.at(name), format);
    config.parallel.tensor_parallel_size = 2;
    for (std::int64_t rank : {0, 1}) {
      auto part = slice_weights(config, weights, rank);
      ASSERT_TRUE(part) << part.status().what();
      EXPECT_TRUE(check_weights(config, *part));
      // W_UK row 5 of the rank's second head: the whole's head 1 or, past the heads, zero.
      const auto row = [](const LayerWeights& from, std::int64_t r) {
        const Weight w = from.projections.at("kv_b_proj").view();
        std::vector<double> dx, out;
        for (std::int64_t i : {0, 200, 511}) {
          dx.assign(512, 0);
          dx[static_cast<std::size_t>(i)] = 1;
          std::vector<double> all(static_cast<std::size_t>(w.outputs));
          EXPECT_TRUE(project_difference(w, dx.data(), 1, all.data()));
          out.push_back(all[static_cast<std::size_t>(r)]);
        }
        return out;
      };
      EXPECT_EQ(row(*part, 5), row(weights, rank * 512 + 5));
      EXPECT_EQ(row(*part, 256 + 5), rank == 0 ? row(weights, 256 + 5) : std::vector<double>(3, 0));
    }
    EXPECT_EQ(slice_weights(config, weights, 2).status().what(),
              "rank: found 2, want below tensor_parallel_size 2");
  }
  config.parallel.tensor_parallel_size = 4;
  whole.projections["q_b_proj"] =
      testing::to_fp8(whole.projections.at("q_b_proj"), WeightFormat::fp8_block);
  EXPECT_EQ(slice_weights(config, whole, 1).status().what(),
            "weight q_b_proj: found a rank's rows or columns [192, 384), want multiples of 128 for "
            "fp8_block");
}

using Chunks = std::vector<std::vector<std::int64_t>>;

Chunks split(std::vector<std::int32_t> query_lens, std::vector<std::int32_t> seq_lens,
             std::int64_t max_keys, std::int64_t max_logits) {
  Chunks chunks;
  for (const PrefillChunk& c : split_prefill(query_lens, seq_lens, max_keys, max_logits))
    chunks.push_back({c.first_request, c.last_request, c.first_row, c.last_row});
  return chunks;
}

TEST(PrefillChunks, AreGreedyAndCutOneRequestAlongItsRows) {
  EXPECT_EQ(split({10, 5}, {10, 20}, 100, 1000), (Chunks{{0, 2, 0, 15}}));
  EXPECT_EQ(split({10, 5}, {10, 20}, 29, 1000), (Chunks{{0, 1, 0, 10}, {1, 2, 10, 15}}));
  EXPECT_EQ(split({10, 5}, {10, 20}, 30, 449), (Chunks{{0, 1, 0, 10}, {1, 2, 10, 15}}));
  EXPECT_EQ(split({10, 5}, {10, 20}, 30, 450), (Chunks{{0, 2, 0, 15}}));
  EXPECT_EQ(split({7, 2}, {30, 3}, 100, 60), // 2 rows of 30 keys a piece
            (Chunks{{0, 1, 0, 2}, {0, 1, 2, 4}, {0, 1, 4, 6}, {0, 1, 6, 7}, {1, 2, 7, 9}}));
  EXPECT_EQ(split({2}, {50}, 100, 1), (Chunks{{0, 1, 0, 1}, {0, 1, 1, 2}})); // one row at least
  EXPECT_EQ(split({0, 3}, {9, 3}, 100, 100), (Chunks{{0, 2, 0, 3}}));
  EXPECT_EQ(split({0}, {9}, 100, 100), Chunks{});
  EXPECT_EQ(split({}, {}, 100, 100), Chunks{});
}

TEST(LayerStep, RefusalsNameTheValueAndWriteNeitherCache) {
  const LayerConfig config = small_layer();
  const LayerContract contract = layer_contract(layer_contract_values(false));
  std::mt19937 random(4);
  const LayerWeights weights = random_weights(config, random);
  testing::OwnedStep step = testing::random_step(config, contract, {3, 1}, {70, 5}, 0, random);
  std::vector<std::int32_t> buffer(4 * 24, 7);
  auto layer = KimiK3DSAAttention::create(config, contract, weights, {buffer.data(), 4, 24});
  ASSERT_TRUE(layer);
  const auto untouched_index = step.index_cache;
  const auto untouched_mla = step.mla_cache;
  const auto what = [&](const std::function<void(LayerStep&)>& change) {
    LayerStep view = step.view();
    change(view);
    const Status status = layer->forward(view).status();
    EXPECT_EQ(step.index_cache, untouched_index);
    EXPECT_EQ(step.mla_cache, untouched_mla);
    EXPECT_EQ(buffer, std::vector<std::int32_t>(4 * 24, 7));
    return status.what();
  };
  const std::vector<std::int32_t> one = {1}, negative = {-1, 1}, too_long = {70, 4097},
                                  past_table = {129, 5};
  EXPECT_EQ(what([&](LayerStep& s) { s.seq_lens = one; }),
            "seq_lens entries: found 1, want 2 as query_lens has");
  EXPECT_EQ(what([&](LayerStep& s) { s.query_lens = negative; }),
            "query_lens[0]: found -1, want at least 0");
  EXPECT_EQ(what([&](LayerStep& s) { s.seq_lens = too_long; }),
            "seq_lens[1]: found 4097, want 0 to max_model_len = 4096");
  EXPECT_EQ(what([&](LayerStep& s) { s.tokens = 3; }),
            "tokens: found 3, want at least the 4 of query_lens");
  EXPECT_EQ(what([&](LayerStep& s) { s.tokens = 5; }),
            "topk_indices_buffer rows: found 4, want at least the 5 of the step");
  EXPECT_EQ(what([&](LayerStep& s) { s.seq_lens = past_table; }),
            "seq_lens[0]: found 129, want at most the 128 tokens of a row of index_block_table");
  EXPECT_EQ(what([&](LayerStep& s) { s.mla_block_table.requests = 1; }),
            "mla_block_table rows: found 1, want 2, one a request");
  EXPECT_EQ(what([&](LayerStep& s) { s.index_cache.page_stride = 100; }),
            "index_cache page stride: found 100 bytes, want at least 8448");
  EXPECT_EQ(what([&](LayerStep& s) { s.mla_cache.page_size = 32; }),
            "mla_cache page size: found 32, want 64");
  const std::vector<std::int64_t> slots = {0, 1, 2, 100000};
  EXPECT_EQ(what([&](LayerStep& s) { s.mla_slot_mapping = slots; }),
            "slot_mapping[3]: found 100000, want -1 or a slot below 256");
  for (std::int64_t bytes : {576, 1152})
    EXPECT_EQ(what([&](LayerStep& s) { s.mla_cache.record_stride = bytes; }),
              "mla_cache record: found " + std::to_string(bytes) +
                  " bytes, a dense row of 576 elements, want the 656 of fp8_ds_mla; hint: AMD's "
                  "fused decode writers fill dense rows, which this layer never reads");
}

} // namespace layer_config_test
} // namespace dsakit::reference
