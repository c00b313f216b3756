#include "dsakit/reference/index_query.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
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
namespace index_query_test {

using testing::Guarded;

constexpr std::size_t kDim = 128;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

IndexQueryQuant quant_of(Fp8Encoding encoding, ScaleKind kind = ScaleKind::ue8m0,
                         ActivationDtype dtype = ActivationDtype::bf16) {
  return {encoding, dtype, kind, 1e-10f, encoding == Fp8Encoding::e4m3fn ? 448.0f : 224.0f};
}

struct Quantised {
  std::vector<std::uint8_t> codes; ///< [rows, 128]
  std::vector<float> scales;       ///< [rows]
};

Quantised quantised(const IndexQueryQuant& contract, const std::vector<std::uint16_t>& index_q) {
  const std::size_t rows = index_q.size() / kDim;
  Guarded<std::uint8_t> codes(rows * kDim, 0xA5, 0xC9);
  Guarded<float> scales(rows, kNaN, 9.0f);
  const Status status = index_query_quant(contract, index_q.data(), static_cast<std::int64_t>(rows),
                                          codes.data(), scales.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(codes.intact() && scales.intact());
  return {{codes.data(), codes.data() + codes.size()}, {scales.data(), scales.data() + rows}};
}

/// A row of zeros but for the first values.
std::vector<std::uint16_t> row_of(std::initializer_list<float> first) {
  std::vector<std::uint16_t> row(kDim, 0);
  std::transform(first.begin(), first.end(), row.begin(), float_to_bf16);
  return row;
}

std::vector<std::uint16_t> random_rows(std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<std::uint16_t> values;
  for (std::size_t row = 0; row < rows; ++row) {
    const float size = std::ldexp(1.0f, exponent(random));
    for (std::size_t d = 0; d < kDim; ++d)
      values.push_back(float_to_bf16(size * normal(random)));
  }
  return values;
}

// ---- The quantiser ------------------------------------------------------------------------------

TEST(IndexQueryQuant, S02_AZeroRowHasZeroCodesAndThePositiveScaleOfTheFloor) {
  for (auto [encoding, scale] :
       {std::pair{Fp8Encoding::e4m3fn, 0x1p-42f}, {Fp8Encoding::e4m3fnuz, 0x1p-41f}}) {
    const Quantised got = quantised(quant_of(encoding), row_of({}));
    EXPECT_EQ(got.scales[0], scale); // spec 2.2
    EXPECT_EQ(got.codes, std::vector<std::uint8_t>(kDim, 0));
  }
  IndexQueryQuant contract = quant_of(Fp8Encoding::e4m3fn);
  contract.index_q_floor = 448.0f * 4;
  EXPECT_EQ(quantised(contract, row_of({1.0f})).scales[0], 4.0f);
}

TEST(IndexQueryQuant, S04_TheScaleIsRoundedBeforeTheValuesAreDivided) {
  const Quantised got = quantised(quant_of(Fp8Encoding::e4m3fn), row_of({300.0f}));
  EXPECT_EQ(got.scales[0], 1.0f);
  EXPECT_EQ(decode_fp8(Fp8Encoding::e4m3fn, got.codes[0]), 288.0f);
}

TEST(IndexQueryQuant, S04_EveryValueIsWithinHalfACodeStepOfItsInput) {
  const auto rows = random_rows(50, 4);
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (ScaleKind kind : {ScaleKind::ue8m0, ScaleKind::fp32}) {
      const Quantised got = quantised(quant_of(encoding, kind), rows);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double scale = got.scales[i / kDim];
        const double x = bf16_to_float(rows[i]);
        const double step =
            std::max(std::ldexp(1.0, std::ilogb(x / scale) - 3), double{decode_fp8(encoding, 1)});
        const double value = double{decode_fp8(encoding, got.codes[i])} * scale;
        // An fp32 quotient is itself rounded, by up to 2^-20 of a step.
        ASSERT_LE(std::fabs(value - x), step / 2 * scale * (1 + 0x1p-18)) << name(kind) << " " << i;
      }
    }
}

TEST(IndexQueryQuant, S08_TheLargestElementSetsTheScaleOfItsRowWhereverItIs) {
  for (std::size_t place : {0u, 31u, 32u, 64u, 127u})
    for (float sign : {1.0f, -1.0f}) {
      std::vector<std::uint16_t> rows(3 * kDim, float_to_bf16(0.125f));
      rows[kDim + place] = float_to_bf16(sign * 900.0f); // past 2 * qmax
      const Quantised got = quantised(quant_of(Fp8Encoding::e4m3fn), rows);
      EXPECT_EQ(got.scales, (std::vector<float>{0x1p-11f, 4.0f, 0x1p-11f})) << place;
    }
}

TEST(IndexQueryQuant, TheDivisorIsAParameterAndWhatAValueSaturatesAt) {
  for (auto [qmax, scale, code] : {std::tuple{224.0f, 2.0f, 0x7E}, {240.0f, 1.0f, 0x7F}}) {
    IndexQueryQuant contract = quant_of(Fp8Encoding::e4m3fnuz);
    contract.qmax = qmax;
    EXPECT_EQ(quantised(contract, row_of({236.0f})).scales[0], scale);
    EXPECT_EQ(quantised(contract, row_of({kInf})).codes[0], code); // 224 is below the format's 240
  }
}

TEST(IndexQueryQuant, Fp32ScaleIsTheFloorOrAmaxTimesTheReciprocal) {
  const auto contract = quant_of(Fp8Encoding::e4m3fn, ScaleKind::fp32);
  const Quantised got = quantised(contract, row_of({300.0f, 37.0f}));
  const float scale = 300.0f * (1.0f / 448.0f);
  EXPECT_EQ(got.scales[0], scale);
  EXPECT_EQ(got.codes[0], 0x7E);
  EXPECT_EQ(got.codes[1], encode_fp8_saturating(Fp8Encoding::e4m3fn, 37.0f / scale));
  EXPECT_EQ(quantised(contract, row_of({})).scales[0], 1e-10f * (1.0f / 448.0f));
}

TEST(IndexQueryQuant, Fp16ActivationsAreReadAsFp16) {
  std::vector<std::uint16_t> row(kDim, 0);
  row[5] = 0x7BFF; // 65504
  row[6] = 0xC500; // -5
  row[7] = 0x7C00; // infinity
  const Quantised got =
      quantised(quant_of(Fp8Encoding::e4m3fn, ScaleKind::ue8m0, ActivationDtype::fp16), row);
  EXPECT_EQ(got.scales[0], 256.0f); // 65504 / 448 = 146.2
  EXPECT_EQ(got.codes[5], encode_fp8_saturating(Fp8Encoding::e4m3fn, 65504.0f / 256));
  EXPECT_EQ(got.codes[6], encode_fp8_saturating(Fp8Encoding::e4m3fn, -5.0f / 256));
  EXPECT_EQ(got.codes[7], 0x7E);
}

TEST(IndexQueryQuant, NaNIsStoredAsNaNAndInfinitySaturatesUnderAFiniteScale) {
  for (auto [encoding, nan, largest] :
       {std::tuple{Fp8Encoding::e4m3fn, 0x7F, 0x7E}, {Fp8Encoding::e4m3fnuz, 0x80, 0x7E}}) {
    const auto contract = quant_of(encoding);
    const Quantised clean = quantised(contract, row_of({3.0f, 0.0f, 1.0f}));
    const Quantised dirty = quantised(contract, row_of({3.0f, kNaN, 1.0f}));
    EXPECT_EQ(dirty.scales, clean.scales);
    EXPECT_EQ(dirty.codes[0], clean.codes[0]);
    EXPECT_EQ(dirty.codes[1], nan);
    const Quantised infinite = quantised(contract, row_of({-kInf, 1.0f}));
    EXPECT_EQ(infinite.scales, quantised(contract, row_of({bf16_to_float(0x7F7F)})).scales);
    EXPECT_EQ(infinite.codes[0], largest | 0x80);
    EXPECT_EQ(infinite.codes[1], 0);
  }
}

TEST(IndexQueryQuant, BytesDoNotDependOnTheNumberOfThreads) {
  const auto rows = random_rows(301, 5);
  const Quantised want = quantised(quant_of(Fp8Encoding::e4m3fn), rows);
  for (std::size_t threads : {1u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    const Quantised got = quantised(quant_of(Fp8Encoding::e4m3fn), rows);
    EXPECT_EQ(got.codes, want.codes);
    EXPECT_EQ(got.scales, want.scales);
  }
}

// ---- The fold -----------------------------------------------------------------------------------

std::vector<float> folded(WeightFold fold, ActivationDtype dtype,
                          const std::vector<std::uint16_t>& weights,
                          const std::vector<float>& scales, std::int64_t heads) {
  Guarded<float> out(weights.size(), kNaN, 9.0f);
  const Status status = index_weights_fold(fold, dtype, weights.data(), scales.data(),
                                           std::ssize(weights) / heads, heads, out.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(out.intact());
  return {out.data(), out.data() + out.size()};
}

TEST(IndexWeightsFold, S30_TheIntermediateRoundingIsASwitchAndTheResultIsFp32) {
  // 1.0078125 * 32^-0.5 lies between two bf16.
  const float head_scale = 0.1767766922712326f, softmax_scale = 0.0883883461356163f; // spec 2.3
  const std::vector<std::uint16_t> weights(32, float_to_bf16(1.0078125f));
  const std::vector<float> scales(32, 0.7f);
  const auto bf16 =
      folded(WeightFold::bf16_intermediate, ActivationDtype::bf16, weights, scales, 32);
  const auto fp32 = folded(WeightFold::fp32, ActivationDtype::bf16, weights, scales, 32);
  EXPECT_EQ(bf16[31], bf16_to_float(float_to_bf16(1.0078125f * head_scale)) * 0.7f * softmax_scale);
  EXPECT_EQ(fp32[31], 1.0078125f * head_scale * 0.7f * softmax_scale);
  EXPECT_NE(bf16[31], fp32[31]);
  EXPECT_NE(fp32[31], bf16_to_float(float_to_bf16(fp32[31])));
}

TEST(IndexWeightsFold, TheIntermediateIsOfTheProjectionsDtype) {
  const std::vector<std::uint16_t> weights(3 * 5, 0x3C01); // 1 + 2^-10 in fp16
  const std::vector<float> scales(3 * 5, 1.0f);
  const float head_scale = static_cast<float>(1 / std::sqrt(5.0));
  const float softmax_scale = static_cast<float>(1 / std::sqrt(128.0));
  const auto got = folded(WeightFold::bf16_intermediate, ActivationDtype::fp16, weights, scales, 5);
  EXPECT_EQ(got[7], fp16_to_float(float_to_fp16((1 + 0x1p-10f) * head_scale)) * softmax_scale);
}

TEST(IndexWeightsFold, TheRoundingIsVoidWhereTheHeadScaleIsAPowerOfTwo) {
  for (std::int64_t heads : {16, 64}) {
    std::vector<std::uint16_t> weights;
    std::vector<float> scales;
    for (std::int64_t i = 0; i < 3 * heads; ++i) {
      weights.push_back(float_to_bf16(static_cast<float>(i - 20) * 0.37f));
      scales.push_back(std::ldexp(1.0f, static_cast<int>(i % 7) - 5));
    }
    EXPECT_EQ(folded(WeightFold::bf16_intermediate, ActivationDtype::bf16, weights, scales, heads),
              folded(WeightFold::fp32, ActivationDtype::bf16, weights, scales, heads));
  }
}

TEST(IndexWeightsFold, EveryElementTakesItsOwnWeightAndScale) {
  std::vector<std::uint16_t> weights;
  std::vector<float> scales;
  for (int i = 0; i < 3 * 16; ++i) {
    weights.push_back(float_to_bf16(static_cast<float>(i + 1)));
    scales.push_back(std::ldexp(1.0f, i % 5));
  }
  const auto got = folded(WeightFold::fp32, ActivationDtype::bf16, weights, scales, 16);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], static_cast<float>(i + 1) / 4 * scales[i] * 0.0883883461356163f);
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(IndexQueryRecorded, RocmTritonBytesAreReproduced) {
  DSAKIT_NEED_RECORDING("kernel_quant_q");
  testing::Safetensors file(testing::recording_path("kernel_quant_q"));
  const Quantised got = quantised(quant_of(Fp8Encoding::e4m3fn), file.values<std::uint16_t>("x"));
  EXPECT_TRUE(got.codes == file.values<std::uint8_t>("q_fp8"));
  EXPECT_TRUE(got.scales == file.values<float>("q_scale"));
  EXPECT_TRUE(got.codes == file.values<std::uint8_t>("q_fp8_division"));
  EXPECT_TRUE(got.scales == file.values<float>("q_scale_division"));
}

TEST(IndexQueryRecorded, Fp32ScalesAgreeButForTheGpusApproximateDivision) {
  DSAKIT_NEED_RECORDING("kernel_quant_q");
  testing::Safetensors file(testing::recording_path("kernel_quant_q"));
  const Quantised got =
      quantised(quant_of(Fp8Encoding::e4m3fn, ScaleKind::fp32), file.values<std::uint16_t>("x"));
  const auto scales = file.values<float>("q_scale_fp32");
  for (std::size_t row = 0; row < scales.size(); ++row)
    EXPECT_NEAR(got.scales[row], scales[row], scales[row] * 0x1p-22) << row;
  // A quotient beside a tie may go to either code: one step.
  const auto codes = file.values<std::uint8_t>("q_fp8_fp32scale");
  std::size_t differing = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_LE(std::abs(got.codes[i] - codes[i]), 1) << i;
    differing += got.codes[i] != codes[i];
  }
  RecordProperty("differing", std::to_string(differing));
  EXPECT_LE(differing, codes.size() / 1000);
}

class LayerQueryRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerQueryRecorded, QueriesAndFoldedWeightsOfEveryStepAreReproduced) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  int steps = 0;
  for (;; ++steps) {
    const std::string step = "steps." + std::to_string(steps) + ".";
    if (!file.has(step + "index_q")) break;
    const bool fnuz = file.read(step + "index_q_fp8").dtype == Dtype::float8_e4m3fnuz;
    const Quantised got = quantised(quant_of(fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn),
                                    file.values<std::uint16_t>(step + "index_q"));
    EXPECT_TRUE(got.codes == file.values<std::uint8_t>(step + "index_q_fp8")) << step;
    EXPECT_TRUE(got.scales == file.values<float>(step + "index_q_scale")) << step;
    const std::int64_t heads = file.extent(step + "index_weights", 1);
    const auto want = file.values<float>(step + "index_weights_folded");
    const auto fold = [&](WeightFold how) {
      return folded(how, ActivationDtype::bf16, file.values<std::uint16_t>(step + "index_weights"),
                    got.scales, heads);
    };
    EXPECT_TRUE(fold(WeightFold::bf16_intermediate) == want) << step;
    EXPECT_EQ(fold(WeightFold::fp32) == want, heads != 32) << step;
  }
  EXPECT_GT(steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, LayerQueryRecorded,
                         ::testing::Values("decode_next_n2", "decode_fnuz",
                                           "prefill_no_q_lora_rmsnorm_yarn",
                                           "prefill_q_lora_layernorm_gate"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_query_test
} // namespace dsakit::reference
