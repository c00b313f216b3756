#include <cstdlib>

#include <gtest/gtest.h>

#include "bench/problem.hpp"
#include "dsakit/harness/replay.hpp"
#include "replay/determinism.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

class ReplayDeterminism : public testing::ReplayTest {};

TEST_F(ReplayDeterminism, KernelsGiveTheSameBitsRunAfterRunAndForARowAlone) {
  ReplayOptions options;
  options.determinism = {.run = true, .batch = true, .split = true, .count = 3};
  const Report report = replay(testing::tiny_recording(), options);
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "kernel", "run")->verdict, Verdict::pass);
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "kernel", "run")->elements, 2 * 15);
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "kernel", "batch")->verdict,
            Verdict::pass);
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "kernel", "batch")->elements, 3 * 5);
  EXPECT_EQ(find(report, "index_cache_write", "index_cache", "kernel", "run")->verdict,
            Verdict::pass);
  const auto* write = find(report, "index_cache_write", "index_cache", "kernel", "batch");
  EXPECT_EQ(write->verdict, Verdict::skipped);
  EXPECT_EQ(write->reason, "not claimed: its rows are not independent");
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "kernel", "split")->verdict,
            Verdict::skipped);
  EXPECT_EQ(report.verdict(), Verdict::pass);
}

TEST_F(ReplayDeterminism, NothingIsAskedForByDefault) {
  for (const ReportLine& line : replay(testing::tiny_recording()).lines)
    EXPECT_TRUE(line.against == "reference" || line.against == "recorded") << line.against;
}

/// A kernel whose bits depend on how many rows there are, and on how often it ran.
class Fickle final : public OperationAdapter {
public:
  explicit Fickle(bool by_rows) : by_rows_(by_rows) {}
  Result<std::vector<Expected>> reference(const OperationData&) const override {
    return std::vector<Expected>();
  }
  Result<KernelRun> run(const OperationData& data, optimized::Device&) const override {
    const std::int64_t rows = data.input("row_lens").elements();
    Tensor logits(Dtype::float32, {rows, 5});
    logits.as<float>()[5 * (rows - 1) + 3] = static_cast<float>(by_rows_ ? rows : ++runs_);
    KernelRun result;
    result.kernel = "fickle";
    result.outputs["logits"] = std::move(logits);
    return result;
  }

private:
  bool by_rows_;
  mutable int runs_ = 0;
};

std::vector<ReportLine> lines_of(bool by_rows) {
  const testing::TinyRecording recording = testing::tiny_recording();
  const Fickle adapter(by_rows);
  const OperationData data{{0, "index_logits_decode"},
                           recording.contract,
                           recording.operations.at("index_logits_decode")};
  KernelRunner kernels(optimized::DeviceKind::host, {}, 10);
  EXPECT_TRUE(kernels.open());
  const auto first = kernels.run(adapter, data);
  EXPECT_TRUE(first);
  std::vector<ReportLine> lines;
  EXPECT_TRUE(check_determinism(
      {.run = true, .batch = true, .count = 2}, adapter, data, *first, kernels,
      [] { return ReportLine(); }, lines));
  EXPECT_EQ(lines.size(), 2u);
  return lines;
}

TEST_F(ReplayDeterminism, OtherBitsOfAnotherRunAreAFailureWithThePlace) {
  const auto lines = lines_of(false);
  EXPECT_EQ(lines[0].against, "run");
  EXPECT_EQ(lines[0].verdict, Verdict::fail);
  EXPECT_EQ(lines[0].first_at, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(lines[0].hint, "run 2 of 2 gave other bits");
  EXPECT_EQ(lines[0].got->value, 2);
  EXPECT_EQ(lines[0].want->value, 1);
}

TEST_F(ReplayDeterminism, OtherBitsOfARowAloneAreAFailure) {
  const auto lines = lines_of(true);
  EXPECT_EQ(lines[0].verdict, Verdict::pass);
  EXPECT_EQ(lines[1].against, "batch");
  EXPECT_EQ(lines[1].verdict, Verdict::fail);
  EXPECT_EQ(lines[1].hint, "row 0 of 3 gave other bits alone");
}

/// A kernel whose bits depend on what may not matter: the lanes of top-k, or how many rows of
/// attention there are under one number of splits.
class Careless final : public OperationAdapter {
public:
  explicit Careless(const OperationAdapter& right) : right_(right) {}
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    return right_.reference(data);
  }
  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    auto run = right_.run(data, device);
    const bool wrong = data.id.operation == "topk" ? run->configuration.at("lanes") == 1024
                                                   : run->outputs.at("lse").shape[0] == 1 &&
                                                         run->configuration.at("splits") == 64;
    if (wrong) run->outputs.begin()->second.bytes[0] ^= std::byte{1};
    return run;
  }

private:
  const OperationAdapter& right_;
};

BenchProblem split_problem(const std::string& operation) {
  const BenchDims shape =
      operation == "topk"
          ? BenchDims{{"rows", "3"}, {"keys", "300"}, {"k", "32"}}
          : BenchDims{{"rows", "3"}, {"context", "256"}, {"heads", "16"}, {"k", "64"}};
  auto problem = generate(operation, *complete_shape(operation, shape), {}, 1);
  EXPECT_TRUE(problem) << problem.status().what();
  return problem ? std::move(*problem) : BenchProblem{};
}

std::vector<ReportLine> lines_of(const Determinism& wanted, const std::string& operation,
                                 const OperationAdapter& adapter) {
  const BenchProblem problem = split_problem(operation);
  KernelRunner kernels(optimized::DeviceKind::host, {}, 10);
  EXPECT_TRUE(kernels.open());
  const auto first = kernels.run(adapter, problem.data());
  EXPECT_TRUE(first);
  std::vector<ReportLine> lines;
  EXPECT_TRUE(check_determinism(
      wanted, adapter, problem.data(), *first, kernels, [] { return ReportLine(); }, lines));
  return lines;
}

TEST_F(ReplayDeterminism, WhatIsClaimedOfSplitsIsCompared) {
  const Determinism wanted{.split = true, .count = 3};
  const auto topk = lines_of(wanted, "topk", *find_adapter("topk"));
  ASSERT_EQ(topk.size(), 1u);
  EXPECT_EQ(topk[0].verdict, Verdict::pass);
  EXPECT_EQ(topk[0].elements, 3 * 3 * 32) << "256, 512 and 1024 lanes";
  const auto attention = lines_of(wanted, "sparse_attention", *find_adapter("sparse_attention"));
  ASSERT_EQ(attention.size(), 2u);
  for (const ReportLine& line : attention)
    EXPECT_EQ(line.verdict, Verdict::pass) << line.tensor << ": " << line.hint;
  EXPECT_EQ(attention[1].elements, 3 * 2 * 16) << "two rows alone, with 1, 32 and 64 splits";
}

TEST_F(ReplayDeterminism, OtherBitsOfAnotherSplitAreAFailure) {
  const Determinism wanted{.split = true, .count = 3};
  const auto topk = lines_of(wanted, "topk", Careless(*find_adapter("topk")));
  EXPECT_EQ(topk[0].verdict, Verdict::fail);
  EXPECT_EQ(topk[0].hint, "lanes=1024 gave other bits");
  const auto attention =
      lines_of(wanted, "sparse_attention", Careless(*find_adapter("sparse_attention")));
  EXPECT_EQ(attention[0].verdict, Verdict::fail);
  EXPECT_EQ(attention[0].hint, "splits=64: row 0 of 3 gave other bits alone");
}

/// What was tuned for one row is not what was tuned for many: that is no fault of the kernel.
TEST_F(ReplayDeterminism, ARowAloneRunsInTheConfigurationOfItsBatch) {
  std::ofstream(path("tuned.json"))
      << R"json({"schema": "dsakit.tuned/1", "choices": [{"device": "host lanes (gfx942 model)",
             "operation": "sparse_attention", "kernel": "mfma16",
             "problem_class": "tokens=1 heads=16 k=64", "configuration": {"splits": 2}}]})json";
  ::setenv("DSAKIT_TUNED", path("tuned.json").c_str(), 1);
  const auto lines =
      lines_of({.batch = true, .count = 2}, "sparse_attention", *find_adapter("sparse_attention"));
  ::unsetenv("DSAKIT_TUNED");
  for (const ReportLine& line : lines)
    EXPECT_EQ(line.verdict, Verdict::pass) << line.tensor << ": " << line.hint;
}

TEST_F(ReplayDeterminism, ArgumentsAreRefusedByWhatWasFound) {
  EXPECT_EQ(parse_determinism("run,rows", "3").status().what(),
            "--determinism: found level 'rows', want run, batch and split");
  EXPECT_EQ(parse_determinism("run", "1").status().what(),
            "--determinism: found count '1', want 2 to 10000");
  EXPECT_EQ(parse_determinism("run", "3x").status().what(),
            "--determinism: found count '3x', want 2 to 10000");
}

} // namespace
} // namespace dsakit::harness
