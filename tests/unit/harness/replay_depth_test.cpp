// A replay says where, how much and of which part; rules, budgets, waivers and bands are obeyed.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "dsakit/harness/operations.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_topk.hpp"

namespace dsakit::testing {
namespace {

using harness::ReportLine;
using harness::Rules;
using harness::Verdict;

class ReplayDepthTest : public ReplayTest {
protected:
  Result<harness::Report> replay_with(const TinyRecording& recording, Rules& rules,
                                      const std::string& operation = {}) const {
    recording.write(path("tiny.h5"));
    harness::ReplayOptions options;
    options.paths = {path("tiny.h5")};
    options.operation = operation;
    return harness::replay(options, rules);
  }

  void write_waiver(const std::string& expires) const {
    std::ofstream(path("waivers.json"))
        << R"({"waivers": [{"operation": "index_cache_gather", "match": "k_scale",
              "reason": "known", "expires": ")"
        << expires << R"("}]})";
  }
};

TEST_F(ReplayDepthTest, ACacheIsTakenApartIntoCodesAndScales) {
  TinyRecording r = tiny_recording();
  // Slot 3 is the second record of page 1: its scale follows both records' codes.
  auto* scale = reinterpret_cast<float*>(r.output("index_cache_write", "index_cache").bytes.data() +
                                         tiny::kPageBytes + 2 * 128) +
                1;
  *scale *= 2;
  const harness::Report report = replay(r);
  const auto& line = *find(report, "index_cache_write", "index_cache", "kernel", "recorded");
  ASSERT_TRUE(line.quantised);
  EXPECT_EQ(line.quantised->codes, 8 * 128);
  EXPECT_EQ(line.quantised->codes_wrong, 0);
  EXPECT_EQ(line.quantised->scales_wrong, 1);
  EXPECT_EQ(line.quantised->scales_one_exponent, 1);
  EXPECT_GT(line.quantised->values_wrong, 100);
  EXPECT_FALSE(find(report, "index_cache_write", "index_cache", "kernel", "reference")->quantised);
  ASSERT_EQ(line.map.size(), 3u);
  EXPECT_EQ(line.map[0].ranges, (std::vector<std::array<std::int64_t, 2>>{{1, 1}}));
  EXPECT_EQ(line.map[1].axis, "tokens of a page");
  EXPECT_EQ(line.map[1].ranges, (std::vector<std::array<std::int64_t, 2>>{{1, 1}}));
  EXPECT_EQ(line.map[2].unit, "tile");
  const std::string text = to_text(report, {});
  EXPECT_NE(text.find("tokens of a page 1 (1 of 2)"), std::string::npos) << text;
}

TEST_F(ReplayDepthTest, CodesMeetTheScalesOfTheirOwnProducer) {
  TinyRecording r = tiny_recording();
  r.output("index_cache_gather", "k_fp8").as<std::uint8_t>()[2 * 128 + 7] ^= 0x10;
  const harness::Report report = replay(r);
  const auto& codes = *find(report, "index_cache_gather", "k_fp8", "reference", "recorded");
  ASSERT_TRUE(codes.quantised);
  EXPECT_EQ(codes.quantised->codes, 5 * 128);
  EXPECT_EQ(codes.quantised->codes_wrong, 1);
  EXPECT_EQ(codes.quantised->scales, 5);
  EXPECT_EQ(codes.quantised->scales_wrong, 0);
  EXPECT_EQ(codes.quantised->values_wrong, 1);
  EXPECT_EQ(codes.samples.size(), 1u);
  EXPECT_EQ(codes.samples[0].at, (std::vector<std::int64_t>{2, 7}));
  EXPECT_EQ(codes.dtype, "float8_e4m3fn");
  EXPECT_TRUE(codes.ulp_p99);
}

TEST_F(ReplayDepthTest, PagedLogitsAreMappedByPage) {
  TinyRecording r = tiny_recording();
  // 65 and more columns make an axis long; the rows end long before.
  const Tensor narrow = r.output("index_logits_decode", "logits");
  Tensor wide(Dtype::float32, {3, 66});
  for (int row = 0; row < 3; ++row)
    for (int key = 0; key < 5; ++key)
      wide.as<float>()[row * 66 + key] = narrow.as<float>()[row * 5 + key];
  wide.as<float>()[66 + 3] += 1000;
  r.output("index_logits_decode", "logits") = wide;
  const harness::Report report = replay(r);
  const auto& line = *find(report, "index_logits_decode", "logits", "kernel", "recorded");
  ASSERT_EQ(line.map.size(), 2u);
  EXPECT_EQ(line.map[1].unit, "page");
  EXPECT_EQ(line.map[1].block, 2);
  EXPECT_EQ(line.map[1].ranges, (std::vector<std::array<std::int64_t, 2>>{{2, 3}}));
}

TEST_F(ReplayDepthTest, ABudgetLetsFewElementsByAndSaysSo) {
  TinyRecording r = tiny_recording();
  r.output("index_logits_decode", "logits").as<float>()[1] += 1000;
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override("index_logits_decode/logits=derived,budget=1:0.2"));
  const auto report = replay_with(r, rules);
  ASSERT_TRUE(report);
  const auto& line = *find(*report, "index_logits_decode", "logits", "kernel", "recorded");
  EXPECT_EQ(line.verdict, Verdict::pass);
  EXPECT_EQ(line.mismatches, 1);
  EXPECT_EQ(line.allowed, 1);
  EXPECT_EQ(line.samples.size(), 1u);

  r.output("index_logits_decode", "logits").as<float>()[0] += 1000;
  Rules again = Rules::built_in();
  ASSERT_TRUE(again.add_override("index_logits_decode/logits=derived,budget=1:0.2"));
  EXPECT_EQ(replay_with(r, again)->verdict(), Verdict::fail);
}

TEST_F(ReplayDepthTest, ANormBeyondItsLimitFailsWhereEveryElementPasses) {
  TinyRecording r = tiny_recording();
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override("index_logits_decode/logits=derived,l2=0"));
  const auto report = replay_with(r, rules);
  ASSERT_TRUE(report);
  const auto& line = *find(*report, "index_logits_decode", "logits", "kernel", "reference");
  ASSERT_GT(line.relative_l2, 0) << "fp32 sums differ from the exact ones";
  EXPECT_EQ(line.verdict, Verdict::fail);
  EXPECT_EQ(line.mismatches, 0);
  EXPECT_EQ(line.relative_l2_limit, 0);
  EXPECT_TRUE(line.tightest_gate.starts_with("relative_l2 ")) << line.tightest_gate;
}

TEST_F(ReplayDepthTest, AWaivedFailureEndsNothingAndIsNoPass) {
  TinyRecording r = tiny_recording();
  r.output("index_cache_gather", "k_scale").as<float>()[3] = 5;
  Rules rules = Rules::built_in();
  write_waiver("9999-12-31");
  ASSERT_TRUE(rules.waivers.add_file(path("waivers.json")));
  const auto report = replay_with(r, rules);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->verdict(), Verdict::waived);
  EXPECT_EQ(report->files[0].verdict, Verdict::waived);
  EXPECT_EQ(report->summary().waived, 2);
  const auto& line = *find(*report, "index_cache_gather", "k_scale", "kernel", "recorded");
  EXPECT_EQ(line.reason, "until 9999-12-31: known");
  EXPECT_EQ(line.mismatches, 1);

  write_waiver("2000-01-01");
  Rules expired = Rules::built_in();
  ASSERT_TRUE(expired.waivers.add_file(path("waivers.json")));
  EXPECT_EQ(replay_with(r, expired)->verdict(), Verdict::fail);
}

TEST_F(ReplayDepthTest, ABandComesFromTheBoundOfTheLogits) {
  const auto verdict = [&](std::int32_t chosen, const char* gate) {
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override(gate));
    const auto report = replay_with(tiny_topk(chosen), rules, "topk");
    EXPECT_TRUE(report) << report.status().what();
    return find(*report, "topk", "topk_indices.fused", "reference", "recorded")->verdict;
  };
  EXPECT_EQ(verdict(1, "topk_indices.fused=topk_set"), Verdict::pass);
  EXPECT_EQ(verdict(0, "topk_indices.fused=topk_set"), Verdict::fail);
  EXPECT_EQ(verdict(0, "topk_indices.fused=topk_set,band=fp32"), Verdict::pass);
  EXPECT_EQ(verdict(2, "topk_indices.fused=topk_set,band=fp32"), Verdict::fail);
}

// What the producer of the logits rounded is read under --contract, as everywhere.
TEST_F(ReplayDepthTest, ABandObeysAnOverrideOfTheLogitsAccumulation) {
  TinyRecording r = tiny_topk(0);
  const auto smallest_bound = [&](Accumulation accumulation) {
    const auto bound =
        harness::find_adapter("index_logits_decode")
            ->bound(
                {{0, "index_logits_decode"}, r.contract, r.operations.at("index_logits_decode")},
                "logits", accumulation);
    return bound ? std::min((*bound)[0], (*bound)[1]) : 0;
  };
  // Two bands of fp32 reach half as far as one of fp32 and one of the wider sum.
  const double fp32 = smallest_bound(Accumulation::fp32);
  const double apart = 2 * (fp32 + smallest_bound(Accumulation::sm90_wgmma_fp8));
  ASSERT_GT(apart, 16 * fp32);
  r.input("topk", "logits").as<float>()[1] =
      r.output("index_logits_decode", "logits").as<float>()[1] = 1 + static_cast<float>(apart / 2);
  const auto verdict = [&](std::vector<harness::ContractOverride> overrides) {
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override("topk_indices.fused=topk_set,band=fp32"));
    r.write(path("tiny.h5"));
    harness::ReplayOptions options;
    options.paths = {path("tiny.h5")};
    options.overrides = std::move(overrides);
    const auto report = harness::replay(options, rules);
    EXPECT_TRUE(report) << report.status().what();
    return find(*report, "topk", "topk_indices.fused", "reference", "recorded")->verdict;
  };
  EXPECT_EQ(verdict({}), Verdict::fail);
  EXPECT_EQ(verdict({{"accumulation", "logits", "sm90_wgmma_fp8"}}), Verdict::pass);
}

TEST_F(ReplayDepthTest, ABandWithoutTheOperationThatMadeTheLogitsIsBadInput) {
  TinyRecording r = tiny_topk(0);
  r.input("topk", "logits").as<float>()[0] = 0.5f;
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override("topk_indices.fused=topk_set,band=fp32"));
  const auto report = replay_with(r, rules, "topk");
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->files[0].bad_input);
  EXPECT_NE(report->files[0].reason.find("found no index_logits operation that made its logits"),
            std::string::npos)
      << report->files[0].reason;
}

TEST_F(ReplayDepthTest, TopkLinesHaveACensusOfTies) {
  const harness::Report report = replay(tiny_topk(1));
  const auto& line = *find(report, "topk", "topk_indices", "kernel", "reference");
  ASSERT_TRUE(line.ties);
  EXPECT_EQ(line.ties->rows, 0);
  EXPECT_EQ(line.ties->groups, (std::map<std::int64_t, std::int64_t>{{1, 3}}));
}

} // namespace
} // namespace dsakit::testing
