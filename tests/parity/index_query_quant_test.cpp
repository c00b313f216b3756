// index_query_quant: kernel against reference, bit for bit, on every device.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_query_quant.hpp"
#include "dsakit/reference/index_query.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_query_quant_test {

using testing::OnDevice;

constexpr float kPoison = -12345.0f;

struct Quant {
  Fp8Encoding encoding;
  float qmax;
  float floor = 1e-10f;
};

struct Queries {
  std::int64_t tokens;
  std::int64_t heads;
  std::vector<std::uint16_t> index_q = {}; // [tokens, heads, 128]
  std::vector<std::uint16_t> weights = {}; // [tokens, heads], or empty: nothing is folded
};

/// Rows of very different sizes.
Queries random_queries(std::int64_t tokens, std::int64_t heads) {
  std::mt19937 random(static_cast<unsigned>(heads));
  std::normal_distribution<float> normal;
  Queries q{tokens, heads, {}, {}};
  for (std::int64_t row = 0; row < tokens * heads; ++row) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 60) - 40);
    for (int d = 0; d < 128; ++d)
      q.index_q.push_back(testing::to_bf16(normal(random) * size));
    q.weights.push_back(testing::to_bf16(normal(random)));
  }
  return q;
}

class IndexQueryQuant : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// The kernel reads tokens out of wider tensors, padded with NaN.
  void expect_same_bits(const Queries& q, const Quant& quant,
                        WeightFold fold = WeightFold::bf16_intermediate) {
    const auto rows = static_cast<std::size_t>(q.tokens * q.heads);
    const bool folds = !q.weights.empty();
    std::vector<std::uint8_t> want_codes(rows * 128, 0xA5);
    std::vector<float> want_scale(rows, kPoison);
    std::vector<float> want_folded(rows, kPoison);
    ASSERT_TRUE(reference::index_query_quant(
        {quant.encoding, ActivationDtype::bf16, ScaleKind::ue8m0, quant.floor, quant.qmax},
        q.index_q.data(), q.tokens * q.heads, want_codes.data(), want_scale.data()));
    if (folds) {
      ASSERT_TRUE(reference::index_weights_fold(fold, ActivationDtype::bf16, q.weights.data(),
                                                want_scale.data(), q.tokens, q.heads,
                                                want_folded.data()));
    }

    const auto widen = [&](const std::vector<std::uint16_t>& values, std::int64_t width,
                           std::int64_t stride) {
      std::vector<std::uint16_t> wide(static_cast<std::size_t>(q.tokens * stride), 0x7FC0);
      for (std::int64_t t = 0; t < q.tokens; ++t)
        std::copy_n(values.begin() + t * width, width, wide.begin() + t * stride);
      return wide;
    };
    const std::int64_t index_q_stride = q.heads * 128 + 24;
    const std::int64_t weights_stride = q.heads + 3;
    OnDevice<std::uint16_t> index_q(*device_, widen(q.index_q, q.heads * 128, index_q_stride));
    OnDevice<std::uint16_t> weights(*device_,
                                    folds ? widen(q.weights, q.heads, weights_stride) : q.weights);
    OnDevice<std::uint8_t> q_fp8(*device_, std::vector<std::uint8_t>(rows * 128, 0xA5));
    OnDevice<float> q_scale(*device_, std::vector<float>(rows, kPoison));
    OnDevice<float> folded(*device_, std::vector<float>(rows, kPoison));
    optimized::IndexQueryQuantParams params{};
    params.index_q = index_q.data();
    params.weights = folds ? weights.data() : nullptr;
    params.q_fp8 = q_fp8.data();
    params.q_scale = q_scale.data();
    params.folded = folds ? folded.data() : nullptr;
    params.index_q_stride = index_q_stride;
    params.weights_stride = weights_stride;
    params.tokens = q.tokens;
    params.heads = static_cast<std::int32_t>(q.heads);
    params.amax_floor = quant.floor;
    params.qmax = quant.qmax;
    params.head_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(q.heads)));
    params.softmax_scale = static_cast<float>(1 / std::sqrt(128.0));
    params.encoding = quant.encoding;
    params.weight_fold = fold;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();
    testing::expect_same("q_fp8", q_fp8.values(), want_codes, 128);
    const auto heads = static_cast<std::size_t>(q.heads);
    testing::expect_same("q_scale", q_scale.values(), want_scale, heads);
    testing::expect_same("folded", folded.values(), want_folded, heads);
  }
};

constexpr Quant kQuants[] = {{Fp8Encoding::e4m3fn, 448},
                             {Fp8Encoding::e4m3fn, 240},
                             {Fp8Encoding::e4m3fn, 224},
                             {Fp8Encoding::e4m3fnuz, 240},
                             {Fp8Encoding::e4m3fnuz, 224}};

// S05, S32: codes, scales and the fold of the same launch, each against its own step.
TEST_P(IndexQueryQuant, S05_S32_EveryHeadCountWithTheFold) {
  for (std::int64_t heads = 1; heads <= 64; ++heads) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const auto fold = heads % 2 == 0 ? WeightFold::bf16_intermediate : WeightFold::fp32;
    expect_same_bits(random_queries(3, heads), kQuants[heads % 5], fold);
  }
}

TEST_P(IndexQueryQuant, WithoutWeightsNothingIsFolded) {
  Queries q = random_queries(7, 5);
  q.weights.clear();
  expect_same_bits(q, kQuants[0]);
}

// Every bf16 value beside its neighbours, and beside an element that sets the row's scale.
TEST_P(IndexQueryQuant, All65536InputsThroughEachWriter) {
  for (const Quant& quant : kQuants)
    for (std::uint32_t anchor : {0x0000u, 0x3F80u, 0x43E0u, 0x4360u, 0x4370u, 0x2EDCu, 0x7F7Fu}) {
      SCOPED_TRACE(std::string(name(quant.encoding)) + " qmax " + std::to_string(quant.qmax));
      Queries q{47, 11, {}, {}};
      for (std::uint32_t first = 0; first < 0x10000; first += 127) {
        for (std::uint32_t i = 0; i < 127; ++i)
          q.index_q.push_back(static_cast<std::uint16_t>(std::min(first + i, 0xFFFFu)));
        q.index_q.push_back(static_cast<std::uint16_t>(anchor));
      }
      ASSERT_EQ(q.index_q.size(), std::size_t{47} * 11 * 128);
      expect_same_bits(q, quant);
    }
}

// S02: an all-zero row has a positive scale; so has a row below the floor, whatever the floor.
TEST_P(IndexQueryQuant, S02_ZeroAndTinyRowsKeepAPositiveScale) {
  Queries q{1, 3, std::vector<std::uint16_t>(std::size_t{3} * 128, 0), {0x3F80, 0xC000, 0x0001}};
  q.index_q[128 + 77] = testing::to_bf16(1e-30f);
  for (std::size_t d = 0; d < 128; ++d)
    q.index_q[256 + d] = 0x8000; // -0
  for (Quant quant : kQuants)
    for (float floor : {1e-4f, 1e-10f, 0x1p-117f}) {
      quant.floor = floor;
      expect_same_bits(q, quant);
    }
}

// S08, S48: the maximum may lie in any element, hence in any lane.
TEST_P(IndexQueryQuant, S08_S48_TheMaximumMayLieAnywhere) {
  Queries q{128, 1, std::vector<std::uint16_t>(std::size_t{128} * 128, 0x3F80), {}};
  for (std::size_t d = 0; d < 128; ++d)
    q.index_q[d * 128 + d] = d % 2 ? 0xC47A : 0x447A; // -1000, 1000
  expect_same_bits(q, kQuants[0]);
}

// Spec 11: NaN takes no part in amax and becomes the format's NaN; an infinity saturates at qmax.
TEST_P(IndexQueryQuant, NonFiniteElements) {
  Queries q{2, 2, std::vector<std::uint16_t>(std::size_t{4} * 128, testing::to_bf16(1.5f)), {}};
  q.index_q[9] = 0x7FC0;         // NaN
  q.index_q[128 + 127] = 0xFF80; // -inf
  q.index_q[256] = 0x7F80;       // inf beside NaN
  q.index_q[257] = 0xFFFF;       // NaN
  for (std::size_t d = 0; d < 128; ++d)
    q.index_q[384 + d] = 0xFFC1; // nothing but NaN
  for (const Quant& quant : kQuants)
    expect_same_bits(q, quant);
}

TEST_P(IndexQueryQuant, NoTokensWriteNothing) {
  expect_same_bits({0, 16, {}, {}}, kQuants[0]);
}

TEST_P(IndexQueryQuant, RefusesWhatItCannotQuantise) {
  optimized::IndexQueryQuantParams params{};
  params.heads = 2;
  params.amax_floor = 1e-10f;
  params.qmax = 448;
  const auto refusal = [&](auto change) {
    optimized::IndexQueryQuantParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.heads = 0; }).find("heads is 0, want at least 1"),
            std::string::npos);
  float one = 1;
  EXPECT_NE(refusal([&](auto& p) { p.folded = &one; }).find("weights and folded go together"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.index_q_stride = 130; }).find("130 elements"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.amax_floor = 0; }).find("index_q_floor"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.amax_floor = 1e-37f; }).find("index_q_floor is 1e-37, want"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexQueryQuant, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_query_quant_test
} // namespace dsakit
