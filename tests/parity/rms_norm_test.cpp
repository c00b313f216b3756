// rms_norm: kernel against the exact reference within its bound, for every width and row stride.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/rms_norm.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/norms.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace rms_norm_test {

using testing::OnDevice;

constexpr std::uint16_t kPoison = 0xDEAD;
constexpr RmsNormRounding kRoundings[] = {RmsNormRounding::one, RmsNormRounding::two};

struct Problem {
  std::int64_t rows;
  std::int64_t width;
  std::int64_t before = 0; ///< columns of a wider tensor before those of the norm
  std::int64_t after = 0;
  float eps = 1e-5f;
  std::vector<std::uint16_t> x = {}; // [rows, width]
  std::vector<float> weight = {};    // no bf16 values

  std::int64_t stride() const { return before + width + after; }
};

Problem random_problem(Problem p, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 30) - 15);
    for (std::int64_t i = 0; i < p.width; ++i)
      p.x.push_back(testing::to_bf16(normal(random) * size));
  }
  for (std::int64_t i = 0; i < p.width; ++i)
    p.weight.push_back(1 + 0.3f * normal(random));
  return p;
}

reference::Norm norm_of(const Problem& p, RmsNormRounding rounding) {
  return {IndexKNorm::rmsnorm,
          rounding,
          ActivationDtype::bf16,
          p.eps,
          p.weight.data(),
          nullptr,
          p.width};
}

class RmsNorm : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// y [rows, width]; what lies beside x is NaN, what lies beside y must stay.
  std::vector<std::uint16_t> run(const Problem& p, RmsNormRounding rounding) {
    const auto wide = static_cast<std::size_t>(p.rows * p.stride());
    std::vector<std::uint16_t> columns(wide, 0x7FC0);
    for (std::int64_t row = 0; row < p.rows; ++row)
      std::copy_n(p.x.begin() + row * p.width, p.width,
                  columns.begin() + row * p.stride() + p.before);
    OnDevice<std::uint16_t> x(*device_, columns);
    OnDevice<float> weight(*device_, p.weight);
    OnDevice<std::uint16_t> y(*device_, std::vector<std::uint16_t>(wide, kPoison));
    optimized::RmsNormParams params{};
    params.x = x.data() + p.before;
    params.weight = weight.data();
    params.y = y.data() + p.before;
    params.x_stride = p.stride();
    params.y_stride = p.stride();
    params.rows = p.rows;
    params.width = static_cast<std::int32_t>(p.width);
    params.eps = p.eps;
    params.rounding = rounding;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    const std::vector<std::uint16_t> all = y.values();
    std::vector<std::uint16_t> inside;
    std::size_t strayed = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % p.stride() - p.before;
      if (column >= 0 && column < p.width)
        inside.push_back(all[i]);
      else
        strayed += all[i] != kPoison;
    }
    EXPECT_EQ(strayed, 0u) << "columns beside those of the norm were written";
    return inside;
  }

  void expect_within_bound(const Problem& p) {
    for (const RmsNormRounding rounding : kRoundings) {
      SCOPED_TRACE("width " + std::to_string(p.width) + ", rounding " +
                   std::string(name(rounding)));
      std::vector<double> exact(p.x.size());
      std::vector<double> bound(p.x.size());
      ASSERT_TRUE(reference::apply_norm_exact(norm_of(p, rounding), p.x.data(), p.rows,
                                              exact.data(), bound.data()));
      std::vector<float> values;
      for (const std::uint16_t bits : run(p, rounding))
        values.push_back(reference::bf16_to_float(bits));
      testing::expect_within("y", values, exact, bound, static_cast<std::size_t>(p.width));
    }
  }
};

TEST_P(RmsNorm, EveryWidthWithinItsBound) {
  for (const std::int64_t width : {8, 64, 248, 256, 264, 512, 520, 1536, 8192})
    expect_within_bound(random_problem({7, width}, static_cast<unsigned>(width)));
  Problem small_eps = random_problem({7, 512}, 1);
  small_eps.eps = 1e-6f;
  expect_within_bound(small_eps);
}

// kv_norm's columns of qkv_a lie between those of q_c and k_pe.
TEST_P(RmsNorm, ColumnsOfAWiderTensor) {
  expect_within_bound(random_problem({13, 512, 96, 64}, 2));
  expect_within_bound(random_problem({13, 1536, 0, 576}, 3));
}

// S48: the element that sets the norm may lie in any lane and any turn of its loop.
TEST_P(RmsNorm, S48_EveryElementCounts) {
  Problem p = random_problem({520, 520}, 4);
  for (std::size_t row = 0; row < 520; ++row)
    for (std::size_t i = 0; i < 520; ++i)
      p.x[row * 520 + i] = testing::to_bf16(i == row ? 300.0f : 0.01f * static_cast<float>(i % 7));
  expect_within_bound(p);
}

TEST_P(RmsNorm, ZerosAndRowsOfTheSizeOfEps) {
  Problem p = random_problem({3, 512}, 5);
  std::fill_n(p.x.begin(), 512, std::uint16_t{0});
  std::fill_n(p.x.begin() + 512, 512, testing::to_bf16(3e-3f));
  expect_within_bound(p);
}

// The simulated tier rounds where the kernel does and sums in another order: nearly every element
// has its bits. Two roundings are told from one by that.
TEST_P(RmsNorm, SimulatedReferenceHasNearlyAllTheBits) {
  const Problem p = random_problem({40, 1536}, 6);
  for (const RmsNormRounding rounding : kRoundings) {
    std::vector<std::uint16_t> want(p.x.size());
    ASSERT_TRUE(reference::apply_norm(norm_of(p, rounding), p.x.data(), p.rows, want.data()));
    const std::vector<std::uint16_t> got = run(p, rounding);
    std::size_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      different += got[i] != want[i];
    EXPECT_LE(different, got.size() / 100);
  }
}

TEST_P(RmsNorm, NaNFillsItsRowAndNoOther) {
  Problem p = random_problem({9, 264}, 7);
  p.x[4 * 264 + 263] = 0x7FC0;
  expect_within_bound(p);
  const std::vector<std::uint16_t> got = run(p, RmsNormRounding::two);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(std::isnan(reference::bf16_to_float(got[i])), i / 264 == 4) << i;
}

TEST_P(RmsNorm, InPlace) {
  const Problem p = random_problem({5, 1536}, 8);
  const std::vector<std::uint16_t> apart = run(p, RmsNormRounding::two);
  OnDevice<std::uint16_t> x(*device_, p.x);
  OnDevice<float> weight(*device_, p.weight);
  const optimized::RmsNormParams params{
      x.data(), weight.data(), x.data(), 1536, 1536, 5, 1536, p.eps, RmsNormRounding::two};
  ASSERT_TRUE(testing::run_kernel(*device_, params));
  testing::expect_same("y", x.values(), apart, 1536);
}

TEST_P(RmsNorm, NoRowsAndRefusals) {
  optimized::RmsNormParams params{};
  params.width = 512;
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  const auto refusal = [&](auto change) {
    optimized::RmsNormParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_NE(refusal([](auto& p) { p.width = 0; }).find("width is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.width = 500; }).find("500 elements"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.x_stride = 516; }).find("x_stride is 516"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.y_stride = -8; }).find("y_stride is -8"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.rows = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, RmsNorm, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace rms_norm_test
} // namespace dsakit
