// dcp_attention_merge: kernel against the exact tier, within the derived bound, on every device.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/dcp_attention_merge.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/formats.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace dcp_attention_merge_test {

using testing::OnDevice;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint16_t kNaNBf16 = 0x7FC0;

struct Problem {
  std::int64_t world;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t dim;
  LseBase base = LseBase::e;
  std::vector<float> lses = {};    // [world, rows, heads]
  std::vector<float> latents = {}; // [world, rows, heads, dim]
};

/// One in `empty` of the ranks has no key, which each of the four marks says; 0: none.
Problem random_problem(std::int64_t world, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                       LseBase base, float spread, unsigned empty, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Problem p{world, rows, heads, dim, base};
  for (std::int64_t i = 0; i < world * rows * heads; ++i) {
    const float marks[] = {-kInfinity, kInfinity, kNaN, -kNaN};
    const bool none = empty && random() % empty == 0;
    p.lses.push_back(none ? marks[random() % 4] : spread * normal(random));
    for (std::int64_t d = 0; d < dim; ++d) // what such a rank holds must not be looked at
      p.latents.push_back(none ? (random() % 2 ? kNaN : kInfinity) : normal(random));
  }
  return p;
}

std::vector<float> widened(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (std::uint16_t b : bits)
    values.push_back(reference::bf16_to_float(b));
  return values;
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (float value : values)
    bits.push_back(reference::float_to_bf16(value));
  return bits;
}

struct Merged {
  std::vector<float> latent, lse, corrected;
};

class DcpAttentionMerge : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// The ranks' tensors lie further apart than they are long, NaN between them. Element: float, or
  /// std::uint16_t for bf16.
  template <class Element>
  Merged kernel_merge(const Problem& p, const std::vector<Element>& latents, bool corrected) {
    constexpr bool kBf16 = sizeof(Element) == 2;
    const std::int64_t lses = p.rows * p.heads, lse_stride = lses + 3;
    const std::int64_t count = lses * p.dim, stride = count + 5;
    const Element nan = kBf16 ? static_cast<Element>(kNaNBf16) : static_cast<Element>(kNaN);
    std::vector<Element> wide(static_cast<std::size_t>(p.world * stride), nan);
    std::vector<float> wide_lse(static_cast<std::size_t>(p.world * lse_stride), 1e30f);
    for (std::int64_t rank = 0; rank < p.world; ++rank) {
      std::copy_n(latents.begin() + rank * count, count, wide.begin() + rank * stride);
      std::copy_n(p.lses.begin() + rank * lses, lses, wide_lse.begin() + rank * lse_stride);
    }
    OnDevice<Element> rank_latent(*device_, wide);
    OnDevice<float> rank_lse(*device_, wide_lse);
    OnDevice<std::uint16_t> latent(
        *device_, std::vector<std::uint16_t>(static_cast<std::size_t>(count), kNaNBf16));
    OnDevice<float> lse(*device_, std::vector<float>(static_cast<std::size_t>(lses), kNaN));
    OnDevice<Element> shares(*device_, std::vector<Element>(wide.size(), nan));
    optimized::DcpAttentionMergeParams params{};
    params.rank_latent = rank_latent.data();
    params.rank_lse = rank_lse.data();
    params.latent = latent.data();
    params.lse = lse.data();
    params.corrected = corrected ? shares.data() : nullptr;
    params.latent_rank_stride = stride;
    params.lse_rank_stride = lse_stride;
    params.rows = p.rows;
    params.world = static_cast<std::int32_t>(p.world);
    params.heads = static_cast<std::int32_t>(p.heads);
    params.dim = static_cast<std::int32_t>(p.dim);
    params.latent_dtype =
        kBf16 ? optimized::RankLatentDtype::bf16 : optimized::RankLatentDtype::fp32;
    params.lse_base = p.base;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    Merged merged{widened(latent.values()), lse.values(), {}};
    const std::vector<Element> all = shares.values();
    for (std::int64_t i = 0; corrected && i < p.world * stride; ++i) {
      const Element share = all[static_cast<std::size_t>(i)];
      const float value = kBf16 ? reference::bf16_to_float(static_cast<std::uint16_t>(share))
                                : static_cast<float>(share);
      if (i % stride < count)
        merged.corrected.push_back(value);
      else
        EXPECT_TRUE(std::isnan(value)) << "written between the ranks";
    }
    return merged;
  }

  template <class Element>
  void expect_within_bound(const Problem& p, const std::vector<Element>& latents) {
    const reference::DcpAttention in{
        latents.data(), sizeof(Element) == 2 ? Dtype::bfloat16 : Dtype::float32,
        p.lses.data(),  p.world,
        p.rows,         p.heads,
        p.dim,          p.base};
    const auto rows = static_cast<std::size_t>(p.rows * p.heads);
    std::vector<double> latent(rows * static_cast<std::size_t>(p.dim)), lse(rows),
        corrected(latents.size());
    auto latent_bound = latent, lse_bound = lse, corrected_bound = corrected;
    ASSERT_TRUE(
        reference::dcp_attention_merge_exact(in, latent.data(), lse.data(), corrected.data()));
    ASSERT_TRUE(reference::dcp_attention_merge_bound(in, Accumulation::fp32, latent_bound.data(),
                                                     lse_bound.data(), corrected_bound.data()));
    const Merged got = kernel_merge(p, latents, true);
    const auto dim = static_cast<std::size_t>(p.dim);
    testing::expect_within("latent", got.latent, latent, latent_bound, dim);
    testing::expect_within("lse", got.lse, lse, lse_bound, static_cast<std::size_t>(p.heads));
    testing::expect_within("corrected", got.corrected, corrected, corrected_bound, dim);
    const Merged without = kernel_merge(p, latents, false);
    testing::expect_same("latent without corrected", without.latent, got.latent, dim);
    testing::expect_same("lse without corrected", without.lse, got.lse, 1);
  }

  void expect_within_bound(const Problem& p) {
    {
      SCOPED_TRACE("fp32");
      expect_within_bound(p, p.latents);
    }
    SCOPED_TRACE("bf16");
    expect_within_bound(p, narrowed(p.latents));
  }
};

TEST_P(DcpAttentionMerge, WorldsHeadsAndDimsOfEveryWidth) {
  std::mt19937 random(3);
  for (std::int64_t world : {1, 2, 3, 8, 64})
    for (std::int64_t dim : {1, 255, 256, 512, 513})
      for (LseBase base : {LseBase::e, LseBase::two}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, dim " + std::to_string(dim));
        expect_within_bound(random_problem(world, 2, world == 64 ? 1 : 3, dim, base, 2, 0, random));
      }
}

// S50, S52: ranks without a key add nothing, whatever they hold; without any key the row is empty.
TEST_P(DcpAttentionMerge, S50_S52_RanksWithoutAKeyLeakNothing) {
  std::mt19937 random(4);
  for (std::int64_t world : {1, 2, 4})
    expect_within_bound(random_problem(world, 5, 3, 40, LseBase::e, 2, 2, random));
  const Problem none = random_problem(3, 2, 2, 40, LseBase::two, 2, 1, random);
  const Merged got = kernel_merge(none, none.latents, true);
  EXPECT_EQ(got.latent, std::vector<float>(160, 0));
  EXPECT_EQ(got.lse, std::vector<float>(4, -kInfinity));
  EXPECT_EQ(got.corrected, std::vector<float>(480, 0));
}

TEST_P(DcpAttentionMerge, LsesFarApart) {
  std::mt19937 random(5);
  for (float spread : {30.0f, 300.0f, 1e6f, 1e37f})
    for (LseBase base : {LseBase::e, LseBase::two}) {
      SCOPED_TRACE(spread);
      expect_within_bound(random_problem(4, 6, 2, 33, base, spread, 5, random));
    }
}

// Through the rounded lse every weight would be 1, and the sum four times too large.
TEST_P(DcpAttentionMerge, HugeLsesOfOneSizeStillShare) {
  for (float lse : {-1e30f, 1e30f, 3e38f, 1000.0f}) {
    const Problem p{4, 1, 1, 2, LseBase::e, {lse, lse, lse, lse}, {2, 1, 4, 1, 6, 1, 8, 1}};
    EXPECT_EQ(kernel_merge(p, p.latents, false).latent, (std::vector<float>{5, 1})) << lse;
  }
}

// S51: parts with sums 2 and 8.
TEST_P(DcpAttentionMerge, S51_TheBaseOfTheLseMatters) {
  Problem p{2, 1, 1, 1, LseBase::e, {std::log(2.0f), std::log(8.0f)}, {1, 0}};
  EXPECT_NEAR(kernel_merge(p, p.latents, false).latent[0], 0.2, 0x1p-10);
  p.base = LseBase::two;
  EXPECT_NEAR(kernel_merge(p, p.latents, false).latent[0], 0.277, 0.001);
  p.lses = {1, 3};
  EXPECT_NEAR(kernel_merge(p, p.latents, false).latent[0], 0.2, 0x1p-10);
}

TEST_P(DcpAttentionMerge, NaNOfARankWithKeysIsSeenAndHugeLatentsStayFinite) {
  const Problem nan{2, 1, 1, 2, LseBase::e, {1, 0}, {kNaN, 1, 2, 3}};
  const Merged got = kernel_merge(nan, nan.latents, false);
  EXPECT_TRUE(std::isnan(got.latent[0]));
  EXPECT_FALSE(std::isnan(got.latent[1]));
  const Problem huge{2, 1, 1, 1, LseBase::e, {0, 0}, {3e38f, 3e38f}};
  EXPECT_EQ(kernel_merge(huge, huge.latents, false).latent[0],
            reference::bf16_to_float(reference::float_to_bf16(3e38f)));
}

TEST_P(DcpAttentionMerge, NoRowsWriteNothing) {
  expect_within_bound({2, 0, 3, 8});
}

TEST_P(DcpAttentionMerge, RefusesWhatItCannotMerge) {
  optimized::DcpAttentionMergeParams params{};
  params.world = 2;
  params.heads = 1;
  params.dim = 4;
  const auto refusal = [&](auto change) {
    optimized::DcpAttentionMergeParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.world = 65; }).find("world is 65, want 1 to 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.heads = 0; }).find("heads is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.dim = 0; }).find("dim is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.rows = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, DcpAttentionMerge, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesDcpAttentionMerge : public DcpAttentionMerge {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesDcpAttentionMerge, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  std::mt19937 random(9);
  const Problem p = random_problem(8, 3, 2, 512, LseBase::e, 3, 4, random);
  const Merged want = kernel_merge(p, p.latents, true);
  for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
    for (std::uint64_t seed : {0u, 12345u}) {
      device_ = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
      const Merged got = kernel_merge(p, p.latents, true);
      testing::expect_same("latent", got.latent, want.latent, 512);
      testing::expect_same("lse", got.lse, want.lse, 2);
      testing::expect_same("corrected", got.corrected, want.corrected, 512);
    }
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesDcpAttentionMerge, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace dcp_attention_merge_test
} // namespace dsakit
