// Decode context parallelism of the layer: any number of ranks gives what one does.
//   DSAKIT_DCP_SEED=SEED  that step alone
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

#include "dsakit/reference/context_parallel.hpp"
#include "support/dcp_problem.hpp"
#include "support/layer_problem.hpp"

namespace dsakit::reference {
namespace layer_dcp_test {

using testing::DcpAnswer;
using testing::DcpExpected;
using testing::kLayerPage;
using testing::OwnedStep;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// A step with its layer, on one rank.
struct Problem {
  Problem(bool mxfp4, std::vector<std::int32_t> query_lens, std::vector<std::int32_t> seq_lens,
          unsigned seed)
      : random(seed), config(testing::small_layer()) {
    config.indexer_kv_dtype = mxfp4 ? "mxfp4" : "fp8";
    config.max_num_seqs = 1;
    config.max_cudagraph_capture_size = 3;
    contract = std::make_unique<LayerContract>(
        testing::layer_contract(testing::layer_contract_values(mxfp4)));
    weights = testing::random_weights(config, random);
    step = testing::random_step(config, *contract, std::move(query_lens), std::move(seq_lens), 1,
                                random);
  }

  std::mt19937 random;
  LayerConfig config;
  std::unique_ptr<LayerContract> contract; // without a default
  LayerWeights weights;
  OwnedStep step;
};

/// The key in `slot`: its record, and its value and scale bytes in the index cache.
struct KeyBytes {
  std::uint8_t *record, *value, *scale;
  std::int64_t value_bytes;

  KeyBytes(OwnedStep& step, std::int64_t slot)
      : record(step.mla_cache.data() + slot * kMlaRecord),
        value_bytes(step.index_stride / kLayerPage - 4) {
    std::uint8_t* page = step.index_cache.data() + slot / kLayerPage * step.index_stride;
    value = page + slot % kLayerPage * value_bytes;
    scale = page + kLayerPage * value_bytes + slot % kLayerPage * 4;
  }
};

/// Where a request's key lies, by its number among those that the step holds.
std::int64_t slot_of(const OwnedStep& step, std::size_t request, std::int64_t key) {
  const std::int64_t page =
      step.block_table[request * index(step.columns) + index(key / kLayerPage)];
  return page * kLayerPage + key % kLayerPage;
}

/// Visits the keys of a rank: their slots on one rank, and on this one.
template <class Visit>
void for_each_key(const OwnedStep& whole, const OwnedStep& own, const DcpRank& dcp,
                  const Visit& visit) {
  for (std::size_t b = 0; b < whole.seq_lens.size(); ++b)
    for (std::int32_t p = 0; p < whole.seq_lens[b]; ++p)
      if (dcp_owner(dcp, p) == dcp.rank)
        visit(slot_of(whole, b, p), slot_of(own, b, dcp_local_index(dcp, p)));
}

/// The rank's share: its keys in pages of its own in random order, NaN in the rest.
OwnedStep shard(OwnedStep& whole, const DcpRank& dcp, std::mt19937& random) {
  OwnedStep own = whole;
  own.columns = 1;
  for (std::int32_t len : whole.seq_lens)
    own.columns = std::max(own.columns, (dcp_local_length(dcp, len) + kLayerPage - 1) / kLayerPage);
  const auto requests = std::ssize(whole.seq_lens);
  own.pages = requests * own.columns + 1;
  std::vector<std::int32_t> order(index(own.pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  own.block_table.assign(order.begin(), order.end() - 1);
  own.index_cache.assign(index(own.pages * own.index_stride), 0xFF);
  own.mla_cache.assign(index(own.pages * kLayerPage * kMlaRecord), 0xFF);
  for_each_key(whole, own, dcp, [&](std::int64_t from_slot, std::int64_t to_slot) {
    const KeyBytes from(whole, from_slot), to(own, to_slot);
    std::copy_n(from.record, kMlaRecord, to.record);
    std::copy_n(from.value, from.value_bytes, to.value);
    std::copy_n(from.scale, 4, to.scale);
  });
  std::size_t row = 0;
  for (std::size_t b = 0; b < whole.query_lens.size(); ++b)
    for (std::int32_t i = 0; i < whole.query_lens[b]; ++i, ++row) {
      const std::int64_t position = whole.seq_lens[b] - whole.query_lens[b] + i;
      own.slot_mapping[row] = position >= 0 && dcp_owner(dcp, position) == dcp.rank
                                  ? slot_of(own, b, dcp_local_index(dcp, position))
                                  : -1;
    }
  return own;
}

/// What the layer gave on several ranks. Tensors that come in pieces are put together, where their
/// rows are equally wide.
struct RanksRun {
  std::vector<OwnedStep> shards;
  std::vector<std::int32_t> topk;
  Tensor output;
  testing::Intermediates tensors;
  std::map<std::string, std::vector<std::pair<std::int64_t, Tensor>>> logits; ///< pieces
};

RanksRun run_ranks(const Problem& p, const LayerConfig& config) {
  RanksRun run;
  std::mt19937 random = p.random;
  OwnedStep whole = p.step;
  std::vector<LayerStep> steps;
  for (std::int64_t r = 0; r < config.parallel.decode_context_parallel_size; ++r)
    run.shards.push_back(shard(whole,
                               {config.parallel.decode_context_parallel_size,
                                config.parallel.cp_kv_cache_interleave_size, r},
                               random));
  for (OwnedStep& own : run.shards)
    steps.push_back(own.view());
  const std::int64_t k = config.dsa->index_topk;
  run.topk.assign(index(whole.tokens * k), 77);
  auto layer = KimiK3DSAAttention::create(config, *p.contract, p.weights,
                                          {run.topk.data(), whole.tokens, k});
  EXPECT_TRUE(layer) << layer.status().what();
  auto result =
      layer->forward(steps, [&](std::string_view name, std::int64_t first, const Tensor& rows) {
        EXPECT_LE(first + rows.shape[0], whole.tokens);
        if (name.ends_with(".index_logits")) {
          EXPECT_LE(rows.shape[0], layer->workspace().decode_rows);
          run.logits[std::string(name)].emplace_back(first, rows);
        } else if (name.ends_with(".topk_indices") || name.ends_with(".dcp_scores")) {
          Tensor& all = run.tensors[std::string(name)];
          if (all.bytes.empty()) all = Tensor(rows.dtype, {whole.tokens, k});
          std::copy(rows.bytes.begin(), rows.bytes.end(), all.bytes.begin() + first * k * 4);
        } else {
          EXPECT_TRUE(run.tensors.emplace(name, rows).second) << name << " came twice";
        }
        return Status{};
      });
  EXPECT_TRUE(result) << result.status().what();
  run.output = std::move(result->output);
  return run;
}

SparseAttention attention(const Problem& p, OwnedStep& step, const testing::Intermediates& tensors,
                          const Tensor& slots) {
  const LayerStep view = step.view();
  return {tensors.at("mla_query").as<std::uint16_t>(),
          {view.mla_cache.data, view.mla_cache.pages, kLayerPage, view.mla_cache.page_stride,
           view.mla_cache.record_stride},
          slots.as<std::int32_t>(),
          step.tokens,
          p.config.local_heads(),
          slots.shape[1],
          p.config.softmax_scale(),
          p.contract->mla.mla_fp8_encoding,
          p.contract->mla_scale_read,
          p.contract->lse_base};
}

DcpAnswer answer_of(const std::vector<std::int32_t>& topk, const testing::Intermediates& tensors) {
  const auto values = [&]<class Value>(const char* name, Value) {
    const Tensor& tensor = tensors.at(name);
    return std::vector<Value>(tensor.as<Value>(), tensor.as<Value>() + tensor.elements());
  };
  return {topk, values("attn_latent", std::uint16_t{}), values("attn_lse", float{})};
}

/// How far two right layers' outputs may lie apart whose latents lie `moved` apart: each
/// operation's own bound on both sides, and what the difference becomes in it. The gate multiplies
/// by at most 1.
std::vector<double> output_gate_of(const Problem& p, const std::vector<double>& moved,
                                   const testing::Intermediates* const (&sides)[2]) {
  const std::int64_t tokens = p.step.tokens, heads = p.config.local_heads();
  const std::int64_t values = heads * p.config.head.value;
  const Weight kv_b = p.weights.projections.at("kv_b_proj").view();
  const Weight o = p.weights.projections.at("o_proj").view();
  std::vector<double> exact(index(tokens * values)), bound(exact), error(exact);
  const Absorption absorption{nullptr, tokens, heads, p.config.head, kv_b, ActivationDtype::bf16};
  EXPECT_TRUE(absorb_v_difference(absorption, moved.data(), error.data()));
  for (const auto* side : sides) {
    Absorption in = absorption;
    in.x = side->at("attn_latent").as<std::uint16_t>();
    EXPECT_TRUE(absorb_v_exact(in, exact.data(), bound.data()));
    for (std::size_t i = 0; i < error.size(); ++i)
      error[i] += bound[i];
    EXPECT_TRUE(output_gate_exact({side->at("attn_value").as<std::uint16_t>(),
                                   side->at("gate").as<std::uint16_t>(), tokens * values,
                                   GateRounding::two, ActivationDtype::bf16},
                                  exact.data(), bound.data()));
    for (std::size_t i = 0; i < error.size(); ++i)
      error[i] += bound[i];
  }
  std::vector<double> y(index(tokens * o.outputs)), y_bound(y), gate(y);
  EXPECT_TRUE(project_difference(o, error.data(), tokens, gate.data()));
  for (const auto* side : sides) {
    EXPECT_TRUE(project_exact(
        {side->at("attn_gated").as<std::uint16_t>(), tokens, o, ActivationDtype::bf16}, y.data(),
        y_bound.data()));
    for (std::size_t i = 0; i < gate.size(); ++i)
      gate[i] += y_bound[i];
  }
  return gate;
}

/// Compares the layer on so many ranks with one; counts the rows of ranks without a key.
void check_world(Problem& p, const testing::LayerRun& one, OwnedStep& one_step, std::int64_t world,
                 std::int64_t interleave, std::int64_t& without_key) {
  SCOPED_TRACE(std::to_string(world) + " ranks, interleave " + std::to_string(interleave));
  LayerConfig config = p.config;
  config.parallel.decode_context_parallel_size = world;
  config.parallel.cp_kv_cache_interleave_size = interleave;
  RanksRun got = run_ranks(p, config);
  for (const char* alike : {"q", "kv_c", "k_pe", "index_q", "index_k", "mla_query", "gate"})
    EXPECT_EQ(got.tensors.at(alike).bytes, one.tensors.at(alike).bytes) << alike;

  const std::int64_t k = config.dsa->index_topk;
  const Tensor& logits = one.tensors.at("index_logits");
  std::vector<DcpExpected> expected;
  for (std::int64_t r = 0; r < world; ++r) {
    const DcpRank dcp{world, interleave, r};
    OwnedStep& own = got.shards[index(r)];
    for_each_key(one_step, own, dcp, [&](std::int64_t from_slot, std::int64_t to_slot) {
      const KeyBytes want(one_step, from_slot), have(own, to_slot);
      EXPECT_TRUE(std::equal(want.record, want.record + kMlaRecord, have.record));
      EXPECT_TRUE(std::equal(want.value, want.value + want.value_bytes, have.value));
      EXPECT_TRUE(std::equal(want.scale, want.scale + 4, have.scale));
    });
    const std::string of_rank = "ranks." + std::to_string(r) + ".";
    std::size_t row = 0;
    for (std::size_t b = 0; b < own.query_lens.size(); ++b)
      for (std::int32_t i = 0; i < own.query_lens[b]; ++i, ++row) {
        const std::int64_t length = own.seq_lens[b] - own.query_lens[b] + i + 1;
        const std::int64_t own_length = dcp_local_length(dcp, length);
        without_key += length > 0 && own_length == 0;
        for (const auto& [first, piece] : got.logits[of_rank + "index_logits"]) {
          const std::int64_t in_piece = static_cast<std::int64_t>(row) - first;
          if (in_piece < 0 || in_piece >= piece.shape[0]) continue;
          for (std::int64_t key = 0; key < own_length; ++key)
            ASSERT_EQ(piece.as<float>()[in_piece * piece.shape[1] + key],
                      logits.as<float>()[static_cast<std::int64_t>(row) * logits.shape[1] +
                                         dcp_global_position(dcp, key)]);
        }
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t cell = static_cast<std::int64_t>(row) * k + j;
          const std::int32_t position =
              got.tensors.at(of_rank + "topk_indices").as<std::int32_t>()[cell];
          const float score = got.tensors.at(of_rank + "dcp_scores").as<float>()[cell];
          ASSERT_EQ(position < 0, j >= own_length);
          if (position < 0) continue;
          ASSERT_EQ(dcp_owner(dcp, position), r);
          ASSERT_EQ(
              score,
              logits.as<float>()[static_cast<std::int64_t>(row) * logits.shape[1] + position]);
        }
      }
    expected.push_back(testing::attended(
        attention(p, own, got.tensors, got.tensors.at(of_rank + "compact_slots"))));
  }

  const std::int64_t heads = config.local_heads();
  const DcpExpected of_got =
      testing::dcp_merged(expected, p.step.tokens, heads, p.contract->lse_base);
  const DcpExpected of_one =
      testing::attended(attention(p, one_step, one.tensors, one.tensors.at("topk_slots")));
  testing::expect_same_answer(k, answer_of(got.topk, got.tensors), of_got,
                              answer_of(one.topk, one.tensors), of_one);
  std::vector<double> moved = of_got.latent_bound;
  for (std::size_t i = 0; i < moved.size(); ++i)
    moved[i] += of_one.latent_bound[i];
  const auto gate = output_gate_of(p, moved, {&got.tensors, &one.tensors});
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double a = bf16_to_float(got.output.as<std::uint16_t>()[i]);
    const double b = bf16_to_float(one.output.as<std::uint16_t>()[i]);
    EXPECT_LE(std::fabs(a - b), gate[i]) << "output " << i << ": " << a << ", one rank " << b;
  }
}

TEST(LayerContextParallel, S56_S59_AnyNumberOfRanksGivesWhatOneDoes) {
  std::uint64_t first = 1, last = 24;
  if (const char* only = std::getenv("DSAKIT_DCP_SEED"))
    first = last = std::strtoull(only, nullptr, 10);
  std::int64_t without_key = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    std::mt19937 draw(static_cast<unsigned>(seed));
    const auto between = [&](int low, int high) {
      return static_cast<std::int32_t>(
          low + static_cast<int>(draw() % static_cast<unsigned>(high - low + 1)));
    };
    // Decodes of one and two tokens, a prefill, a short request, and one without a key.
    const std::int32_t prefill = between(3, 9);
    Problem p(seed % 2 == 0, {2, 1, prefill, 1, 1},
              {between(30, 200), between(30, 200), prefill + between(0, 90), between(1, 3), 0},
              static_cast<unsigned>(seed));
    p.config.native_decode = draw() % 2 != 0;
    SCOPED_TRACE("seed " + std::to_string(seed));
    OwnedStep one_step = p.step;
    const testing::LayerRun one = testing::run_layer(p.config, *p.contract, p.weights, one_step);
    constexpr std::int64_t kInterleaves[] = {1, 2, 3, 16, 64, 100};
    for (std::int64_t world : {2, 4, 8})
      check_world(p, one, one_step, world, kInterleaves[draw() % 6], without_key);
    if (::testing::Test::HasFailure()) break;
  }
  std::cout << "seeds " << first << " to " << last << ", each on 1, 2, 4 and 8 ranks; "
            << without_key << " rows of ranks without a key\n";
  EXPECT_GT(without_key, 0);
}

TEST(LayerContextParallel, S35_NoSizeOfTheScoreBufferChangesABit) {
  for (bool mxfp4 : {false, true}) {
    const Problem p(mxfp4, {20, 2}, {90, 130}, 5);
    LayerConfig config = p.config;
    config.parallel.decode_context_parallel_size = 4;
    config.parallel.cp_kv_cache_interleave_size = 2;
    const RanksRun want = run_ranks(p, config);
    for (std::int64_t rows : {1, 7, 1000}) {
      config.max_cudagraph_capture_size = rows;
      config.num_speculative_tokens = rows == 1 ? 0 : 1;
      const RanksRun got = run_ranks(p, config);
      for (const auto& [name, tensor] : want.tensors)
        EXPECT_EQ(got.tensors.at(name).bytes, tensor.bytes) << name << ", " << rows << " rows";
      EXPECT_EQ(got.topk, want.topk);
    }
  }
}

TEST(LayerContextParallel, WhatOfTheRanksIsRefusedAndTheWorkspaceOfTheExchange) {
  Problem p(false, {2}, {70}, 3);
  LayerConfig config = p.config;
  config.parallel.decode_context_parallel_size = 2;
  std::vector<std::int32_t> buffer(index(p.step.tokens * 24));
  const TopkBuffer topk{buffer.data(), p.step.tokens, 24};
  auto layer = KimiK3DSAAttention::create(config, *p.contract, p.weights, topk);
  ASSERT_TRUE(layer) << layer.status().what();
  EXPECT_EQ(layer->workspace().decode_rows, 3);
  EXPECT_EQ(layer->workspace().dcp_scores_bytes, 3 * 24 * 4);
  OwnedStep own[] = {shard(p.step, {2, 1, 0}, p.random), shard(p.step, {2, 1, 1}, p.random)};
  const auto what = [&](const auto& change) {
    std::vector<LayerStep> steps = {own[0].view(), own[1].view()};
    change(steps);
    const auto before = own[0].index_cache;
    const std::string refusal = layer->forward(steps).status().what();
    EXPECT_EQ(own[0].index_cache, before);
    return refusal;
  };
  using Steps = std::vector<LayerStep>;
  EXPECT_EQ(what([](Steps& s) { s.pop_back(); }),
            "ranks: found 1, want 2, decode_context_parallel_size");
  EXPECT_EQ(what([](Steps& s) { s[1].tokens = 2; }),
            "rank 1: tokens: found 2, want 3 as of rank 0");
  const std::int32_t other[] = {3};
  EXPECT_EQ(what([&](Steps& s) { s[1].query_lens = other; }),
            "rank 1: query_lens: found others than rank 0 has");
  EXPECT_EQ(what([&](Steps& s) { s[1].seq_lens = other; }),
            "rank 1: seq_lens: found others than rank 0 has");
  EXPECT_EQ(what([](Steps& s) { s[1].mla_block_table.columns = 0; }),
            "rank 1: seq_lens[0]: found 35, want at most the 0 tokens of a row of mla_block_table");
  EXPECT_EQ(what([](Steps& s) {
              for (LayerStep& step : s)
                step.index_cache.pages = step.mla_cache.pages = 0;
            }),
            ""); // a dummy run
  const auto fp16 =
      testing::layer_contract(testing::layer_contract_values(false, "e4m3fn", "fp16"));
  EXPECT_EQ(KimiK3DSAAttention::create(config, fp16, p.weights, topk).status().what(),
            "activation_dtype: found fp16 with decode_context_parallel_size 2, want bf16: ranks "
            "merge latents of bf16");
}

} // namespace layer_dcp_test
} // namespace dsakit::reference
