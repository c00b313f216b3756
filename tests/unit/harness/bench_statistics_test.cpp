#include "bench/statistics.hpp"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "bench/report_json.hpp"

namespace dsakit::harness {
namespace {

TEST(BenchStatistics, QuantilesLieBetweenSamples) {
  const BenchTiming timing = timing_of({5, 1, 4, 2, 3});
  EXPECT_EQ(timing.median_us, 3);
  EXPECT_EQ(timing.q1_us, 2);
  EXPECT_EQ(timing.q3_us, 4);
  EXPECT_EQ(timing.min_us, 1);
  EXPECT_EQ(timing.samples, (std::vector<double>{5, 1, 4, 2, 3}));
  EXPECT_EQ(timing_of({1, 2}).median_us, 1.5);
}

// 1 - 2 * 2^-n >= 0.99 from n = 8 on.
TEST(BenchStatistics, SevenSamplesSayNothingOfAMedianAndEightSay) {
  EXPECT_FALSE(median_interval({1, 2, 3, 4, 5, 6, 7}, 0.99));
  const auto all = median_interval({8, 7, 6, 5, 4, 3, 2, 1}, 0.99);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->low, 1);
  EXPECT_EQ(all->high, 8);
}

// Of the table of the binomial distribution: P(X <= 7 | 30, 1/2) = 0.0026, P(X <= 8) = 0.0081.
TEST(BenchStatistics, ThirtySamplesGiveTheEighthFromEitherEnd) {
  std::vector<double> samples(30);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<double>(i + 1);
  const auto interval = median_interval(samples, 0.99);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->low, 8);
  EXPECT_EQ(interval->high, 23);
}

TEST(BenchStatistics, TheIntervalHoldsTheMedianAsOftenAsItSays) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> skewed; // of median 1
  int missed = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> samples(31);
    std::generate(samples.begin(), samples.end(), [&] { return skewed(random); });
    const auto interval = median_interval(samples, 0.9);
    ASSERT_TRUE(interval);
    missed += interval->low > 1 || interval->high < 1;
  }
  EXPECT_LT(missed, kTrials / 10);
  EXPECT_GT(missed, kTrials / 50); // and is not all of the line
}

TEST(BenchStatistics, ManySamplesDoNotUnderflow) {
  std::vector<double> samples(5000);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<double>(i);
  const auto interval = median_interval(samples, 0.99);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 2500 - 91, 3); // half of 2.576 * sqrt(5000)
  EXPECT_NEAR(interval->high, 2500 + 91, 3);
}

TEST(BenchStatistics, RatesAndDimensionsReadAsText) {
  EXPECT_EQ(rate_text(2.5e6, "B/s"), "2.5 TB/s");
  EXPECT_EQ(rate_text(1e-6, ""), "1");
  EXPECT_EQ(dims_text({{"rows", "64"}, {"k", "2048"}}), "k=2048 rows=64");
}

} // namespace
} // namespace dsakit::harness
