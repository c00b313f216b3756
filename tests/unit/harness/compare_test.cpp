#include "dsakit/harness/compare.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "support/values.hpp"

namespace dsakit::harness {
namespace {

using testing::codes;
using testing::floats;
using testing::kInf;
using testing::kNan;

TEST(CompareExact, EqualBytesPassWithNothingUsed) {
  const Comparison c = compare_exact(floats({1, -2, kInf}), floats({1, -2, kInf}), {});
  EXPECT_TRUE(c.passes());
  EXPECT_EQ(c.elements, 3);
  EXPECT_EQ(c.used, 0);
  EXPECT_FALSE(c.first);
  EXPECT_FALSE(c.worst);
}

TEST(CompareExact, MinusZeroIsNotZero) {
  const Comparison c = compare_exact(floats({0, -0.0f}), floats({0, 0}), {});
  EXPECT_EQ(c.mismatches, 1);
  EXPECT_EQ(c.first, 1);
  EXPECT_EQ(c.worst, 1);
  EXPECT_EQ(c.worst_abs, 0);
  EXPECT_TRUE(std::isinf(c.used));
}

TEST(CompareExact, NanIsComparedByItsBits) {
  const float other_nan = std::bit_cast<float>(0x7FC00001u);
  EXPECT_TRUE(compare_exact(floats({kNan}), floats({kNan}), {}).passes());
  EXPECT_FALSE(compare_exact(floats({kNan}), floats({other_nan}), {}).passes());
  EXPECT_FALSE(
      compare_exact(codes(Dtype::float8_e4m3fn, {0x7F}), codes(Dtype::float8_e4m3fn, {0xFF}), {})
          .passes());
}

TEST(CompareExact, FirstIsRowMajorAndWorstIsTheLargestError) {
  const Comparison c = compare_exact(floats({1, 2.5, 3, 9}), floats({1, 2, 3, 4}), {});
  EXPECT_EQ(c.mismatches, 2);
  EXPECT_EQ(c.first, 1);
  EXPECT_EQ(c.worst, 3);
  EXPECT_EQ(c.worst_abs, 5);
  EXPECT_EQ(c.worst_rel, 1.25);
  EXPECT_EQ(c.wrong, (std::vector<std::int64_t>{1, 3}));
}

TEST(CompareExact, MaskedElementsCountForNothing) {
  const Comparison c = compare_exact(floats({1, 7, kNan}), floats({1, 2, 3}), {1, 0, 0});
  EXPECT_TRUE(c.passes());
  EXPECT_EQ(c.elements, 1);
  EXPECT_EQ(c.worst_abs, 0);
}

TEST(CompareExact, TwoHundredFiftySixMismatchesAreNotZero) {
  const Comparison c =
      compare_exact(floats(std::vector<float>(256, 1)), floats(std::vector<float>(256, 2)), {});
  EXPECT_EQ(c.mismatches, 256);
  EXPECT_FALSE(c.passes());
}

TEST(CompareDerived, TheBoundItselfPassesAndTheNextValueFails) {
  const double above = std::nextafter(1.5, 2);
  EXPECT_TRUE(compare_derived(floats({1.5f}), floats({1}), {0.5}, {}).passes());
  EXPECT_FALSE(compare_derived(floats({1.5f}), floats({1}), {std::nextafter(0.5, 0)}, {}).passes());
  Values want = floats({1});
  want.unrounded = {above - 1};
  EXPECT_TRUE(compare_derived(floats({1}), want, {0.5}, {}).passes());
}

TEST(CompareDerived, UsedIsTheWorstErrorInItsOwnBound) {
  const Comparison c =
      compare_derived(floats({1.1f, 20, 3}), floats({1, 19, 3}), {0.125, 4, 1}, {});
  EXPECT_TRUE(c.passes());
  EXPECT_NEAR(c.used, 0.8, 1e-6);
  EXPECT_EQ(c.worst, 0) << "0.1 of 0.125 is more than 1 of 4";
  EXPECT_EQ(c.worst_abs, 1);
}

TEST(CompareDerived, NonFiniteValuesMustMatchInKindWhateverTheBound) {
  const std::vector<double> huge = {1e300};
  const auto passes = [&](float got, float want) {
    return compare_derived(floats({got}), floats({want}), huge, {}).passes();
  };
  EXPECT_TRUE(passes(kNan, -kNan));
  EXPECT_TRUE(passes(-kInf, -kInf));
  EXPECT_FALSE(passes(kInf, -kInf));
  EXPECT_FALSE(passes(kNan, 0));
  EXPECT_FALSE(passes(0, kNan));
  EXPECT_FALSE(passes(-kInf, -3e38f));
  EXPECT_FALSE(passes(kNan, kInf));
}

TEST(CompareDerived, ANanBoundLetsNoErrorPass) {
  const std::vector<double> nan = {std::nan("")};
  EXPECT_TRUE(compare_derived(floats({1}), floats({1}), nan, {}).passes());
  const Comparison c = compare_derived(floats({1}), floats({1.0001f}), nan, {});
  EXPECT_FALSE(c.passes());
  EXPECT_TRUE(std::isinf(c.used));
}

TEST(CompareDerived, AReferenceBeyondFloatCountsAsInfinity) {
  Values want = floats({kInf});
  want.unrounded = {1e39};
  EXPECT_TRUE(compare_derived(floats({kInf}), want, {1}, {}).passes());
  EXPECT_FALSE(compare_derived(floats({3e38f}), want, {1}, {}).passes());
}

TEST(CompareDerived, ErrorIsMeasuredAgainstTheUnroundedReference) {
  Values want = floats({1});
  want.unrounded = {1 + 0x1p-30};
  EXPECT_EQ(compare_derived(floats({1}), want, {1}, {}).worst_abs, 0x1p-30);
}

TEST(Ulps, CountStepsOfTheStorageDtypeAcrossZero) {
  const auto steps = [](const Values& a, const Values& b) {
    return ulps_between(a.tensor, b.tensor, 0);
  };
  EXPECT_EQ(steps(floats({1}), floats({std::nextafter(1.0f, 2.0f)})), 1);
  EXPECT_EQ(steps(floats({0}), floats({-0.0f})), 0);
  EXPECT_EQ(steps(floats({0x1p-149f}), floats({-0x1p-149f})), 2);
  EXPECT_EQ(steps(codes(Dtype::float8_e4m3fn, {0x38}), codes(Dtype::float8_e4m3fn, {0x3A})), 2);
  EXPECT_EQ(steps(codes(Dtype::float8_e4m3fn, {0x01}), codes(Dtype::float8_e4m3fn, {0x81})), 2);
  EXPECT_EQ(steps(codes(Dtype::float8_e8m0fnu, {120}), codes(Dtype::float8_e8m0fnu, {123})), 3);
  EXPECT_FALSE(steps(codes(Dtype::float8_e8m0fnu, {0xFF}), codes(Dtype::float8_e8m0fnu, {1})));
  EXPECT_FALSE(steps(codes(Dtype::float8_e4m3fnuz, {0x80}), codes(Dtype::float8_e4m3fnuz, {1})));
  EXPECT_FALSE(steps(codes(Dtype::float8_e4m3fn, {0x7F}), codes(Dtype::float8_e4m3fn, {0x01})));
  EXPECT_FALSE(steps(codes(Dtype::uint8, {1}), codes(Dtype::uint8, {3})));
}

TEST(Ulps, OfAnFp4PairAreThoseOfTheWorseCode) {
  const auto steps = [](std::uint8_t a, std::uint8_t b) {
    return ulps_between(codes(Dtype::float4_e2m1fn_x2, {a}).tensor,
                        codes(Dtype::float4_e2m1fn_x2, {b}).tensor, 0);
  };
  EXPECT_EQ(steps(0x21, 0x21), 0);
  EXPECT_EQ(steps(0x21, 0x24), 3);
  EXPECT_EQ(steps(0x71, 0x24), 5) << "5 steps in the high nibble, 3 in the low one";
  EXPECT_EQ(steps(0x01, 0x09), 2) << "0.5 and -0.5";
  EXPECT_EQ(steps(0x00, 0x88), 0) << "both zeros";
}

TEST(Element, ReadsEveryStorageDtype) {
  const auto of = [](Dtype dtype, std::vector<std::uint8_t> bytes) {
    Tensor tensor(dtype, {1});
    std::memcpy(tensor.bytes.data(), bytes.data(), bytes.size());
    return element(tensor, 0);
  };
  EXPECT_EQ(of(Dtype::bfloat16, {0xC0, 0x3F}), 1.5);
  EXPECT_EQ(of(Dtype::float16, {0x00, 0xBE}), -1.5);
  EXPECT_EQ(of(Dtype::float8_e4m3fn, {0x3C}), 1.5);
  EXPECT_EQ(of(Dtype::float8_e4m3fnuz, {0x3C}), 0.75);
  EXPECT_EQ(of(Dtype::float8_e8m0fnu, {130}), 8);
  EXPECT_TRUE(std::isnan(of(Dtype::float8_e8m0fnu, {0xFF})));
  EXPECT_EQ(of(Dtype::int32, {0xFF, 0xFF, 0xFF, 0xFF}), -1);
  EXPECT_EQ(of(Dtype::int64, {0, 0, 0, 0, 1, 0, 0, 0}), 4294967296.0);
  EXPECT_EQ(of(Dtype::uint8, {0xA5}), 165);
}

TEST(Hex, HasTheWidthOfTheElement) {
  EXPECT_EQ(hex(floats({1}).tensor, 0), "0x3f800000");
  EXPECT_EQ(hex(codes(Dtype::uint8, {1, 10}).tensor, 1), "0x0a");
}

TEST(Coordinates, AreRowMajor) {
  EXPECT_EQ(coordinates({3, 5, 2}, 17), (std::vector<std::int64_t>{1, 3, 1}));
}

/// A bound that is no number vouches for nothing but equality.
TEST(CompareDerived, AnInfiniteBoundLetsNoErrorPass) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> kinds = {1, 2, kInf, -kInf, kNan};
  for (const float got : kinds)
    for (const float want : kinds) {
      Values a{Tensor(Dtype::float32, {1}), {}};
      Values b = a;
      a.tensor.as<float>()[0] = got;
      b.tensor.as<float>()[0] = want;
      const bool same = got == want || (got != got && want != want);
      EXPECT_EQ(compare_derived(a, b, {std::numeric_limits<double>::infinity()}, {}).passes(), same)
          << got << " " << want;
    }
}

} // namespace
} // namespace dsakit::harness
