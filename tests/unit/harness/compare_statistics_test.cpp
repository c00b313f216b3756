// What a comparison says beside its verdict: anomalies, ulps, norms, places; and limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "dsakit/harness/compare.hpp"
#include "support/values.hpp"

namespace dsakit::harness {
namespace {

using testing::codes;
using testing::floats;
using testing::kInf;
using testing::kNan;

const AnomalyCount& of(const Comparison& c, Anomaly kind) {
  return c.anomalies[static_cast<std::size_t>(kind)];
}

TEST(Anomalies, AreCountedByKindAndByPosition) {
  const Values got = floats({kNan, 1, kInf, -kInf, kNan, 2});
  const Values want = floats({kNan, kNan, kInf, kInf, 5, 2});
  for (const Comparison& c :
       {compare_exact(got, want, {}), compare_derived(got, want, std::vector<double>(6, 1), {})}) {
    EXPECT_EQ(of(c, Anomaly::nan).got, 2);
    EXPECT_EQ(of(c, Anomaly::nan).want, 2);
    EXPECT_EQ(of(c, Anomaly::nan).apart, 2) << "as many on both sides, at other places";
    EXPECT_EQ(of(c, Anomaly::nan).first, 1);
    EXPECT_EQ(of(c, Anomaly::plus_infinity).apart, 1);
    EXPECT_EQ(of(c, Anomaly::plus_infinity).first, 3);
    EXPECT_EQ(of(c, Anomaly::minus_infinity).got, 1);
    EXPECT_EQ(of(c, Anomaly::minus_infinity).want, 0);
    EXPECT_EQ(c.anomalous, 3);
    EXPECT_EQ(c.mismatches, 3);
    EXPECT_TRUE(std::isinf(c.worst_abs));
  }
}

TEST(Anomalies, OfMaskedElementsAndOfCodesCountAsTheyShould) {
  const Comparison masked = compare_exact(floats({kNan, 1}), floats({1, 1}), {0, 1});
  EXPECT_EQ(of(masked, Anomaly::nan).got, 0);
  EXPECT_TRUE(masked.passes());
  const Comparison code =
      compare_exact(codes(Dtype::float8_e4m3fn, {0x7F}), codes(Dtype::float8_e4m3fn, {0x7E}), {});
  EXPECT_EQ(of(code, Anomaly::nan).apart, 1);
}

TEST(UlpStatistics, AreExactForSmallDistances) {
  std::vector<float> got(200, 1.0f);
  const std::vector<float> want(200, 1.0f);
  const auto steps_above_one = [](std::uint32_t n) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(1.0f) + n);
  };
  got[7] = steps_above_one(1);
  got[8] = steps_above_one(3);
  got[9] = steps_above_one(200);
  const Comparison c = compare_exact(floats(got), floats(want), {});
  EXPECT_EQ(c.ulp_max, 200);
  EXPECT_EQ(c.ulp_at, 9);
  EXPECT_EQ(c.ulp_p99, 1) << "198 of 200 are at most 1 apart";
  EXPECT_EQ(c.ulp_histogram, (std::vector<std::int64_t>{197, 1, 1, 0, 0, 0, 0, 0, 1}));
}

TEST(UlpStatistics, P99IsRoundedUpByLessThanOneIn128AndNeverAboveTheMaximum) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> got(1000);
    std::vector<std::int64_t> steps(1000);
    for (std::size_t i = 0; i < got.size(); ++i) {
      steps[i] = static_cast<std::int64_t>(random() >> (34 + random() % 28));
      got[i] = std::bit_cast<float>(static_cast<std::uint32_t>(steps[i]));
    }
    const Comparison c = compare_exact(floats(got), floats(std::vector<float>(1000)), {});
    std::sort(steps.begin(), steps.end());
    const std::int64_t exact = steps[989];
    ASSERT_EQ(c.ulp_max, steps.back());
    EXPECT_GE(*c.ulp_p99, exact);
    EXPECT_LE(*c.ulp_p99, exact + exact / 128);
    EXPECT_LE(*c.ulp_p99, steps.back());
    std::int64_t counted = 0;
    for (const std::int64_t n : c.ulp_histogram)
      counted += n;
    EXPECT_EQ(counted, 1000);
    EXPECT_EQ(c.ulp_histogram.size(),
              static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(steps.back()))) +
                  1);
  }
}

TEST(UlpStatistics, AreNoneForIntegersAndWhereNothingIsANumber) {
  const Comparison bytes = compare_exact(codes(Dtype::uint8, {1}), codes(Dtype::uint8, {3}), {});
  EXPECT_FALSE(bytes.ulp_max);
  EXPECT_TRUE(bytes.ulp_histogram.empty());
  const Comparison nan = compare_exact(floats({kNan}), floats({kNan}), {});
  EXPECT_FALSE(nan.ulp_max);
  EXPECT_FALSE(nan.ulp_p99);
}

TEST(RelativeL2, IsOfTheErrorToWantOverFiniteElements) {
  EXPECT_EQ(compare_exact(floats({3, 4}), floats({3, 4}), {}).relative_l2, 0);
  EXPECT_DOUBLE_EQ(compare_exact(floats({3, 5, kInf}), floats({3, 4, kNan}), {}).relative_l2, 0.2);
  EXPECT_TRUE(std::isinf(compare_exact(floats({1}), floats({0}), {}).relative_l2));
}

TEST(Places, MismatchesAreCountedAlongEveryAxis) {
  std::vector<float> got(24);
  got[1 * 12 + 2 * 4 + 3] = 1;
  got[1 * 12 + 0 * 4 + 3] = 1;
  const Comparison c =
      compare_exact(floats(got, {2, 3, 4}), floats(std::vector<float>(24), {2, 3, 4}), {});
  ASSERT_EQ(c.wrong_along.size(), 3u);
  EXPECT_EQ(c.wrong_along[0].wrong, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(c.wrong_along[1].wrong, (std::vector<std::int64_t>{1, 0, 1}));
  EXPECT_EQ(c.wrong_along[2].wrong, (std::vector<std::int64_t>{0, 0, 0, 2}));
  EXPECT_TRUE(compare_exact(floats({1}), floats({1}), {}).wrong_along.empty());
}

TEST(Places, AHugeAxisIsCountedInParts) {
  std::vector<float> got(200000);
  got.back() = 1;
  const Comparison c = compare_exact(floats(got), floats(std::vector<float>(got.size())), {});
  EXPECT_EQ(c.wrong_along[0].step, 4);
  EXPECT_EQ(c.wrong_along[0].wrong.size(), 50000u);
  EXPECT_EQ(c.wrong_along[0].wrong.back(), 1);
}

/// The stream of a comparison is cut anywhere: the numbers stay the same to the bit.
TEST(Comparer, DoesNotDependOnWhereBlocksBegin) {
  std::mt19937 random(3);
  constexpr std::int64_t kN = 5000;
  std::vector<float> got(kN);
  std::vector<float> want(kN);
  std::vector<double> bound(kN);
  Mask mask(kN);
  for (std::size_t i = 0; i < kN; ++i) {
    want[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64;
    got[i] = random() % 97 == 0 ? kNan : want[i] + static_cast<float>(random() % 3) / 1024;
    bound[i] = 1e-3;
    mask[i] = random() % 5 != 0;
  }
  const Values a = floats(got);
  const Values b = floats(want);
  const Comparison whole = compare_derived(a, b, bound, mask);
  Comparer comparer(Gate::derived, Dtype::float32, {kN});
  for (std::int64_t begin = 0, size = 1; begin < kN; begin += size, size = size * 3 % 701 + 1) {
    size = std::min(size, kN - begin);
    Block block{a.tensor.bytes.data() + begin * 4, b.tensor.bytes.data() + begin * 4, size};
    block.bound = bound.data() + begin;
    block.mask = mask.data() + begin;
    comparer.add(block);
  }
  const Comparison parts = comparer.finish();
  EXPECT_GT(whole.mismatches, 0);
  EXPECT_EQ(parts.elements, whole.elements);
  EXPECT_EQ(parts.mismatches, whole.mismatches);
  EXPECT_EQ(parts.used, whole.used);
  EXPECT_EQ(parts.worst, whole.worst);
  EXPECT_EQ(parts.worst_rel, whole.worst_rel);
  EXPECT_EQ(parts.relative_l2, whole.relative_l2);
  EXPECT_EQ(parts.ulp_histogram, whole.ulp_histogram);
  EXPECT_EQ(parts.wrong, whole.wrong);
  EXPECT_EQ(of(parts, Anomaly::nan).first, of(whole, Anomaly::nan).first);
}

TEST(Limits, ABudgetHoldsByCountAndByFraction) {
  std::vector<float> got(1000);
  got[1] = got[2] = got[3] = 1;
  const Comparison c = compare_exact(floats(got), floats(std::vector<float>(1000)), {});
  EXPECT_FALSE(passes(c, {}));
  EXPECT_TRUE(passes(c, {3, 0.003, {}}));
  EXPECT_FALSE(passes(c, {2, 0.5, {}})) << "the fraction alone would let 500 by";
  EXPECT_FALSE(passes(c, {100, 0.0029, {}})) << "the count alone would let 100 by";
  EXPECT_EQ(allowed({100, 0.0029, {}}, 1000), 2);
}

TEST(Limits, NoBudgetLetsANanOnOneSideBy) {
  std::vector<float> got(1000);
  got[5] = kNan;
  const Comparison c = compare_exact(floats(got), floats(std::vector<float>(1000)), {});
  EXPECT_FALSE(passes(c, {10, 0.1, {}}));
}

TEST(Limits, TheNormIsHeldBesideTheGateAndNeverInsteadOfIt) {
  const Comparison near = compare_derived(floats({3, 5}), floats({3, 4}), {1, 1}, {});
  EXPECT_TRUE(passes(near, {0, 0, 0.2000001}));
  EXPECT_FALSE(passes(near, {0, 0, 0.19})) << "every element is inside its bound";
  const Comparison far = compare_derived(floats({3, 5}), floats({3, 4}), {1, 0.5}, {});
  EXPECT_FALSE(passes(far, {0, 0, 10.0})) << "the norm is fine, an element is not";
}

} // namespace
} // namespace dsakit::harness
