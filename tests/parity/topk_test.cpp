// topk: kernel against reference, exactly and in order, on every device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/topk.hpp"
#include "dsakit/reference/topk.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace topk_test {

using testing::OnDevice;

constexpr std::int32_t kPoison = 0x7FFFFFFF;
constexpr float kPoisonScore = 12345;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Problem {
  std::int64_t k;
  std::int64_t columns; // of logits
  std::vector<float> logits = {};
  std::vector<std::int32_t> row_starts = {}; // empty: 0
  std::vector<std::int32_t> row_ends = {};
  TopkOrder order = TopkOrder::rank;
  reference::DcpRank dcp = {};
  std::int64_t logits_padding = 3; // elements between rows of logits, NaN
  std::int64_t topk_padding = 5;   // elements between rows of topk_indices
  std::int32_t lanes = 0;

  std::int64_t rows() const { return static_cast<std::int64_t>(row_ends.size()); }
};

/// One row, all of it in the window.
Problem one_row(std::int64_t k, const std::vector<float>& row) {
  const auto columns = static_cast<std::int64_t>(row.size());
  return {k, columns, row, {}, {static_cast<std::int32_t>(columns)}};
}

class Topk : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// [rows, k]; fails where the kernel writes between its rows. `scores` takes dcp_scores.
  std::vector<std::int32_t> kernel_topk(optimized::Device& device, const Problem& p,
                                        std::vector<float>* scores = nullptr) {
    const std::int64_t logits_stride = p.columns + p.logits_padding;
    std::vector<float> wide(static_cast<std::size_t>(p.rows() * logits_stride), kNaN);
    for (std::int64_t r = 0; r < p.rows(); ++r)
      std::copy_n(p.logits.begin() + r * p.columns, p.columns, wide.begin() + r * logits_stride);
    const std::int64_t topk_stride = p.k + p.topk_padding;
    OnDevice<float> logits(device, wide);
    OnDevice<std::int32_t> starts(device, p.row_starts);
    OnDevice<std::int32_t> ends(device, p.row_ends);
    OnDevice<std::int32_t> indices(
        device,
        std::vector<std::int32_t>(static_cast<std::size_t>(p.rows() * topk_stride), kPoison));
    OnDevice<float> dcp_scores(device, std::vector<float>(indices.values().size(), kPoisonScore));
    optimized::TopkParams params{};
    params.dcp_scores = scores ? dcp_scores.data() : nullptr;
    params.logits = logits.data();
    params.row_starts = p.row_starts.empty() ? nullptr : starts.data();
    params.row_ends = ends.data();
    params.topk_indices = indices.data();
    params.logits_stride = logits_stride;
    params.topk_stride = topk_stride;
    params.rows = p.rows();
    params.k = static_cast<std::int32_t>(p.k);
    params.order = p.order;
    params.dcp_world = static_cast<std::int32_t>(p.dcp.world);
    params.dcp_interleave = static_cast<std::int32_t>(p.dcp.interleave);
    params.dcp_rank = static_cast<std::int32_t>(p.dcp.rank);
    params.lanes = p.lanes;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    const std::vector<std::int32_t> padded = indices.values();
    const std::vector<float> padded_scores = dcp_scores.values();
    std::vector<std::int32_t> result;
    std::size_t strayed = 0;
    for (std::size_t i = 0; i < padded.size(); ++i)
      if (static_cast<std::int64_t>(i) % topk_stride < p.k) {
        result.push_back(padded[i]);
        if (scores) scores->push_back(padded_scores[i]);
      } else {
        strayed += padded[i] != kPoison || padded_scores[i] != kPoisonScore;
      }
    EXPECT_EQ(strayed, 0u) << "cells between the rows were written";
    return result;
  }

  void expect_same_indices(Problem p) {
    for (TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
      SCOPED_TRACE(order == TopkOrder::rank ? "rank" : "ascending");
      p.order = order;
      std::vector<std::int32_t> want(static_cast<std::size_t>(p.rows() * p.k), kPoison);
      ASSERT_TRUE(reference::topk(p.logits.data(), p.rows(), p.columns,
                                  p.row_starts.empty() ? nullptr : p.row_starts.data(),
                                  p.row_ends.data(), p.k, order, want.data(), p.dcp));
      testing::expect_same("topk_indices", kernel_topk(*device_, p), want,
                           static_cast<std::size_t>(p.k));
    }
  }
};

// Rows longer and shorter than k, and none; interleaves above and below the row.
TEST_P(Topk, ARanksPositionsAreThoseOfItsRequest) {
  std::mt19937 random(29);
  Problem p{50, 400};
  for (std::int64_t i = 0; i < 4 * p.columns; ++i)
    p.logits.push_back(static_cast<float>(random() % 90)); // ties
  p.row_ends = {400, 50, 7, 0};
  for (const reference::DcpRank& dcp : {reference::DcpRank{2, 1, 1},
                                        {3, 5, 2},
                                        {8, 64, 0},
                                        {8, 64, 7},
                                        {4, 1000, 3},
                                        {64, 0x40000, 63},
                                        {1, 16, 0}}) {
    SCOPED_TRACE(std::to_string(dcp.world) + " ranks, interleave " +
                 std::to_string(dcp.interleave) + ", rank " + std::to_string(dcp.rank));
    p.dcp = dcp;
    expect_same_indices(p);
    std::vector<float> scores, want(static_cast<std::size_t>(p.rows() * p.k));
    const auto indices = kernel_topk(*device_, p, &scores);
    reference::dcp_scores(p.logits.data(), p.rows(), p.columns, nullptr, indices.data(), p.k,
                          want.data(), dcp);
    testing::expect_same("dcp_scores", scores, want, static_cast<std::size_t>(p.k));
  }
}

TEST_P(Topk, RanksThatDoNotExistAreRefused) {
  const auto refusal = [&](std::int32_t world, std::int32_t interleave, std::int32_t rank) {
    optimized::TopkParams params{};
    params.k = 1;
    params.dcp_world = world;
    params.dcp_interleave = interleave;
    params.dcp_rank = rank;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what().substr(status.what().find("dcp"));
  };
  EXPECT_EQ(refusal(0, 1, 0), "dcp_world is 0 and dcp_interleave 1, want at least 1 each");
  EXPECT_EQ(refusal(2, 0, 0), "dcp_world is 2 and dcp_interleave 0, want at least 1 each");
  EXPECT_EQ(refusal(2, 1, 2), "dcp_rank is 2, want 0 to 1");
  EXPECT_EQ(refusal(2, 1, -1), "dcp_rank is -1, want 0 to 1");
}

// The width of the workgroup is a matter of speed alone.
TEST_P(Topk, AnyNumberOfLanesGivesTheSame) {
  std::mt19937 random(31);
  Problem p{300, 5000};
  for (std::int64_t i = 0; i < 3 * p.columns; ++i)
    p.logits.push_back(static_cast<float>(random() % 900)); // ties
  p.row_ends = {5000, 301, 300};
  for (const std::int32_t lanes : {0, 256, 512, 1024}) {
    SCOPED_TRACE(lanes);
    p.lanes = lanes;
    expect_same_indices(p);
  }
  for (const std::int32_t lanes : {-1, 64, 128, 384, 2048}) {
    optimized::TopkParams params{};
    params.k = 1;
    params.lanes = lanes;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.what().find("lanes is " + std::to_string(lanes) + ", want 256, 512 or 1024"),
              std::string::npos);
  }
}

/// Rows of one kind of score each.
struct Scores {
  const char* name;
  float (*next)(std::mt19937& random, std::int64_t column);
};
float normal(std::mt19937& random) {
  return std::normal_distribution<float>()(random);
}
constexpr Scores kScores[] = {
    {"random", [](std::mt19937& r, std::int64_t) { return normal(r); }},
    {"constant", [](std::mt19937&, std::int64_t) { return 0.5f; }},
    {"two levels", [](std::mt19937& r, std::int64_t) { return r() % 9 == 0 ? 2.0f : 1.0f; }},
    {"zeros of both signs", [](std::mt19937& r, std::int64_t) { return r() % 2 ? 0.0f : -0.0f; }},
    {"relu-sparse",
     [](std::mt19937& r, std::int64_t) { return r() % 40 == 0 ? std::fabs(normal(r)) : 0.0f; }},
    {"negative zeros among relu",
     [](std::mt19937& r, std::int64_t) { return r() % 30 == 0 ? normal(r) : -0.0f; }},
    {"narrow", [](std::mt19937& r, std::int64_t) { return 1 + 1e-4f * normal(r); }},
    {"one bin", [](std::mt19937&,
                   std::int64_t i) { return 1 + std::ldexp(static_cast<float>(i % 4999), -20); }},
    {"huge", [](std::mt19937& r, std::int64_t) { return 1e38f * normal(r); }},
    {"tiny", [](std::mt19937& r, std::int64_t) { return 1e-44f * normal(r); }},
    {"rising", [](std::mt19937&, std::int64_t i) { return static_cast<float>(i) * 0.25f - 100; }},
    {"falling", [](std::mt19937&, std::int64_t i) { return 100 - static_cast<float>(i) * 0.25f; }},
    {"all bit patterns",
     [](std::mt19937& r, std::int64_t) {
       const auto bits = static_cast<std::uint32_t>(r());
       float x;
       std::memcpy(&x, &bits, sizeof x);
       return x;
     }},
    {"-inf inside", [](std::mt19937& r, std::int64_t) { return r() % 3 ? -kInfinity : normal(r); }},
    {"mostly NaN",
     [](std::mt19937& r, std::int64_t) { return r() % 50 ? (r() % 2 ? kNaN : -kNaN) : normal(r); }},
    {"infinities and NaN",
     [](std::mt19937& r, std::int64_t) {
       const float special[] = {kInfinity, -kInfinity, kNaN, -kNaN, 0.0f, -0.0f, 3.5f, -2.0f};
       return special[r() % 8];
     }},
    {"all NaN", [](std::mt19937&, std::int64_t) { return kNaN; }},
    {"all -inf", [](std::mt19937&, std::int64_t) { return -kInfinity; }},
};

// S42, S44, S45: exact for every distribution, ties by position.
TEST_P(Topk, S42_S44_S45_EveryDistribution) {
  constexpr std::int64_t kColumns = 3001;
  for (const Scores& scores : kScores)
    for (std::int64_t k : {7, 512}) {
      SCOPED_TRACE(std::string(scores.name) + " k " + std::to_string(k));
      std::mt19937 random(11);
      Problem p{k, kColumns, {}, {}, {}};
      for (int row = 0; row < 3; ++row) {
        for (std::int64_t i = 0; i < kColumns; ++i)
          p.logits.push_back(scores.next(random, i));
        p.row_ends.push_back(static_cast<std::int32_t>(kColumns - 997 * row));
      }
      expect_same_indices(p);
    }
}

// S42: a hundred winners and thousands of zeros at the threshold.
TEST_P(Topk, S42_ThousandsOfTiesAtTheThreshold) {
  std::vector<float> row(8320, 0.0f);
  for (std::size_t i = 0; i < 100; ++i)
    row[(i * 7919 + 13) % row.size()] = 1 + static_cast<float>(i);
  expect_same_indices(one_row(2048, row));
  std::vector<float> one_bin;
  for (int i = 0; i < 5000; ++i)
    one_bin.push_back(1 + std::ldexp(static_cast<float>(i * 37 % 5000), -20));
  expect_same_indices(one_row(2048, one_bin));
}

// S45: the example of cases.md; NaN of either sign comes last.
TEST_P(Topk, S45_NaNRanksBelowMinusInfinity) {
  const std::vector<float> row = {1, kNaN, 2, -kNaN, kInfinity, -kInfinity};
  Problem p = one_row(3, row);
  EXPECT_EQ(kernel_topk(*device_, p), (std::vector<std::int32_t>{4, 2, 0}));
  p.k = 5;
  EXPECT_EQ(kernel_topk(*device_, p), (std::vector<std::int32_t>{4, 2, 0, 5, 1}));
  expect_same_indices(p);
}

// S33, S40, S41, S47, S58: k of any width, rows around it; all k cells of every row are written.
TEST_P(Topk, S33_S40_S41_S47_RowsAroundK) {
  for (std::int64_t k : {1, 2, 3, 7, 8, 64, 100, 511, 512, 513, 2048, 2051, 4095, 4096}) {
    SCOPED_TRACE("k " + std::to_string(k));
    std::mt19937 random(static_cast<unsigned>(k));
    Problem p{k, k + 66, {}, {}, {}};
    for (std::int64_t length : {std::int64_t{0}, std::int64_t{1}, k - 1, k, k + 1, k + 65}) {
      p.row_ends.push_back(static_cast<std::int32_t>(length));
      for (std::int64_t i = 0; i < p.columns; ++i)
        p.logits.push_back(i < length ? normal(random) : kInfinity); // never read
    }
    expect_same_indices(p);
  }
}

// S24, S36: windows anywhere in a row, empty ones and reversed ones among them.
TEST_P(Topk, S24_S36_WindowsThatStartAnywhere) {
  std::mt19937 random(5);
  Problem p{33, 1031, {}, {}, {}};
  const std::int32_t windows[][2] = {{0, 1031},  {1, 1031}, {997, 1031}, {998, 1031}, {513, 513},
                                     {700, 600}, {37, 70},  {37, 71},    {5, 900}};
  for (const auto& window : windows) {
    p.row_starts.push_back(window[0]);
    p.row_ends.push_back(window[1]);
    for (std::int32_t i = 0; i < p.columns; ++i)
      p.logits.push_back(i >= window[0] && i < window[1] ? normal(random) : kInfinity);
  }
  expect_same_indices(p);
}

// S48: the best score may lie in any lane of any wave, around every multiple of a wave.
TEST_P(Topk, S48_TheBestMayLieAnywhere) {
  Problem p{1, 1100, {}, {}, {}};
  p.logits_padding = 0;
  p.topk_padding = 0;
  for (std::int32_t best : {0, 31, 32, 33, 63, 64, 65, 127, 255, 256, 511, 512, 513, 1023, 1099}) {
    p.row_ends.push_back(1100);
    for (std::int32_t i = 0; i < 1100; ++i)
      p.logits.push_back(i == best ? 2.0f : i % 2 ? 1.0f : -3.0f);
  }
  expect_same_indices(p);
}

TEST_P(Topk, AMillionColumns) {
  std::mt19937 random(6);
  std::vector<float> row(1'000'000);
  for (float& x : row)
    x = random() % 64 == 0 ? normal(random) : 0.0f;
  Problem p = one_row(2048, row);
  expect_same_indices(p);
}

/// As integers, so that -0 and the sign of NaN count.
std::vector<std::int32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::int32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// What a rank offers to dcp_topk_merge: the selected logits bit for bit, of short rows too, and the
// selection is the same as without.
TEST_P(Topk, DcpScoresAreTheSelectedLogits) {
  for (const Scores& scores : kScores)
    for (TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
      SCOPED_TRACE(scores.name);
      std::mt19937 random(13);
      Problem p{19, 640, {}, {3, 0, 7, 620, 9}, {640, 18, 7, 640, 28}, order};
      for (std::int64_t i = 0; i < p.rows() * p.columns; ++i)
        p.logits.push_back(scores.next(random, i));
      std::vector<float> got, want(static_cast<std::size_t>(p.rows() * p.k));
      const auto indices = kernel_topk(*device_, p, &got);
      EXPECT_EQ(indices, kernel_topk(*device_, p));
      reference::dcp_scores(p.logits.data(), p.rows(), p.columns, p.row_starts.data(),
                            indices.data(), p.k, want.data());
      testing::expect_same("dcp_scores", bits_of(got), bits_of(want),
                           static_cast<std::size_t>(p.k));
    }
}

// S18: more rows than a grid's y or z dimension takes.
TEST_P(Topk, S18_MoreThan65536Rows) {
  constexpr std::int64_t kRows = 65537;
  Problem p{1, 1, std::vector<float>(kRows, 1.0f), {}, std::vector<std::int32_t>(kRows, 1)};
  p.logits_padding = 0;
  p.topk_padding = 0;
  EXPECT_EQ(kernel_topk(*device_, p), std::vector<std::int32_t>(kRows, 0));
}

// S44, S46: the same bits run after run, ties and all.
TEST_P(Topk, S44_S46_EveryRunIsTheSame) {
  std::mt19937 random(8);
  Problem p{1000, 4096, {}, {}, {4096, 4096}};
  for (std::int64_t i = 0; i < 2 * p.columns; ++i)
    p.logits.push_back(static_cast<float>(random() % 5));
  const std::vector<std::int32_t> first = kernel_topk(*device_, p);
  for (int run = 0; run < 5; ++run)
    EXPECT_EQ(kernel_topk(*device_, p), first);
}

TEST_P(Topk, NoRowsWriteNothing) {
  expect_same_indices({4, 7, {}, {}, {}});
}

TEST_P(Topk, RefusesWhatItCannotSelect) {
  optimized::TopkParams params{};
  for (std::int32_t k : {0, 4097}) {
    params.k = k;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.what().find("k is " + std::to_string(k) + ", want 1 to 4096"),
              std::string::npos)
        << status.what();
  }
  params.k = 4;
  params.rows = std::int64_t{1} << 40;
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_NE(status.what().find("workgroups"), std::string::npos) << status.what();
}

INSTANTIATE_TEST_SUITE_P(Devices, Topk, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesTopk : public Topk {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesTopk, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  std::mt19937 random(9);
  Problem p{700, 2500, {}, {}, {2500, 1900, 701}};
  for (std::int64_t i = 0; i < p.rows() * p.columns; ++i)
    p.logits.push_back(std::round(8 * normal(random)) / 8);
  for (TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
    p.order = order;
    const std::vector<std::int32_t> want = kernel_topk(*device_, p);
    for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
      for (std::uint64_t seed : {0u, 12345u}) {
        auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
        EXPECT_EQ(kernel_topk(*device, p), want) << "pattern " << +pattern << " seed " << seed;
      }
  }
}

// S12: row offsets past 2^32 bytes, in memory that is touched in one place.
TEST_P(HostLanesTopk, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 30) + 16; // elements
  const std::size_t bytes = (2 * kStride + 64) * sizeof(float);
  void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 8 GiB of address space";
  auto* logits = static_cast<float*>(region);
  logits[2 * kStride + 17] = 5.0f;
  const std::int32_t ends[] = {0, 0, 64};
  std::int32_t indices[3] = {kPoison, kPoison, kPoison};
  optimized::TopkParams params{};
  params.logits = logits;
  params.row_ends = ends;
  params.topk_indices = indices;
  params.logits_stride = kStride;
  params.topk_stride = 1;
  params.rows = 3;
  params.k = 1;
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_TRUE(status) << status.what();
  EXPECT_EQ(indices[0], -1);
  EXPECT_EQ(indices[1], -1);
  EXPECT_EQ(indices[2], 17);
  munmap(region, bytes);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesTopk, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace topk_test
} // namespace dsakit
