#include "dsakit/harness/bench_diff.hpp"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace dsakit::harness {
namespace {

/// Times of one kernel: `us` with 1 % of noise.
std::vector<double> times(std::mt19937& random, double us, double noise = 0.01) {
  std::normal_distribution<double> normal(us, noise * us);
  std::vector<double> samples(30);
  for (double& sample : samples)
    sample = normal(random);
  return samples;
}

struct Row {
  std::string rows;
  std::vector<double> hot;
  nlohmann::json resources = nlohmann::json::object();
  std::string verdict = "pass";
};

std::string benchmark(const std::vector<Row>& rows, const std::string& device = "NVIDIA H200") {
  nlohmann::json document = {{"schema", "dsakit.bench/1"},
                             {"environment", {{"device", device}}},
                             {"rows", nlohmann::json::array()}};
  for (const Row& row : rows)
    document["rows"].push_back(
        {{"operation", "topk"},
         {"kernel", "radix64"},
         {"device", "cuda"},
         {"problem", {{"rows", row.rows}}},
         {"configuration", nlohmann::json::object()},
         {"verdict", row.verdict},
         {"reason", row.verdict == "pass" ? "" : "topk_indices: 3 of 8 elements"},
         {"resources", row.resources},
         {"hot", row.hot.empty() ? nlohmann::json() : nlohmann::json{{"samples", row.hot}}},
         {"cold", nullptr}});
  return document.dump();
}

BenchDiff diff(const std::vector<Row>& base, const std::vector<Row>& now) {
  const auto result =
      diff_benchmark_texts("base.json", benchmark(base), "new.json", benchmark(now), 0.03);
  EXPECT_TRUE(result) << result.status().what();
  return result ? *result : BenchDiff{};
}

TEST(BenchDiffTest, OnePercentOfNoiseIsNeverSlower) {
  std::mt19937 random(11);
  int same = 0;
  for (int trial = 0; trial < 100; ++trial) {
    const BenchChange change = judge_change(times(random, 50), times(random, 50), 0.03);
    EXPECT_NE(change, BenchChange::slower) << trial;
    EXPECT_NE(change, BenchChange::faster) << trial;
    same += change == BenchChange::same;
  }
  EXPECT_GT(same, 95); // and it does not just shrug
}

TEST(BenchDiffTest, APlantedTenPercentIsSlowerAndItsReverseFaster) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 100; ++trial) {
    const auto base = times(random, 50), slow = times(random, 55);
    EXPECT_EQ(judge_change(base, slow, 0.03), BenchChange::slower) << trial;
    EXPECT_EQ(judge_change(slow, base, 0.03), BenchChange::faster) << trial;
  }
}

TEST(BenchDiffTest, TwoPercentBelowTheMinimumEffectIsSame) {
  std::mt19937 random(13);
  EXPECT_EQ(judge_change(times(random, 50, 0.001), times(random, 51, 0.001), 0.03),
            BenchChange::same);
}

TEST(BenchDiffTest, NoiseThatHidesTheEffectIsAmbiguous) {
  std::mt19937 random(14);
  EXPECT_EQ(judge_change(times(random, 50, 0.2), times(random, 52, 0.2), 0.03),
            BenchChange::ambiguous);
}

TEST(BenchDiffTest, FewSamplesAreAmbiguousAndSaySo) {
  DiffRow row;
  EXPECT_EQ(judge_change({1, 1, 1}, {2, 2, 2}, 0.03, &row), BenchChange::ambiguous);
  EXPECT_EQ(row.note, "3 samples, want at least 8");
}

TEST(BenchDiffTest, ResourcesStandBesideARow) {
  std::mt19937 random(15);
  const BenchDiff result = diff({{"1", times(random, 50), {{"spills", 0}, {"vgprs", 64}}}},
                                {{"1", times(random, 60), {{"spills", 24}, {"vgprs", 64}}}});
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.rows[0].changed, (std::vector<std::string>{"spills 0 -> 24"}));
  const std::string text = to_text(result, false);
  EXPECT_NE(text.find("SLOWER"), std::string::npos) << text;
  EXPECT_NE(text.find("spills 0 -> 24"), std::string::npos) << text;
  EXPECT_EQ(result.exit_code(), 1);
}

TEST(BenchDiffTest, EveryRegressionIsShownWorstFirst) {
  std::mt19937 random(16);
  std::vector<Row> base, now;
  for (int i = 0; i < 80; ++i) {
    base.push_back({std::to_string(i), times(random, 50)});
    now.push_back({std::to_string(i), times(random, 60 + i)});
  }
  const BenchDiff result = diff(base, now);
  ASSERT_EQ(result.rows.size(), 80u);
  for (std::size_t i = 1; i < result.rows.size(); ++i)
    EXPECT_GE(result.rows[i - 1].ratio, result.rows[i].ratio) << i;
  for (const std::string& text : {to_text(result, false), to_markdown(result)})
    for (int i = 0; i < 80; ++i)
      EXPECT_NE(text.find("rows=" + std::to_string(i) + " "), std::string::npos) << i;
}

TEST(BenchDiffTest, RowsOfOneSideAreSaid) {
  std::mt19937 random(17);
  const auto same = times(random, 50);
  const BenchDiff result = diff({{"1", same}, {"2", same}}, {{"1", same}, {"3", same}});
  EXPECT_EQ(result.only_base, (std::vector<std::string>{"topk rows=2 on cuda"}));
  EXPECT_EQ(result.only_new, (std::vector<std::string>{"topk rows=3 on cuda"}));
  EXPECT_NE(to_text(result, false).find("in BASE alone: topk rows=2 on cuda"), std::string::npos);
  EXPECT_EQ(diff({{"1", same}}, {{"2", same}}).exit_code(), 77);
}

TEST(BenchDiffTest, AGateThatFailsNowIsARegression) {
  std::mt19937 random(18);
  const auto same = times(random, 50);
  const BenchDiff result = diff({{"1", same}, {"2", same}}, {{"1", same}, {"2", {}, {}, "fail"}});
  EXPECT_EQ(result.exit_code(), 1);
  EXPECT_EQ(result.failures,
            (std::vector<std::string>{"topk rows=2 on cuda: fail: topk_indices: 3 of 8 elements"}));
}

TEST(BenchDiffTest, OnlyAmbiguousRowsAreFour) {
  std::mt19937 random(19);
  const auto same = times(random, 50);
  EXPECT_EQ(diff({{"1", same}}, {{"1", same}}).exit_code(), 0);
  EXPECT_EQ(diff({{"1", times(random, 50, 0.2)}}, {{"1", times(random, 52, 0.2)}}).exit_code(), 4);
}

TEST(BenchDiffTest, WhatDoesNotRepeatIsAmbiguous) {
  std::mt19937 random(20);
  const auto base = times(random, 50), slow = times(random, 60);
  BenchDiff once = diff({{"1", base}, {"2", base}}, {{"1", slow}, {"2", slow}});
  keep_repeated(once, diff({{"1", base}, {"2", base}}, {{"1", base}, {"2", slow}}));
  ASSERT_EQ(once.rows.size(), 2u);
  for (const DiffRow& row : once.rows)
    EXPECT_EQ(row.change,
              row.key == "topk rows=2 on cuda" ? BenchChange::slower : BenchChange::ambiguous);
  EXPECT_EQ(once.exit_code(), 1);
  EXPECT_NE(to_text(once, false).find("SLOWER once, SAME in the second run"), std::string::npos);
}

TEST(BenchDiffTest, TheGeometricMeanIsOfTheHotRatios) {
  const std::vector<double> one(8, 10.0), two(8, 20.0), half(8, 5.0);
  EXPECT_DOUBLE_EQ(*diff({{"1", one}, {"2", one}}, {{"1", two}, {"2", half}}).geometric_mean, 1);
  EXPECT_DOUBLE_EQ(*diff({{"1", one}}, {{"1", two}}).geometric_mean, 2);
  const BenchDiff apart = diff({{"1", one}}, {{"2", two}});
  EXPECT_FALSE(apart.geometric_mean) << "of nothing";
  EXPECT_EQ(apart.exit_code(), 77);
  for (const std::string& text : {to_text(apart, false), to_markdown(apart)}) {
    EXPECT_EQ(text.find("geometric mean"), std::string::npos) << text;
    EXPECT_NE(text.find("nothing was compared"), std::string::npos) << text;
  }
}

TEST(BenchDiffTest, AnotherDeviceIsAWarning) {
  const std::vector<double> one(8, 10.0);
  const auto result = diff_benchmark_texts("a", benchmark({{"1", one}}), "b",
                                           benchmark({{"1", one}}, "AMD Instinct MI300X"), 0.03);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->warnings.size(), 1u);
  EXPECT_NE(result->warnings[0].find("MI300X"), std::string::npos);
}

TEST(BenchDiffTest, SamplesOfTwoRunsAreJoined) {
  const auto joined =
      join_samples("x", benchmark({{"1", {1, 2}}}), benchmark({{"1", {3}}, {"2", {4}}}));
  ASSERT_TRUE(joined) << joined.status().what();
  const auto rows = nlohmann::json::parse(*joined)["rows"];
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["hot"]["samples"], (nlohmann::json{1, 2, 3}));
}

TEST(BenchDiffTest, BadFilesAreOneLineThatSaysWhere) {
  const std::string good = benchmark({{"1", {1.0, 2.0}}});
  const auto refused = [&](const std::string& text) {
    const auto result = diff_benchmark_texts("base.json", good, "new.json", text, 0.03);
    EXPECT_FALSE(result) << text;
    EXPECT_EQ(result.status().code(), Code::bad_input);
    return result ? std::string() : result.status().what();
  };
  EXPECT_NE(refused("{").find("new.json"), std::string::npos);
  EXPECT_EQ(refused(R"({"schema": "dsakit-report/1", "rows": []})"),
            R"(new.json: schema: found something else, want "dsakit.bench/1")");
  EXPECT_EQ(refused(R"({"schema": "dsakit.bench/1"})"), "new.json: rows: found none, want a list");
  EXPECT_EQ(refused(R"({"schema": "dsakit.bench/1", "rows": [1]})"),
            "new.json: rows[0]: found no object, want one");
  EXPECT_EQ(refused(benchmark({{"1", {1.0}}, {"1", {1.0}}})),
            "new.json: rows[1]: found 'topk rows=1 on cuda' twice, want once");
  EXPECT_EQ(refused(benchmark({{"1", {0.0}}})),
            "new.json: rows[0]: hot.samples: found none, want numbers > 0");
}

} // namespace
} // namespace dsakit::harness
