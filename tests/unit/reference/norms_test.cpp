#include "dsakit/reference/norms.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace norms_test {

using testing::Guarded;

/// A norm that owns its parameters.
struct Problem {
  IndexKNorm kind;
  std::vector<std::uint16_t> x; ///< [rows, width]
  std::vector<float> weight;
  std::vector<float> bias; ///< empty for rmsnorm
  RmsNormRounding rounding = RmsNormRounding::two;
  ActivationDtype dtype = ActivationDtype::bf16;
  float eps = 1e-5f;

  Norm norm() const {
    return {kind,
            rounding,
            dtype,
            eps,
            weight.data(),
            bias.empty() ? nullptr : bias.data(),
            std::ssize(weight)};
  }
  std::int64_t rows() const { return std::ssize(x) / std::ssize(weight); }
};

std::vector<std::uint16_t> normed(const Problem& p) {
  Guarded<std::uint16_t> y(p.x.size(), 0x7FC1, 0x1234);
  const Status status = apply_norm(p.norm(), p.x.data(), p.rows(), y.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(y.intact());
  return {y.data(), y.data() + y.size()};
}

struct Exactly {
  std::vector<double> y;
  std::vector<double> bound;
};

Exactly exactly_normed(const Problem& p) {
  Guarded<double> y(p.x.size(), 777, -555), bound(p.x.size(), 777, -555);
  const Status status = apply_norm_exact(p.norm(), p.x.data(), p.rows(), y.data(), bound.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(y.intact() && bound.intact());
  return {{y.data(), y.data() + y.size()}, {bound.data(), bound.data() + bound.size()}};
}

/// Largest |got - exact| / bound.
double used(const Problem& p, const std::vector<std::uint16_t>& got) {
  const Exactly exact = exactly_normed(p);
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value =
        p.dtype == ActivationDtype::bf16 ? bf16_to_float(got[i]) : fp16_to_float(got[i]);
    const double fraction = std::fabs(value - exact.y[i]) / exact.bound[i];
    if (!(fraction <= worst)) worst = fraction; // NaN too
  }
  return worst;
}

std::vector<float> bf16_floats(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (std::uint16_t b : bits)
    values.push_back(bf16_to_float(b));
  return values;
}

std::vector<std::uint16_t> bf16_bits(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (float v : values)
    bits.push_back(float_to_bf16(v));
  return bits;
}

Problem random_problem(IndexKNorm kind, std::int64_t rows, std::int64_t width, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{kind, {}, {}, {}};
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const std::int64_t row = i / width; // rows differ in size and mean
    p.x.push_back(
        float_to_bf16(static_cast<float>(row + 1) * normal(random) + static_cast<float>(row % 3)));
  }
  for (std::int64_t i = 0; i < width; ++i) {
    p.weight.push_back(1 + 0.3f * normal(random));
    if (kind == IndexKNorm::layernorm) p.bias.push_back(0.2f * normal(random));
  }
  return p;
}

TEST(Norm, RefusalsNameTheValueAndWriteNothing) {
  const Problem p = random_problem(IndexKNorm::layernorm, 3, 7, 1);
  std::vector<std::uint16_t> y(p.x.size(), 0x7FC1);
  const auto untouched = y;
  Norm norm = p.norm();
  norm.bias = nullptr;
  EXPECT_EQ(apply_norm(norm, p.x.data(), 3, y.data()).what(),
            "layernorm: found no bias, want 7 elements");
  norm = p.norm();
  norm.width = 0;
  EXPECT_EQ(apply_norm(norm, p.x.data(), 3, y.data()).what(),
            "width of the norm: found 0, want at least 1");
  EXPECT_EQ(apply_norm_exact(norm, p.x.data(), 3, nullptr, nullptr).code(), Code::bad_input);
  EXPECT_EQ(index_key_norm(p.norm(), p.x.data(), 3, y.data()).what(),
            "width of index_key_norm: found 7, want 128");
  EXPECT_EQ(y, untouched);
}

TEST(Norm, FollowsTheFormulaForEachKindWidthAndDtype) {
  for (IndexKNorm kind : {IndexKNorm::layernorm, IndexKNorm::rmsnorm})
    for (std::int64_t width : {1, 3, 7, 128, 192, 1536})
      for (ActivationDtype dtype : {ActivationDtype::bf16, ActivationDtype::fp16})
        for (RmsNormRounding rounding : {RmsNormRounding::one, RmsNormRounding::two}) {
          Problem p = random_problem(kind, 5, width, 2);
          p.dtype = dtype;
          p.rounding = rounding;
          const auto load = [&](std::uint16_t bits) -> long double {
            return dtype == ActivationDtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
          };
          const auto cast = [&](float value) {
            return load(dtype == ActivationDtype::bf16 ? float_to_bf16(value)
                                                       : float_to_fp16(value));
          };
          const Exactly exact = exactly_normed(p);
          for (std::int64_t row = 0; row < 5; ++row) {
            const std::uint16_t* x = p.x.data() + row * width;
            long double mean = 0, variance = 0;
            for (std::int64_t i = 0; i < width; ++i)
              mean += load(x[i]) / static_cast<long double>(width);
            if (kind == IndexKNorm::rmsnorm) mean = 0;
            for (std::int64_t i = 0; i < width; ++i)
              variance +=
                  (load(x[i]) - mean) * (load(x[i]) - mean) / static_cast<long double>(width);
            for (std::int64_t i = 0; i < width; ++i) {
              const auto at = static_cast<std::size_t>(i);
              const long double bias = kind == IndexKNorm::layernorm ? cast(p.bias[at]) : 0;
              const long double want =
                  (load(x[i]) - mean) / std::sqrt(variance + p.eps) * cast(p.weight[at]) + bias;
              ASSERT_NEAR(exact.y[static_cast<std::size_t>(row * width + i)],
                          static_cast<double>(want), 1e-12)
                  << width << " " << row << " " << i;
            }
          }
          EXPECT_LE(used(p, normed(p)), 1) << width;
        }
}

TEST(Norm, S31_KindAndEpsChangeANearConstantRow) {
  // Variance 1.9e-7 in the catalogue's row; bf16 cannot hold 3 + 1e-3, so around 0.375 here.
  Problem p{IndexKNorm::layernorm,
            bf16_bits({0.375f, 0.375f, 0.375f, 0.375f + 0x1p-9f}),
            {1, 1, 1, 1},
            {0, 0, 0, 0}};
  const auto at = [&](float eps) {
    p.eps = eps;
    return bf16_to_float(normed(p)[3]);
  };
  EXPECT_GT(at(1e-7f), 2 * at(1e-5f));

  p = {IndexKNorm::layernorm, bf16_bits(std::vector<float>(8, 5)), std::vector<float>(8, 0.5f),
       std::vector<float>(8, 0.25f)};
  EXPECT_EQ(bf16_floats(normed(p)), std::vector<float>(8, 0.25f)); // the bias
  p.kind = IndexKNorm::rmsnorm;
  p.bias.clear();
  EXPECT_EQ(bf16_floats(normed(p)), std::vector<float>(8, 0.5f)); // the weight
}

TEST(Norm, S05_WeightAndBiasAreCastToTheActivationDtypeFirst) {
  Problem p{IndexKNorm::layernorm,
            bf16_bits({1, -1}),
            {1 + 0x1p-9f, 1 + 0x1p-9f},
            {0x1p-12f, 1 + 0x1p-9f}};
  p.eps = 0;
  const Exactly exact = exactly_normed(p);
  EXPECT_EQ(exact.y[0], 1 + 0x1p-12); // weight 1 + 2^-9 became 1, bias 2^-12 stayed
  EXPECT_EQ(exact.y[1], 0);           // and 1 + 2^-9 became 1
  EXPECT_EQ(bf16_floats(normed(p)), (std::vector<float>{1, 0}));
}

TEST(Norm, RmsNormRoundsOnceOrTwice) {
  // r = 1 / 3 exactly enough: x r = 1.015625 / 3 is no bf16.
  Problem p{IndexKNorm::rmsnorm, bf16_bits({1.015625f}), {1.5f}, {}};
  p.eps = 9 - 1.015625f * 1.015625f;
  const float r = 1 / std::sqrt(1.015625f * 1.015625f + p.eps);
  const float n = 1.015625f * r;
  EXPECT_EQ(normed(p)[0], float_to_bf16(bf16_to_float(float_to_bf16(n)) * 1.5f));
  p.rounding = RmsNormRounding::one;
  EXPECT_EQ(normed(p)[0], float_to_bf16(n * 1.5f));
}

TEST(Norm, RmsNormKeepsTheSignOfZero) {
  const Problem p{IndexKNorm::rmsnorm, bf16_bits({-0.0f, 1, 0.0f}), {1, 1, -1}, {}};
  const auto y = normed(p);
  EXPECT_EQ(y[0], 0x8000);
  EXPECT_EQ(y[2], 0x8000);
}

TEST(Norm, NaNStaysInItsRow) {
  for (IndexKNorm kind : {IndexKNorm::layernorm, IndexKNorm::rmsnorm}) {
    Problem p = random_problem(kind, 3, 7, 3);
    p.x[1 * 7 + 4] = 0x7FC0;
    const auto y = bf16_floats(normed(p));
    for (std::size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(std::isnan(y[i]), i / 7 == 1) << i;
  }
}

TEST(Norm, BitsDoNotDependOnTheNumberOfThreadsOrOnOtherRows) {
  const Problem p = random_problem(IndexKNorm::layernorm, 67, 128, 4);
  const auto want = normed(p);
  for (std::size_t threads : {1u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(normed(p), want);
  }
  Problem alone = p;
  alone.x.assign(p.x.begin() + 41 * 128, p.x.begin() + 42 * 128);
  EXPECT_TRUE(std::equal(want.begin() + 41 * 128, want.begin() + 42 * 128, normed(alone).begin()));
  std::vector<std::uint16_t> keys(p.x.size());
  ASSERT_TRUE(index_key_norm(p.norm(), p.x.data(), p.rows(), keys.data()));
  EXPECT_EQ(keys, want);
}

TEST(NormBound, FollowsTheFormula) {
  Problem p{IndexKNorm::layernorm, bf16_bits({3, -1}), {-2, 0.5f}, {0.25f, -4}};
  p.eps = 0; // mean 1, r 1/2: n = 1, -1
  const Exactly exact = exactly_normed(p);
  EXPECT_EQ(exact.y[0], -1.75);
  EXPECT_EQ(exact.bound[0], 0.5 * 0x1p-7 + 0x1p-22 * (3 * 0.5 * 2 + 2 + 0.25));
  EXPECT_EQ(exact.bound[1], 0.5 * 0x1p-5 + 0x1p-22 * (3 * 0.5 * 0.5 + 0.5 + 4));
  p.kind = IndexKNorm::rmsnorm;
  p.bias.clear();
  p.x = bf16_bits({1, -1}); // n = x
  EXPECT_EQ(exactly_normed(p).bound[0], 1.5 * 0x1p-6 + 0x1p-22 * (2 + 2));
  p.rounding = RmsNormRounding::one;
  EXPECT_EQ(exactly_normed(p).bound[0], 0.5 * 0x1p-6 + 0x1p-22 * (2 + 2));
  p.dtype = ActivationDtype::fp16;
  p.x = {0x3C00, 0xBC00}; // 1, -1
  EXPECT_EQ(exactly_normed(p).bound[0], 0.5 * 0x1p-9 + 0x1p-22 * (2 + 2));
}

TEST(NormBound, ADroppedMeanBiasOrElementBreaksIt) {
  const Problem p = random_problem(IndexKNorm::layernorm, 9, 128, 5);
  const auto used_by = [&](const Problem& faulty) { return used(p, normed(faulty)); };
  EXPECT_LE(used_by(p), 1);
  Problem faulty = p;
  faulty.kind = IndexKNorm::rmsnorm;
  EXPECT_GT(used_by(faulty), 1);
  faulty = p;
  std::swap(faulty.weight[3], faulty.weight[4]);
  EXPECT_GT(used_by(faulty), 1);
  faulty = p;
  faulty.bias[127] = 0;
  EXPECT_GT(used_by(faulty), 1);
  faulty = p;
  faulty.x[5 * 128 + 127] = 0;
  EXPECT_GT(used_by(faulty), 1);
}

// ---- Recordings ---------------------------------------------------------------------------------

Problem recorded_problem(testing::Safetensors& file, const std::string& name) {
  if (name == "ln")
    return {IndexKNorm::layernorm, file.values<std::uint16_t>("ln_x"),
            file.values<float>("ln_weight_fp32"), file.values<float>("ln_bias_fp32")};
  return {IndexKNorm::rmsnorm,
          file.values<std::uint16_t>(name + "_x"),
          bf16_floats(file.values<std::uint16_t>(name + "_weight")),
          {}};
}

std::size_t differing(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    n += a[i] != b[i];
  return n;
}

TEST(NormRecorded, LayerNormOfTorchOnAGpuIsReproducedInEveryElement) {
  DSAKIT_NEED_RECORDING("kernel_norms");
  testing::Safetensors file(testing::recording_path("kernel_norms"));
  const Problem p = recorded_problem(file, "ln");
  const auto recorded = file.values<std::uint16_t>("ln_out_cuda");
  EXPECT_EQ(differing(normed(p), recorded), 0u);
  EXPECT_LE(used(p, recorded), 1);
}

TEST(NormRecorded, RmsNormIsReproducedUnderItsRoundingAndDiffersUnderTheOther) {
  DSAKIT_NEED_RECORDING("kernel_norms");
  testing::Safetensors file(testing::recording_path("kernel_norms"));
  for (const char* name : {"rms128", "rms512", "rms1536"})
    for (auto [producer, rounding] :
         {std::pair{"_out_cuda", RmsNormRounding::two}, {"_out_aiter", RmsNormRounding::one}}) {
      Problem p = recorded_problem(file, name);
      const auto recorded = file.values<std::uint16_t>(std::string(name) + producer);
      p.rounding = rounding;
      EXPECT_EQ(differing(normed(p), recorded), 0u) << name << producer;
      EXPECT_LE(used(p, recorded), 1);
      p.rounding = rounding == RmsNormRounding::one ? RmsNormRounding::two : RmsNormRounding::one;
      const auto share = static_cast<double>(differing(normed(p), recorded)) /
                         static_cast<double>(recorded.size());
      EXPECT_NEAR(share, 0.25, 0.05) << name << producer;
    }
}

class LayerKeyNormRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerKeyNormRecorded, KeysOfEveryStepStayWithinTheBound) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  const bool layernorm = file.has("weights.k_index_norm.bias");
  Problem p{layernorm ? IndexKNorm::layernorm : IndexKNorm::rmsnorm,
            {},
            file.values<float>("weights.k_index_norm.weight"),
            {}};
  if (layernorm) p.bias = file.values<float>("weights.k_index_norm.bias");
  int steps = 0;
  for (;; ++steps) {
    const std::string step = "steps." + std::to_string(steps) + ".";
    if (!file.has(step + "index_k")) break;
    p.x = file.values<std::uint16_t>(step + "index_k_raw");
    const auto recorded = file.values<std::uint16_t>(step + "index_k");
    EXPECT_LE(used(p, recorded), 1) << step;
    EXPECT_LE(differing(normed(p), recorded), recorded.size() / 1000) << step;
  }
  EXPECT_GT(steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, LayerKeyNormRecorded,
                         ::testing::Values("decode_next_n2", "decode_fnuz", "decode_mxfp4",
                                           "prefill_no_q_lora_rmsnorm_yarn",
                                           "prefill_q_lora_layernorm_gate"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace norms_test
} // namespace dsakit::reference
