// Where mismatches are told to be, and quantised tensors taken apart.
#include "replay/places.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "replay/quantised.hpp"
#include "support/tiny_recording.hpp"
#include "support/values.hpp"

namespace dsakit::harness {
namespace {

using testing::codes;
using testing::floats;
using Ranges = std::vector<std::array<std::int64_t, 2>>;

Comparison with_wrong(const Shape& shape, const std::vector<std::int64_t>& at) {
  std::vector<float> got(static_cast<std::size_t>(element_count(shape)));
  const std::vector<float> want = got;
  for (const std::int64_t i : at)
    got[static_cast<std::size_t>(i)] = static_cast<float>(1 + i);
  return compare_exact(floats(got, shape), floats(want, shape), {});
}

TEST(Map, RunsOfBlocksAlongEachAxis) {
  const Shape shape = {8, 200};
  const Comparison c = with_wrong(shape, {2 * 200 + 5, 3 * 200 + 60, 7 * 200 + 199});
  const std::vector<AxisMap> map = map_of(c, shape, {{"rows", "index", 1}, {"keys", "page", 64}});
  ASSERT_EQ(map.size(), 2u);
  EXPECT_EQ(map[0].wrong_blocks, 3);
  EXPECT_EQ(map[0].blocks, 8);
  EXPECT_EQ(map[0].ranges, (Ranges{{2, 3}, {7, 7}}));
  EXPECT_EQ(map[1].wrong_blocks, 2);
  EXPECT_EQ(map[1].blocks, 4) << "the last page is part of one";
  EXPECT_EQ(map[1].ranges, (Ranges{{0, 63}, {192, 199}}));
}

TEST(Map, HoldsTheFirstEightRunsAndCountsAll) {
  std::vector<std::int64_t> every_third;
  for (std::int64_t i = 0; i < 100; i += 3)
    every_third.push_back(i);
  const Comparison c = with_wrong({100}, every_third);
  const AxisMap map = map_of(c, {100}, {{"rows", "index", 1}})[0];
  EXPECT_EQ(map.ranges.size(), AxisMap::kRanges);
  EXPECT_EQ(map.ranges.back()[1], 21);
  EXPECT_EQ(map.wrong_blocks, 34);
  EXPECT_TRUE(map_of(with_wrong({100}, {}), {100}, {{"rows", "index", 1}}).empty());
}

TEST(Map, AHugeAxisIsInWholeParts) {
  const Comparison c = with_wrong({200000}, {199999});
  const AxisMap map = map_of(c, {200000}, {{"slots", "index", 1}})[0];
  EXPECT_EQ(map.block, 4);
  EXPECT_EQ(map.ranges, (Ranges{{199996, 199999}}));
}

// The bytes of a page are codes of all its tokens, then their scales: which token a byte is of is
// not its place.
TEST(Map, ABytesTokenOfAPage) {
  testing::TinyRecording recording = testing::tiny_recording();
  const OperationData data{{0, "index_cache_write"},
                           recording.contract,
                           recording.operations.at("index_cache_write"),
                           {}};
  const Shape shape = {4, 2 * 132};
  const std::vector<Axis> axes = axes_of(data, "index_cache", shape);
  const auto tokens = [&](const std::vector<std::int64_t>& bytes) {
    std::vector<std::int64_t> at;
    for (const std::int64_t byte : bytes)
      at.push_back(3 * 264 + byte);
    const std::vector<AxisMap> map = map_of(with_wrong(shape, at), shape, axes);
    EXPECT_EQ(map.size(), 3u);
    EXPECT_EQ(map[0].ranges, (Ranges{{3, 3}}));
    EXPECT_EQ(map[1].axis, "tokens of a page");
    EXPECT_EQ(map[1].extent, 2);
    EXPECT_EQ(map[1].wrong_blocks, std::ssize(map[1].ranges));
    return map[1].ranges;
  };
  EXPECT_EQ(tokens({127}), (Ranges{{0, 0}}));
  EXPECT_EQ(tokens({128}), (Ranges{{1, 1}}));
  EXPECT_EQ(tokens({256 + 3}), (Ranges{{0, 0}})) << "its scale";
  EXPECT_EQ(tokens({256 + 4}), (Ranges{{1, 1}}));
  EXPECT_TRUE(axes_of(data, "slot_mapping", {5})[0].token_of.empty());
}

TEST(Samples, AreAtMostEightWithTheFirstAndTheWorst) {
  std::vector<std::int64_t> wrong;
  for (std::int64_t i = 10; i < 60; ++i)
    wrong.push_back(i);
  const std::vector<std::int64_t> samples = samples_of(with_wrong({100}, wrong));
  EXPECT_EQ(samples.size(), ReportLine::kSamples);
  EXPECT_EQ(samples.front(), 10);
  EXPECT_EQ(samples.back(), 59) << "the largest error";
  EXPECT_EQ(samples_of(with_wrong({100}, {4, 6})), (std::vector<std::int64_t>{4, 6}));
  EXPECT_TRUE(samples_of(with_wrong({100}, {})).empty());
}

TEST(Quantised, CodesScalesAndValuesAreToldApart) {
  // Two blocks of two codes: 1.5, -2 and 1, 0.
  const Parts want{codes(Dtype::float8_e4m3fn, {0x3C, 0xC0, 0x38, 0x00}).tensor,
                   floats({2, 0.25f}).tensor};
  Parts got = want;
  got.codes.as<std::uint8_t>()[0] = 0x40;
  got.scales.as<float>()[1] = 0.5f;
  const ReportQuantised of = compare_parts(got, want, {});
  EXPECT_EQ(of.codes, 4);
  EXPECT_EQ(of.codes_wrong, 1);
  EXPECT_EQ(of.scales, 2);
  EXPECT_EQ(of.scales_wrong, 1);
  EXPECT_EQ(of.scales_one_exponent, 1);
  EXPECT_EQ(of.scales_wrong_percent(), 50);
  EXPECT_EQ(of.values_wrong, 2) << "2 * 2 for 1.5 * 2, and 1 * 0.5 for 1 * 0.25; 0 stays 0";
  EXPECT_EQ(of.values_worst_abs, 1);
  EXPECT_EQ(of.values_worst_rel, 1);
  got.scales.as<float>()[1] = 0.75f;
  EXPECT_EQ(compare_parts(got, want, {}).scales_one_exponent, 0);
}

/// A scale and a code that make up for each other are two faults and no wrong value.
TEST(Quantised, AnotherScaleMayMakeTheSameValues) {
  const Parts want{codes(Dtype::float8_e4m3fn, {0x38}).tensor, floats({1}).tensor};
  const Parts got{codes(Dtype::float8_e4m3fn, {0x40}).tensor, floats({0.5f}).tensor};
  const ReportQuantised of = compare_parts(got, want, {});
  EXPECT_EQ(of.codes_wrong, 1);
  EXPECT_EQ(of.scales_wrong, 1);
  EXPECT_EQ(of.values_wrong, 0);
}

TEST(Quantised, PairsOfFp4AreTwoCodesAndMaskedOnesAreNotCompared) {
  Parts want{codes(Dtype::float4_e2m1fn_x2, {0x21, 0x43}).tensor,
             codes(Dtype::float8_e8m0fnu, {127, 128}).tensor};
  Parts got = want;
  got.codes.as<std::uint8_t>()[0] = 0x31;
  got.scales.as<std::uint8_t>()[1] = 127;
  const ReportQuantised of = compare_parts(got, want, {});
  EXPECT_EQ(of.codes, 4);
  EXPECT_EQ(of.codes_wrong, 1);
  EXPECT_EQ(of.scales_one_exponent, 1);
  EXPECT_EQ(of.values_wrong, 3);
  const ReportQuantised masked = compare_parts(got, want, {1, 0});
  EXPECT_EQ(masked.codes, 2);
  EXPECT_EQ(masked.scales, 1);
  EXPECT_EQ(masked.scales_wrong, 0);
}

TEST(Quantised, ANanOnOneSideIsAWrongValueWithoutBound) {
  const Parts want{codes(Dtype::float8_e4m3fn, {0x38}).tensor, floats({1}).tensor};
  const Parts got{codes(Dtype::float8_e4m3fn, {0x7F}).tensor, floats({1}).tensor};
  EXPECT_TRUE(std::isinf(compare_parts(got, want, {}).values_worst_abs));
  EXPECT_EQ(compare_parts(got, got, {}).values_wrong, 0);
}

TEST(Quantised, ScalesOfOneProducerStayTogether) {
  RecordedOperation recorded;
  recorded.outputs["k_scale"].tensor = floats({1}).tensor;
  recorded.outputs["k_scale.x"].tensor = floats({2}).tensor;
  EXPECT_EQ(find_scales(recorded, "k_fp8", "k_fp8"), &recorded.outputs["k_scale"].tensor);
  EXPECT_EQ(find_scales(recorded, "k_fp8.x", "k_fp8"), &recorded.outputs["k_scale.x"].tensor);
  EXPECT_EQ(find_scales(recorded, "k_fp8.y", "k_fp8"), nullptr);
  EXPECT_EQ(find_scales(recorded, "k_scale", "k_scale"), nullptr);
}

} // namespace
} // namespace dsakit::harness
