#include <gtest/gtest.h>

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
