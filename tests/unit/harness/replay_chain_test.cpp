// Chained replay, where a fault upstream must be told once, and replay of a sample of rows.
#include <cmath>

#include "../../../harness/src/replay/chain.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_layer.hpp"
#include "support/tiny_topk.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_layer;
using testing::TinyRecording;

class ReplayChain : public testing::ReplayTest {
protected:
  Report chained(const TinyRecording& recording) const {
    ReplayOptions options;
    options.mode = ReplayMode::chained;
    return replay(recording, options);
  }
};

TEST_F(ReplayChain, ASoundRecordingPassesWithTwoComparisonsOfEachOutput) {
  const Report report = chained(tiny_layer());
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(report.mode, "chained");
  EXPECT_EQ(report.lines.size(), 20u) << "kernel/reference and kernel/recorded";
  for (const ReportLine& line : report.lines)
    EXPECT_EQ(line.moved, 0) << line.operation;
}

// What a rank offers to a merge is a part of the merge's input; attention takes the slots without
// gaps.
TEST(Chain, ARanksPartOfAMergeIsOurs) {
  using testing::tiny::tensor;
  const auto floats = [](Shape shape, std::vector<float> values) {
    return tensor(Dtype::float32, std::move(shape), values);
  };
  const auto ids = [](std::vector<std::int32_t> values) {
    return tensor(Dtype::int32, {1, 3}, values);
  };
  Chain chain;
  RecordedOperation topk, slots;
  topk.outputs["dcp_scores"] = floats({1, 3}, {3, 2, 1});
  KernelRun run;
  run.outputs["dcp_scores"] = floats({1, 3}, {3, 2, 1.5F}).tensor;
  chain.take(topk, run);
  slots.outputs["slots"] = ids({7, -1, 5});
  slots.outputs["compact_slots"] = ids({7, 5, -1});
  run.outputs = {{"slots", ids({7, -1, 6}).tensor}, {"compact_slots", ids({7, 6, -1}).tensor}};
  chain.take(slots, run);

  RecordedOperation merge, attention;
  merge.inputs["rank_scores"] = floats({2, 1, 3}, {9, 8, 7, 3, 2, 1});
  EXPECT_EQ(chain.feed(merge).inputs.at("rank_scores").tensor.bytes,
            floats({2, 1, 3}, {9, 8, 7, 3, 2, 1.5F}).tensor.bytes);
  attention.inputs["slots"] = ids({7, 5, -1});
  EXPECT_EQ(chain.feed(attention).inputs.at("slots").tensor.bytes, ids({7, 6, -1}).tensor.bytes);
  // Neither across the ends of two ranks' parts, nor where nobody recorded such bytes.
  for (const std::vector<float>& values :
       {std::vector<float>{9, 3, 2, 1, 8, 7}, {9, 8, 7, 3, 2, 0}}) {
    merge.inputs["rank_scores"] = floats({2, 1, 3}, values);
    EXPECT_EQ(chain.feed(merge).inputs.at("rank_scores").tensor.bytes,
              floats({2, 1, 3}, values).tensor.bytes);
  }
}

/// The recorded producer folds twice the weights and scores with them.
TEST_F(ReplayChain, AWrongProducerIsNamedAndWhatItPassedOnIsExplained) {
  TinyRecording recording = tiny_layer();
  Tensor& folded = recording.output("index_weights_fold", "index_weights_folded");
  for (std::int64_t i = 0; i < folded.elements(); ++i)
    folded.as<float>()[i] *= 2;
  recording.input("index_logits_prefill", "index_weights_folded") = folded;
  Tensor& logits = recording.output("index_logits_prefill", "logits");
  for (std::int64_t i = 0; i < logits.elements(); ++i)
    logits.as<float>()[i] *= 2;

  const Report report = chained(recording);
  EXPECT_EQ(
      find(report, "index_weights_fold", "index_weights_folded", "kernel", "recorded")->verdict,
      Verdict::fail);
  const ReportLine* line = find(report, "index_logits_prefill", "logits", "kernel", "recorded");
  EXPECT_EQ(line->verdict, Verdict::pass);
  EXPECT_NEAR(line->want->value, 2 * line->got->value, 1e-3 * std::abs(line->want->value))
      << "the kernel was fed our own weights";
  EXPECT_EQ(find(report, "index_logits_prefill", "logits", "kernel", "reference")->verdict,
            Verdict::pass);
}

TEST_F(ReplayChain, AFaultBesideAnExplainedDifferenceStillFails) {
  TinyRecording recording = tiny_layer();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  scale.as<float>()[4] *= 2; // row 1, head 1
  recording.input("index_weights_fold", "index_q_scale") = scale;
  Tensor& folded = recording.output("index_weights_fold", "index_weights_folded");
  folded.as<float>()[4] *= 2;
  const Report explained = chained(recording);
  const ReportLine* line =
      find(explained, "index_weights_fold", "index_weights_folded", "kernel", "recorded");
  EXPECT_EQ(line->verdict, Verdict::pass);
  EXPECT_EQ(line->moved, 1);
  EXPECT_EQ(line->elements, folded.elements() - 1);

  folded.as<float>()[5] *= 2;
  const Report report = chained(recording);
  line = find(report, "index_weights_fold", "index_weights_folded", "kernel", "recorded");
  EXPECT_EQ(line->verdict, Verdict::fail);
  EXPECT_EQ(line->first_at, (std::vector<std::int64_t>{1, 2}));
}

// The band is that of the recorded logits, whatever our kernels made of them.
TEST_F(ReplayChain, ATopkOfOtherLogitsHasItsBand) {
  const auto verdict = [&](std::int32_t chosen, const char* gate) {
    testing::tiny_topk(chosen).write(path("tiny.h5"));
    ReplayOptions options;
    options.paths = {path("tiny.h5")};
    options.operation = "topk";
    options.mode = ReplayMode::chained;
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override(gate));
    const auto report = harness::replay(options, rules);
    EXPECT_TRUE(report) << report.status().what();
    return find(*report, "topk", "topk_indices.fused", "kernel", "recorded")->verdict;
  };
  EXPECT_EQ(verdict(1, "topk_indices.fused=topk_set"), Verdict::pass);
  EXPECT_EQ(verdict(0, "topk_indices.fused=topk_set"), Verdict::fail);
  EXPECT_EQ(verdict(0, "topk_indices.fused=topk_set,band=fp32"), Verdict::pass);
  EXPECT_EQ(verdict(2, "topk_indices.fused=topk_set,band=fp32"), Verdict::fail);
}

TEST_F(ReplayChain, OneOperationIsFedByThoseBeforeIt) {
  ReplayOptions options;
  options.mode = ReplayMode::chained;
  options.operation = "index_logits_prefill";
  const Report report = replay(tiny_layer(), options);
  EXPECT_EQ(report.verdict(), Verdict::pass);
  EXPECT_EQ(report.lines.size(), 2u);
}

class ReplayRows : public testing::ReplayTest {};

TEST_F(ReplayRows, ASampleHasSoManyRowsAndWritesStayWhole) {
  ReplayOptions options;
  options.rows = 2;
  const Report report = replay(tiny_layer(), options);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  const auto elements = [&](const char* operation, const char* tensor) {
    return find(report, operation, tensor, "kernel", "recorded")->elements;
  };
  EXPECT_EQ(elements("index_query_quant", "index_q_scale"), 2 * 3);
  EXPECT_EQ(elements("index_key_norm", "index_k"), 2 * 128);
  EXPECT_EQ(elements("topk", "topk_indices"), 2 * 3);
  EXPECT_EQ(elements("sparse_attention", "lse"), 2 * 2);
  EXPECT_EQ(elements("mla_cache_write", "mla_cache"), testing::tiny::kPages * 2 * 656);
}

/// A wrong row is found exactly where the sample holds it.
TEST_F(ReplayRows, TheSeedSaysWhichRows) {
  TinyRecording recording = tiny_layer();
  recording.output("topk_slots", "slots").as<std::int32_t>()[0] += 1; // row 0
  ReplayOptions options;
  options.rows = 1;
  options.operation = "topk_slots";
  int found = 0;
  for (options.seed = 0; options.seed < 30; ++options.seed) {
    const bool fails = replay(recording, options).verdict() == Verdict::fail;
    EXPECT_EQ(fails, replay(recording, options).verdict() == Verdict::fail) << "same seed";
    found += fails;
  }
  EXPECT_GT(found, 2) << "of 30 samples of one of 3 rows";
  EXPECT_LT(found, 20);
}

/// Rows without row_request belong to a request by their number, which a sample changes.
TEST_F(ReplayRows, RowsKeepTheirRequest) {
  TinyRecording recording = testing::tiny_recording();
  auto& inputs = recording.operations.at("index_logits_decode").inputs;
  inputs.erase("row_request");
  inputs["block_table"] = // one request a row, the tables as they were
      testing::tiny::tensor<std::int32_t>(Dtype::int32, {3, 2}, {1, 3, 2, 0, 2, 0});
  ReplayOptions options;
  options.operation = "index_logits_decode";
  ASSERT_EQ(replay(recording, options).verdict(), Verdict::pass);
  options.rows = 1;
  for (options.seed = 0; options.seed < 6; ++options.seed)
    EXPECT_EQ(replay(recording, options).verdict(), Verdict::pass) << options.seed;
}

} // namespace
} // namespace dsakit::harness
