// Which sets are the best of a row, under a tie band, and the census of ties.
#include "operations/topk_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "support/values.hpp"

namespace dsakit::harness {
namespace {

using testing::kInf;
using testing::kNan;

std::vector<std::uint8_t> marked(const std::vector<float>& scores, const std::vector<double>& band,
                                 const std::vector<std::int32_t>& positions) {
  std::vector<std::uint8_t> valid(positions.size(), 7);
  mark_valid({scores.data(), band.empty() ? nullptr : band.data(),
              static_cast<std::int64_t>(scores.size()),
              static_cast<std::int64_t>(positions.size())},
             positions.data(), valid.data());
  return valid;
}

using Valid = std::vector<std::uint8_t>;

TEST(TopkRows, WithoutABandTheScoresDecide) {
  const std::vector<float> scores = {5, 1, 3, 3, 3, 9};
  EXPECT_EQ(marked(scores, {}, {5, 0, 3}), (Valid{1, 1, 1}));
  EXPECT_EQ(marked(scores, {}, {4, 5, 0}), (Valid{1, 1, 1})) << "any of the three that tie";
  EXPECT_EQ(marked(scores, {}, {5, 0, 1}), (Valid{1, 1, 0}));
  EXPECT_EQ(marked(scores, {}, {5, 2, 3}), (Valid{1, 1, 0})) << "0 is left out for a tie";
  EXPECT_EQ(marked(scores, {}, {5, 5, 0}), (Valid{1, 0, 1})) << "twice";
  EXPECT_EQ(marked(scores, {}, {5, 0, 6}), (Valid{1, 1, 0})) << "outside";
  EXPECT_EQ(marked(scores, {}, {5, 0, -1}), (Valid{1, 1, 0})) << "padding in a full row";
}

TEST(TopkRows, AShortRowIsPadded) {
  EXPECT_EQ(marked({2, 1}, {}, {1, 0, -1, -1}), (Valid{1, 1, 1, 1}));
  EXPECT_EQ(marked({2, 1}, {}, {-1, 0, -1, -1}), (Valid{1, 1, 1, 0}));
  EXPECT_EQ(marked({}, {}, {-1, 0}), (Valid{1, 0}));
}

TEST(TopkRows, NanIsLastAndMinusInfinityBeforeIt) {
  EXPECT_EQ(marked({kNan, -kInf, 1}, {}, {2, 1}), (Valid{1, 1}));
  EXPECT_EQ(marked({kNan, -kInf, 1}, {}, {2, 0}), (Valid{1, 0}));
  EXPECT_EQ(marked({-kNan, kNan}, {}, {1}), (Valid{1}));
  EXPECT_EQ(marked({-0.0f, 0.0f}, {}, {0}), (Valid{1}));
}

TEST(TopkRows, InsideTheBandAnyChoiceIsRightAndOutsideNone) {
  const std::vector<float> scores = {10, 5.2f, 5, 4.7f};
  const std::vector<double> band(4, 0.125);
  EXPECT_EQ(marked(scores, band, {0, 1}), (Valid{1, 1}));
  EXPECT_EQ(marked(scores, band, {0, 2}), (Valid{1, 1})) << "5.2 may have been 5.075, 5 5.125";
  EXPECT_EQ(marked(scores, {}, {0, 2}), (Valid{1, 0}));
  EXPECT_EQ(marked(scores, band, {0, 3}), (Valid{1, 0})) << "4.825 is below 5.075";
  EXPECT_EQ(marked(scores, band, {1, 2}), (Valid{1, 0})) << "10 is above every band";
  EXPECT_EQ(marked(scores, {0, 0, 0, kInf}, {0, 3}), (Valid{1, 1})) << "it has no bound";
}

/// A set is right where some logits inside the bands have it as their best: the most favourable
/// ones put those taken as high and the others as low as they go.
TEST(TopkRows, ASetPassesExactlyWhereSomeLogitsInsideTheBandsHaveIt) {
  std::mt19937 random(5);
  int right = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t n = 2 + random() % 6;
    const std::size_t k = 1 + random() % (n - 1);
    std::vector<float> scores(n);
    std::vector<double> band(n);
    std::vector<std::int32_t> order(n);
    for (std::size_t i = 0; i < n; ++i) {
      scores[i] = static_cast<float>(random() % 8);
      band[i] = static_cast<double>(random() % 4) / 2;
      order[i] = static_cast<std::int32_t>(i);
    }
    std::shuffle(order.begin(), order.end(), random);
    const auto at = [&](std::size_t i, double direction) {
      return scores[static_cast<std::size_t>(order[i])] +
             direction * band[static_cast<std::size_t>(order[i])];
    };
    bool possible = true;
    for (std::size_t in = 0; in < k; ++in)
      for (std::size_t out = k; out < n; ++out)
        possible &= at(in, 1) >= at(out, -1);
    const Valid valid = marked(scores, band, {order.begin(), order.begin() + static_cast<int>(k)});
    ASSERT_EQ(std::count(valid.begin(), valid.end(), 0) == 0, possible) << round;
    right += possible;
  }
  EXPECT_GT(right, kRounds / 20);
  EXPECT_LT(right, kRounds * 19 / 20);
}

TEST(Ties, AreCountedAtTheThresholdOfEachRow) {
  ReportTies ties;
  const std::vector<std::vector<float>> rows = {
      {9, 8, 7, 6}, // one at the threshold
      {9, 3, 3, 3}, // three for one place
      {3, 3, 3, 3}, // four for two
      {9, 3, 3},    // as below, but for one place
      {3, 3},       // two for two: no choice
      {},           // nothing
  };
  for (std::size_t r = 0; r < rows.size(); ++r)
    count_ties({rows[r].data(), nullptr, static_cast<std::int64_t>(rows[r].size()), 2},
               static_cast<std::int64_t>(r), ties);
  EXPECT_EQ(ties.rows, 3);
  EXPECT_EQ(ties.largest, 4);
  EXPECT_EQ(ties.places, 2);
  EXPECT_EQ(ties.row, 2);
  EXPECT_EQ(ties.groups, (std::map<std::int64_t, std::int64_t>{{1, 1}, {2, 2}, {3, 1}, {4, 1}}));
}

} // namespace
} // namespace dsakit::harness
