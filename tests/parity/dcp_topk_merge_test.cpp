// dcp_topk_merge: kernel against reference, exactly and in order, on every device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/dcp_topk_merge.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace dcp_topk_merge_test {

using testing::OnDevice;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kPoison = 0x7FFFFFFF;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Problem {
  std::int64_t world;
  std::int64_t k;
  std::int64_t rows;
  std::vector<float> scores = {}; // [world, rows, k]
  Ids indices = {};               // [world, rows, k]
  TopkOrder order = TopkOrder::rank;
};

float normal(std::mt19937& random) {
  return std::normal_distribution<float>()(random);
}

/// Positions at random, each once in a row, wherever they stand; `padding` of a hundred are -1,
/// with a score that must not be looked at.
template <class Score>
Problem random_problem(std::int64_t world, std::int64_t k, std::int64_t rows, unsigned padding,
                       std::mt19937& random, Score score) {
  Problem p{world, k, rows};
  p.scores.resize(static_cast<std::size_t>(world * rows * k));
  p.indices.resize(p.scores.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    Ids positions(static_cast<std::size_t>(world * k));
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(row * 1000));
    std::shuffle(positions.begin(), positions.end(), random);
    for (std::int64_t i = 0; i < world * k; ++i) {
      const auto at = static_cast<std::size_t>((i / k * rows + row) * k + i % k);
      const bool empty = random() % 100 < padding;
      p.indices[at] = empty ? -1 : positions[static_cast<std::size_t>(i)];
      p.scores[at] = empty ? kInfinity : score(random);
    }
  }
  return p;
}

class DcpTopkMerge : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// The ranks' tensors lie further apart than they are long, NaN and position 0 between them.
  Ids kernel_merge(optimized::Device& device, const Problem& p) {
    const std::int64_t count = p.rows * p.k, stride = count + 7;
    std::vector<float> scores(static_cast<std::size_t>(p.world * stride), kNaN);
    Ids indices(scores.size(), 0);
    for (std::int64_t rank = 0; rank < p.world; ++rank) {
      std::copy_n(p.scores.begin() + rank * count, count, scores.begin() + rank * stride);
      std::copy_n(p.indices.begin() + rank * count, count, indices.begin() + rank * stride);
    }
    OnDevice<float> rank_scores(device, scores);
    OnDevice<std::int32_t> rank_indices(device, indices);
    OnDevice<std::int32_t> merged(device, Ids(static_cast<std::size_t>(count), kPoison));
    optimized::DcpTopkMergeParams params{};
    params.rank_scores = rank_scores.data();
    params.rank_indices = rank_indices.data();
    params.topk_indices = merged.data();
    params.rank_stride = stride;
    params.rows = p.rows;
    params.world = static_cast<std::int32_t>(p.world);
    params.k = static_cast<std::int32_t>(p.k);
    params.order = p.order;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    return merged.values();
  }

  void expect_same_merge(Problem p) {
    for (TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
      SCOPED_TRACE(order == TopkOrder::rank ? "rank" : "ascending");
      p.order = order;
      Ids want(static_cast<std::size_t>(p.rows * p.k), kPoison);
      reference::dcp_topk_merge(p.scores.data(), p.indices.data(), p.world, p.rows, p.k, order,
                                want.data());
      testing::expect_same("topk_indices", kernel_merge(*device_, p), want,
                           static_cast<std::size_t>(p.k));
    }
  }
};

TEST_P(DcpTopkMerge, WorldsAndKOfEveryWidth) {
  std::mt19937 random(3);
  for (std::int64_t world : {1, 2, 3, 8, 64})
    for (std::int64_t k : {1, 2, 7, 33, 512})
      for (unsigned padding : {0u, 40u}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, k " + std::to_string(k));
        expect_same_merge(random_problem(world, k, world == 64 ? 1 : 3, padding, random, normal));
      }
}

TEST_P(DcpTopkMerge, TheLargestK) {
  std::mt19937 random(4);
  expect_same_merge(random_problem(2, 4096, 1, 10, random, normal));
  expect_same_merge(random_problem(3, 2048, 1, 70, random, normal)); // fewer than k
}

// S42, S45: ties go to the smaller position whatever its rank, NaN lies above padding alone.
TEST_P(DcpTopkMerge, S42_S45_ScoresThatAreHardToOrder) {
  std::mt19937 random(5);
  const auto check = [&](const char* name, auto score) {
    SCOPED_TRACE(name);
    expect_same_merge(random_problem(4, 65, 2, 15, random, score));
  };
  check("constant", [](auto&) { return -1.5f; });
  check("few", [](auto& r) { return static_cast<float>(r() % 3); });
  check("zeros of both signs", [](auto& r) { return r() % 2 ? 0.0f : -0.0f; });
  check("mostly NaN", [](auto& r) { return r() % 20 ? (r() % 2 ? kNaN : -kNaN) : normal(r); });
  check("infinities and NaN", [](auto& r) {
    const float special[] = {kInfinity, -kInfinity, kNaN, -kNaN, 0.0f, -0.0f, 3.5f, -2.0f};
    return special[r() % 8];
  });
  check("all bit patterns", [](auto& r) {
    const auto bits = static_cast<std::uint32_t>(r());
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  });
}

// As many candidates as k, one more and one fewer.
TEST_P(DcpTopkMerge, S40_S41_CandidatesAroundK) {
  for (std::int64_t candidates : {0, 1, 9, 10, 11, 20}) {
    SCOPED_TRACE(std::to_string(candidates) + " candidates");
    Problem p{2, 10, 1, std::vector<float>(20, kInfinity), Ids(20, -1)};
    for (std::int64_t i = 0; i < candidates; ++i) {
      const auto at = static_cast<std::size_t>(i % 2 * 10 + i / 2);
      p.scores[at] = static_cast<float>(i);
      p.indices[at] = static_cast<std::int32_t>(100 - i);
    }
    expect_same_merge(p);
  }
}

// Packed into fp32 these would be the same position.
TEST_P(DcpTopkMerge, PositionsBeyondTheIntegersOfFloatStayApart) {
  const Problem p{2, 2, 1, {1, 1, 1, 0}, {16777217, kPoison, 16777216, 16777219}};
  EXPECT_EQ(kernel_merge(*device_, p), (Ids{16777216, 16777217}));
  expect_same_merge(p);
}

// Lists that break the rule of one place a position still end, with positions that were offered.
TEST_P(DcpTopkMerge, PositionsThatRecurEndToo) {
  const Problem p{3, 4, 1, std::vector<float>(12, 2.0f), Ids(12, 5)};
  EXPECT_EQ(kernel_merge(*device_, p), Ids(4, 5));
}

TEST_P(DcpTopkMerge, NoRowsWriteNothing) {
  expect_same_merge({2, 5, 0});
}

TEST_P(DcpTopkMerge, RefusesWhatItCannotMerge) {
  optimized::DcpTopkMergeParams params{};
  params.world = 2;
  params.k = 4;
  const auto refusal = [&](auto change) {
    optimized::DcpTopkMergeParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.k = 4097; }).find("k is 4097, want 1 to 4096"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.k = 0; }).find("k is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.world = 65; }).find("world is 65, want 1 to 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.world = 0; }).find("world is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.rows = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, DcpTopkMerge, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesDcpTopkMerge : public DcpTopkMerge {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesDcpTopkMerge, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  std::mt19937 random(9);
  for (unsigned padding : {10u, 90u}) {
    const Problem p = random_problem(5, 300, 2, padding, random,
                                     [](auto& r) { return std::round(4 * normal(r)); });
    const Ids want = kernel_merge(*device_, p);
    for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
      for (std::uint64_t seed : {0u, 12345u}) {
        auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
        EXPECT_EQ(kernel_merge(*device, p), want) << "pattern " << +pattern << " seed " << seed;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesDcpTopkMerge, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace dcp_topk_merge_test
} // namespace dsakit
