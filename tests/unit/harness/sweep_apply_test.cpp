// From results to a tuned file: what wins is kept, noise and small gains are not.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dsakit/harness/sweep.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

class SweepApplyTest : public ::testing::Test {
protected:
  /// A line with quartiles 1 us beside the median.
  static json line(int splits, double median_us, const std::string& problem_class = "k=2048",
                   const std::string& code_hash = "c0de") {
    static int number = 0;
    return {
        {"key", "key" + std::to_string(number++)},
        {"operation", "sparse_attention"},
        {"kernel", "mfma16"},
        {"device", "GPU"},
        {"code_hash", code_hash},
        {"toolchain", "t"},
        {"problem", {{"class", problem_class}}},
        {"problem_class", problem_class},
        {"configuration", {{"splits", splits}}},
        {"verdict", "pass"},
        {"hot", {{"median_us", median_us}, {"q1_us", median_us - 1}, {"q3_us", median_us + 1}}}};
  }

  Result<std::vector<SweepVerdict>> apply(const std::vector<json>& lines, double min_effect = 0.03,
                                          const std::string& times = "hot") {
    std::ofstream file(results_, std::ios::trunc);
    for (const json& line : lines)
      file << line << "\n";
    file.close();
    return apply_sweep(results_, tuned_, {times, min_effect});
  }
  optimized::TunedChoices written() {
    const auto choices = optimized::parse_tuned(tuned_, testing::read_file(tuned_));
    EXPECT_TRUE(choices) << choices.status().what();
    return choices ? *choices : optimized::TunedChoices{};
  }
  /// Why the one class of these lines is not kept; empty: it is.
  std::string why_not(const std::vector<json>& lines, double min_effect = 0.03) {
    const auto verdicts = apply(lines, min_effect);
    EXPECT_TRUE(verdicts) << verdicts.status().what();
    if (!verdicts || verdicts->size() != 1) return "no single verdict";
    EXPECT_EQ(verdicts->front().kept, verdicts->front().why_not.empty());
    EXPECT_EQ(written().size(), verdicts->front().kept ? 1u : 0u);
    return verdicts->front().why_not;
  }

  testing::TempFolder folder_;
  const std::string results_ = folder_ / "results.jsonl", tuned_ = folder_ / "tuned.json";
};

TEST_F(SweepApplyTest, TheFastestOfEachClassIsKept) {
  const auto verdicts = apply({line(0, 100), line(8, 50), line(16, 40), line(4, 60),
                               line(0, 10, "k=1"), line(2, 20, "k=1")});
  ASSERT_TRUE(verdicts) << verdicts.status().what();
  ASSERT_EQ(verdicts->size(), 2u);
  const optimized::TunedChoice best{
      "GPU", "sparse_attention", "mfma16", "k=2048", {{"splits", 16}}};
  EXPECT_EQ((*verdicts)[0].choice, best);
  EXPECT_EQ((*verdicts)[0].median_us, 40);
  EXPECT_EQ((*verdicts)[0].default_us, 100);
  EXPECT_FALSE((*verdicts)[1].kept);
  EXPECT_EQ(written(), (optimized::TunedChoices{best}));
}

TEST_F(SweepApplyTest, ASmallGainAndNoiseAreNotKept) {
  EXPECT_EQ(why_not({line(0, 1000), line(8, 971)}), "found a gain of 2.9 %, want at least 3.0 %");
  EXPECT_EQ(why_not({line(0, 1000), line(8, 969)}), "");
  EXPECT_EQ(why_not({line(0, 1000), line(8, 995)}, 0.004), "");
  EXPECT_EQ(why_not({line(0, 20), line(8, 18)}), "its quartiles reach into the default's: noise");
  EXPECT_EQ(why_not({line(0, 20), line(8, 17.9)}), "");
  EXPECT_EQ(why_not({line(0, 20), line(8, 25)}), "found a gain of -25.0 %, want at least 3.0 %");
}

TEST_F(SweepApplyTest, WithoutADefaultOrAlternativeNothingIsKept) {
  EXPECT_EQ(why_not({line(8, 20)}), "its default was not timed");
  EXPECT_EQ(why_not({line(0, 20)}), "the default alone was timed");
}

TEST_F(SweepApplyTest, ADisqualifiedCandidateNeverWins) {
  json wrong = line(8, 2);
  wrong["verdict"] = "fail";
  EXPECT_EQ(why_not({line(0, 20), wrong}), "the default alone was timed");
}

TEST_F(SweepApplyTest, AKernelOfALibraryNeverWins) {
  json foreign = line(8, 5, "");
  foreign["library"] = "libmine.so";
  EXPECT_EQ(why_not({line(0, 20), foreign}), "the default alone was timed");
}

TEST_F(SweepApplyTest, HotOrColdTimesDecide) {
  json standard = line(0, 100), other = line(8, 200);
  standard["cold"] = other["hot"];
  other["cold"] = standard["hot"];
  EXPECT_FALSE(apply({standard, other})->front().kept);
  const auto cold = apply({standard, other}, 0.03, "cold");
  EXPECT_TRUE(cold->front().kept);
  EXPECT_EQ(cold->front().median_us, 100);
  EXPECT_NE(apply({line(0, 2)}, 0, "cold").status().what().find("found no cold times, want some"),
            std::string::npos);
}

TEST_F(SweepApplyTest, TimesOfTheLastBuildCount) {
  EXPECT_EQ(why_not({line(0, 100, "k=2048", "old"), line(8, 2, "k=2048", "old"), line(0, 100),
                     line(16, 99)}),
            "found a gain of 1.0 %, want at least 3.0 %");
}

TEST_F(SweepApplyTest, WhatCannotBeAppliedIsBadInputAndWritesNothing) {
  const auto refusal = [&](const std::vector<json>& lines) {
    const auto verdicts = apply(lines);
    EXPECT_EQ(verdicts.status().code(), Code::bad_input);
    EXPECT_FALSE(std::filesystem::exists(tuned_));
    return verdicts.status().what();
  };
  json other = line(4, 5);
  other["problem"] = {{"class", "other"}};
  EXPECT_NE(refusal({line(0, 20), other}).find("which are of one class, k=2048"),
            std::string::npos);
  json no_class = line(4, 5);
  no_class.erase("problem_class");
  EXPECT_NE(refusal({no_class}).find("problem_class: found no text, want one"), std::string::npos);
  // What dispatch would not take.
  EXPECT_NE(refusal({line(0, 200), line(65, 50)}).find("splits: found 65"), std::string::npos);
  json no_times = line(4, 5);
  no_times["hot"].erase("q1_us");
  EXPECT_NE(refusal({no_times}).find(":1: hot q1_us: found no number, want one"),
            std::string::npos);
  for (const char* which : {"q1_us", "median_us", "q3_us"})
    for (const double time : {0.0, -5.0}) {
      json bad = line(4, 5);
      bad["hot"][which] = time;
      EXPECT_NE(refusal({bad}).find(std::string(":1: hot ") + which + ": found " +
                                    json(time).dump() + ", want a time above 0"),
                std::string::npos);
    }
  json crossed = line(4, 5);
  crossed["hot"]["q3_us"] = 4.5;
  EXPECT_NE(refusal({crossed}).find("hot q3_us: found 4.5, want quartiles that ascend"),
            std::string::npos);
  for (const double effect : {-0.01, 1.5, std::nan("")}) {
    const auto verdicts = apply({line(0, 20)}, effect);
    EXPECT_EQ(verdicts.status().code(), Code::bad_input);
    EXPECT_EQ(verdicts.status().what().find("--min-effect: found "), 0u);
  }
  json foreign = line(4, 5);
  foreign["library"] = "libmine.so";
  EXPECT_NE(refusal({foreign}).find("found kernels of libmine.so alone, want some of dsakit"),
            std::string::npos);
  EXPECT_EQ(apply_sweep(results_, results_, {}).status().code(), Code::bad_input);
  EXPECT_EQ(apply_sweep(folder_ / "none", tuned_, {}).status().code(), Code::bad_input);
}

} // namespace
} // namespace dsakit::harness
