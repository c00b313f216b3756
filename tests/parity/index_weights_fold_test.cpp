// index_weights_fold: kernel against reference, bit for bit, on every device.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_weights_fold.hpp"
#include "dsakit/reference/index_query.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_weights_fold_test {

using testing::OnDevice;

constexpr float kPoison = -12345.0f;

struct Problem {
  std::int64_t tokens;
  std::int64_t heads;
  std::vector<std::uint16_t> weights = {}; // [tokens, heads]
  std::vector<float> q_scale = {};         // [tokens, heads]
};

Problem random_problem(std::int64_t tokens, std::int64_t heads) {
  std::mt19937 random(static_cast<unsigned>(heads));
  std::normal_distribution<float> normal;
  Problem p{tokens, heads, {}, {}};
  for (std::int64_t i = 0; i < tokens * heads; ++i) {
    p.weights.push_back(testing::to_bf16(normal(random)));
    p.q_scale.push_back(std::ldexp(1.0f, static_cast<int>(random() % 40) - 30));
  }
  return p;
}

class IndexWeightsFold : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// The kernel reads weights out of a wider tensor, padded with NaN.
  void expect_same_bits(const Problem& p, WeightFold fold) {
    const auto cells = static_cast<std::size_t>(p.tokens * p.heads);
    std::vector<float> want(cells, kPoison);
    ASSERT_TRUE(reference::index_weights_fold(fold, ActivationDtype::bf16, p.weights.data(),
                                              p.q_scale.data(), p.tokens, p.heads, want.data()));

    const std::int64_t stride = p.heads + 3;
    std::vector<std::uint16_t> wide(static_cast<std::size_t>(p.tokens * stride), 0x7FC0);
    for (std::int64_t t = 0; t < p.tokens; ++t)
      for (std::int64_t h = 0; h < p.heads; ++h)
        wide[static_cast<std::size_t>(t * stride + h)] =
            p.weights[static_cast<std::size_t>(t * p.heads + h)];
    OnDevice<std::uint16_t> weights(*device_, wide);
    OnDevice<float> q_scale(*device_, p.q_scale);
    OnDevice<float> folded(*device_, std::vector<float>(cells, kPoison));
    optimized::IndexWeightsFoldParams params{};
    params.weights = weights.data();
    params.q_scale = q_scale.data();
    params.folded = folded.data();
    params.weights_stride = stride;
    params.tokens = p.tokens;
    params.heads = static_cast<std::int32_t>(p.heads);
    params.head_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.heads)));
    params.softmax_scale = static_cast<float>(1 / std::sqrt(128.0));
    params.weight_fold = fold;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();
    testing::expect_same("folded", folded.values(), want, static_cast<std::size_t>(p.heads));
  }

  void expect_same_bits(const Problem& p) {
    expect_same_bits(p, WeightFold::bf16_intermediate);
    expect_same_bits(p, WeightFold::fp32);
  }
};

TEST_P(IndexWeightsFold, S32_EveryHeadCount) {
  for (std::int64_t heads = 1; heads <= 64; ++heads) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    expect_same_bits(random_problem(5, heads));
  }
}

// S30: every bf16 weight, so every case of the inner rounding; NaN and infinities among them.
TEST_P(IndexWeightsFold, S30_All65536Weights) {
  Problem p{2048, 32, {}, {}};
  for (std::uint32_t i = 0; i < 65536; ++i) {
    p.weights.push_back(static_cast<std::uint16_t>(i));
    p.q_scale.push_back(std::ldexp(1.0f, static_cast<int>(i % 7) - 3));
  }
  expect_same_bits(p);
}

// Scales that are no powers of two, and products that end in subnormals: three roundings in order.
TEST_P(IndexWeightsFold, EveryProductRoundsOnce) {
  Problem p = random_problem(17, 24);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  for (std::size_t i = 0; i < p.q_scale.size(); ++i)
    p.q_scale[i] = uniform(random) * (i % 3 == 0 ? 1e-38f : 1.0f);
  p.q_scale[5] = std::numeric_limits<float>::infinity();
  p.q_scale[9] = std::numeric_limits<float>::quiet_NaN();
  expect_same_bits(p);
}

TEST_P(IndexWeightsFold, NoTokensWriteNothing) {
  expect_same_bits({0, 8, {}, {}});
}

TEST_P(IndexWeightsFold, RefusesWhatItCannotFold) {
  optimized::IndexWeightsFoldParams params{};
  Status status = testing::run_kernel(*device_, params);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("heads is 0, want at least 1"), std::string::npos) << status.what();
  params.heads = 64;
  params.tokens = std::int64_t{1} << 40;
  status = testing::run_kernel(*device_, params);
  EXPECT_NE(status.what().find("workgroups"), std::string::npos) << status.what();
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexWeightsFold, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_weights_fold_test
} // namespace dsakit
