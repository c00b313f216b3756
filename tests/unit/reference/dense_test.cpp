#include "dsakit/reference/dense.hpp"

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
namespace dense_test {

using testing::Guarded;

float value_of(ActivationDtype dtype, std::uint16_t bits) {
  return dtype == ActivationDtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

std::uint16_t bits_of(ActivationDtype dtype, float value) {
  return dtype == ActivationDtype::bf16 ? float_to_bf16(value) : float_to_fp16(value);
}

/// A projection that owns its tensors.
struct Problem {
  WeightFormat format;
  std::int64_t rows, inputs, outputs;
  ActivationDtype dtype = ActivationDtype::bf16;
  Fp8Encoding encoding = Fp8Encoding::e4m3fn;
  std::vector<std::uint16_t> x = {};
  std::vector<std::uint16_t> bits = {};
  std::vector<std::uint8_t> codes = {};
  std::vector<float> scales = {};

  std::int64_t block_columns() const { return (inputs + 127) / 128; }
  Weight weight() const {
    const bool bf16 = format == WeightFormat::bf16;
    return {format,
            encoding,
            bf16 ? static_cast<const void*>(bits.data()) : codes.data(),
            bf16 ? nullptr : scales.data(),
            outputs,
            inputs};
  }
  Projection projection() const { return {x.data(), rows, weight(), dtype}; }
  double at(std::int64_t output, std::int64_t input) const {
    const auto i = static_cast<std::size_t>(output * inputs + input);
    if (format == WeightFormat::bf16) return bf16_to_float(bits[i]);
    const std::int64_t scale =
        format == WeightFormat::fp8_channel ? output : output / 128 * block_columns() + input / 128;
    return static_cast<double>(decode_fp8(encoding, codes[i])) *
           scales[static_cast<std::size_t>(scale)];
  }
};

Problem random_problem(WeightFormat format, std::int64_t rows, std::int64_t inputs,
                       std::int64_t outputs, unsigned seed,
                       ActivationDtype dtype = ActivationDtype::bf16,
                       Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{format, rows, inputs, outputs, dtype, encoding};
  for (std::int64_t i = 0; i < rows * inputs; ++i)
    p.x.push_back(bits_of(dtype, normal(random)));
  for (std::int64_t i = 0; i < outputs * inputs; ++i) {
    p.bits.push_back(float_to_bf16(normal(random)));
    p.codes.push_back(encode_fp8_saturating(encoding, 30 * normal(random)));
  }
  const std::int64_t scales =
      format == WeightFormat::fp8_channel ? outputs : (outputs + 127) / 128 * p.block_columns();
  for (std::int64_t i = 0; i < scales; ++i)
    p.scales.push_back(0.01f * (1 + std::fabs(normal(random)))); // differ, no powers of two
  return p;
}

std::vector<std::uint16_t> projected(const Problem& p) {
  const auto elements = static_cast<std::size_t>(p.rows * p.outputs);
  Guarded<std::uint16_t> y(elements, 0x7FC1, 0x1234);
  const Status status = project(p.projection(), y.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(y.intact());
  return {y.data(), y.data() + y.size()};
}

struct Exactly {
  explicit Exactly(std::int64_t elements)
      : value(static_cast<std::size_t>(elements)), bound(value.size()) {}
  std::vector<double> value;
  std::vector<double> bound;

  /// Largest |got - value| / bound; an element whose bound is 0 must be equal.
  double used(ActivationDtype dtype, const std::vector<std::uint16_t>& got) const {
    EXPECT_EQ(got.size(), value.size());
    double worst = 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const double error = std::fabs(value_of(dtype, got[i]) - value[i]);
      const double fraction = error == 0 ? 0 : error / bound[i];
      if (!(fraction <= worst)) worst = fraction; // NaN too
    }
    return worst;
  }
};

Exactly exactly_projected(const Problem& p) {
  Exactly exact(p.rows * p.outputs);
  const Status status = project_exact(p.projection(), exact.value.data(), exact.bound.data());
  EXPECT_TRUE(status) << status.what();
  return exact;
}

constexpr WeightFormat kFormats[] = {WeightFormat::bf16, WeightFormat::fp8_channel,
                                     WeightFormat::fp8_block};

TEST(Projection, EqualsTheFormulaInEveryFormatAndEncoding) {
  for (WeightFormat format : kFormats)
    for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
      for (ActivationDtype dtype : {ActivationDtype::bf16, ActivationDtype::fp16}) {
        SCOPED_TRACE(name(format));
        const Problem p = random_problem(format, 530, 200, 150, 3, dtype, encoding);
        const Exactly exact = exactly_projected(p);
        double terms_of_last = 0;
        for (std::int64_t row : {0, 63, 64, 511, 512, 529}) // blocks of 64 rows, chunks of 512
          for (std::int64_t output : {0, 1, 127, 128, 149}) {
            double sum = 0;
            terms_of_last = 0;
            for (std::int64_t i = 0; i < p.inputs; ++i) {
              const double term =
                  value_of(dtype, p.x[static_cast<std::size_t>(row * p.inputs + i)]) *
                  p.at(output, i);
              sum += term;
              terms_of_last += std::fabs(term);
            }
            EXPECT_NEAR(exact.value[static_cast<std::size_t>(row * p.outputs + output)], sum,
                        1e-13 * terms_of_last);
          }
        // gamma(n) sum|terms| and at most one ulp, no more.
        const double ulp =
            std::fabs(exact.value.back()) * (dtype == ActivationDtype::bf16 ? 0x1p-7 : 0x1p-10);
        EXPECT_GE(exact.bound.back(), 202 * 0x1p-24 * terms_of_last);
        EXPECT_LE(exact.bound.back(), 202.1 * 0x1p-24 * terms_of_last + ulp);
        const double used = exact.used(dtype, projected(p));
        EXPECT_GT(used, 0.3); // the rounding to 16 bits is most of the bound
        EXPECT_LE(used, 1);
      }
}

TEST(Projection, ARowsBitsDependOnThatRowAlone) {
  for (const std::int64_t inputs : {96, 1536, 7168}) {
    const Problem all = random_problem(WeightFormat::bf16, 137, inputs, 300, 5);
    const auto want = projected(all);
    for (std::int64_t first = 0; first < all.rows; first += first % 5 + 1) {
      Problem part = all; // other rows, another place in its block
      part.rows = std::min<std::int64_t>(3, all.rows - first);
      part.x.assign(all.x.begin() + first * inputs, all.x.begin() + (first + part.rows) * inputs);
      const auto got = projected(part);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * all.outputs))
          << "rows from " << first << " of " << inputs << " inputs";
    }
  }
}

TEST(Projection, SameBitsForAnyNumberOfThreads) {
  const Problem p = random_problem(WeightFormat::fp8_block, 21, 512, 777, 6);
  const auto want = projected(p);
  for (std::size_t threads : {1, 2, 3}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(projected(p), want) << threads << " threads";
  }
}

TEST(Projection, NoRowsIsFineAndNaNStaysInItsRow) {
  Problem p = random_problem(WeightFormat::bf16, 4, 32, 8, 7);
  p.x[32 + 5] = 0x7FC0;
  const auto y = projected(p);
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(std::isnan(bf16_to_float(y[i])), i / 8 == 1) << i;
  p.rows = 0;
  EXPECT_TRUE(project(p.projection(), nullptr));
}

TEST(Projection, RefusalsNameTheWeight) {
  Problem p = random_problem(WeightFormat::fp8_channel, 1, 32, 8, 8);
  Projection projection = p.projection();
  projection.weight.scales = nullptr;
  EXPECT_EQ(project(projection, nullptr).what(),
            "weight [8, 32] of format fp8_channel: found no scales");
  projection.weight.values = nullptr;
  EXPECT_EQ(project_exact(projection, nullptr, nullptr).what(),
            "weight [8, 32] of format fp8_channel: found no values");
}

TEST(Projection, DifferencePropagatesByMagnitude) {
  const Problem p = random_problem(WeightFormat::fp8_block, 3, 140, 130, 9);
  std::vector<double> dx(static_cast<std::size_t>(p.rows * p.inputs), 0);
  dx[static_cast<std::size_t>(p.inputs + 7)] = 0.5;
  dx[static_cast<std::size_t>(p.inputs + 139)] = 2;
  std::vector<double> dy(static_cast<std::size_t>(p.rows * p.outputs), -1);
  ASSERT_TRUE(project_difference(p.weight(), dx.data(), p.rows, dy.data()));
  for (std::int64_t o = 0; o < p.outputs; ++o) {
    EXPECT_EQ(dy[static_cast<std::size_t>(o)], 0);
    EXPECT_NEAR(dy[static_cast<std::size_t>(p.outputs + o)],
                0.5 * std::fabs(p.at(o, 7)) + 2 * std::fabs(p.at(o, 139)), 1e-12);
  }
}

TEST(Absorption, EqualsTheFormulaHeadByHead) {
  constexpr HeadDims dims{24, 8, 16, 40};
  constexpr std::int64_t tokens = 18, heads = 3;
  const Problem q = random_problem(WeightFormat::bf16, tokens, heads * 32, 1, 10);
  const Problem latent = random_problem(WeightFormat::bf16, tokens, heads * 40, 1, 11);
  for (WeightFormat format : kFormats) {
    const Problem kv_b = random_problem(format, 1, 40, heads * 40, 12);
    Absorption in{q.x.data(), tokens, heads, dims, kv_b.weight(), ActivationDtype::bf16};
    Exactly query(tokens * heads * 48);
    ASSERT_TRUE(absorb_q_exact(in, query.value.data(), query.bound.data()));
    std::vector<std::uint16_t> bits(query.value.size(), 0x7FC1);
    ASSERT_TRUE(absorb_q(in, bits.data()));
    EXPECT_LE(query.used(ActivationDtype::bf16, bits), 1);
    const std::size_t t = 17, n = 2;
    double sum = 0;
    for (std::size_t p = 0; p < 24; ++p)
      sum += bf16_to_float(q.x[(t * 3 + n) * 32 + p]) *
             kv_b.at(static_cast<std::int64_t>(n * 40 + p), 39);
    EXPECT_NEAR(query.value[(t * 3 + n) * 48 + 39], sum, 1e-9);
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_EQ(bits[(t * 3 + n) * 48 + 40 + i], q.x[(t * 3 + n) * 32 + 24 + i]);

    in.x = latent.x.data();
    Exactly value(tokens * heads * 16);
    ASSERT_TRUE(absorb_v_exact(in, value.value.data(), value.bound.data()));
    bits.assign(value.value.size(), 0x7FC1);
    ASSERT_TRUE(absorb_v(in, bits.data()));
    EXPECT_LE(value.used(ActivationDtype::bf16, bits), 1);
    sum = 0;
    for (std::size_t l = 0; l < 40; ++l)
      sum += bf16_to_float(latent.x[(t * 3 + n) * 40 + l]) *
             kv_b.at(static_cast<std::int64_t>(n * 40 + 24 + 15), static_cast<std::int64_t>(l));
    EXPECT_NEAR(value.value[(t * 3 + n) * 16 + 15], sum, 1e-9);
  }
}

TEST(Absorption, RefusesOtherExtents) {
  const Problem kv_b = random_problem(WeightFormat::bf16, 1, 40, 80, 13);
  const Absorption in{nullptr, 1, 3, {24, 8, 16, 40}, kv_b.weight(), ActivationDtype::bf16};
  EXPECT_EQ(absorb_q(in, nullptr).what(), "kv_b_proj: found [80, 40], want [120, 40]");
  EXPECT_EQ(absorb_v(in, nullptr).what(), "kv_b_proj: found [80, 40], want [120, 40]");
}

TEST(OutputGate, EqualsTheRecordedKernelsOfBothRoundings) {
  DSAKIT_NEED_RECORDING("kernel_norms");
  testing::Safetensors file(testing::recording_path("kernel_norms"));
  const auto value = file.values<std::uint16_t>("gate_o");
  const auto gate = file.values<std::uint16_t>("gate_g");
  const std::pair<GateRounding, const char*> producers[] = {
      {GateRounding::two, "gate_out_cuda"},
      {GateRounding::two, "gate_out_cpu"},
      {GateRounding::one, "gate_out_k3_triton"}};
  for (const auto& [rounding, producer] : producers) {
    SCOPED_TRACE(producer);
    const OutputGate in{value.data(), gate.data(), std::ssize(value), rounding,
                        ActivationDtype::bf16};
    std::vector<std::uint16_t> got(value.size());
    ASSERT_TRUE(output_gate(in, got.data()));
    const auto want = file.values<std::uint16_t>(producer);
    EXPECT_EQ(got, want);
    Exactly exact(std::ssize(value));
    ASSERT_TRUE(output_gate_exact(in, exact.value.data(), exact.bound.data()));
    EXPECT_LE(exact.used(ActivationDtype::bf16, want), 1);
    EXPECT_GT(exact.used(ActivationDtype::bf16, want), 0.5);
  }
}

TEST(OutputGate, ExtremeGatesStayFinite) {
  const float largest = 3e38f;
  std::vector<std::uint16_t> gate, value;
  for (float g : {-largest, -100.0f, 0.0f, 100.0f, largest}) {
    gate.push_back(float_to_bf16(g));
    value.push_back(float_to_bf16(-2));
  }
  std::vector<std::uint16_t> got(gate.size());
  ASSERT_TRUE(output_gate({value.data(), gate.data(), 5, GateRounding::one, ActivationDtype::bf16},
                          got.data()));
  EXPECT_EQ(got[0], 0x8000);
  EXPECT_EQ(got[2], float_to_bf16(-1));
  EXPECT_EQ(got[4], float_to_bf16(-2));
}

TEST(SoftmaxScale, FollowsYarnOnlyBeyondFactorOne) {
  EXPECT_EQ(softmax_scale(192, 1), 0.07216878364870322);
  EXPECT_EQ(yarn_mscale(1, 5), 1);
  EXPECT_EQ(yarn_mscale(40, 0), 1);                                      // mscale_all_dim absent
  EXPECT_EQ(softmax_scale(192, yarn_mscale(40, 1)), 0.1352337788608801); // as recorded
}

/// Every dense operation of the layer recordings, fed.
class RecordedLayer : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedLayer, DenseOperationsStayWithinTheirBounds) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  const auto step = [](const std::string& tensor) { return "steps.0." + tensor; };
  const auto check = [&](const char* weight_name, const char* x_name, const char* y_name) {
    const std::string weight = std::string("weights.") + weight_name;
    if (!file.has(weight)) return;
    SCOPED_TRACE(weight_name);
    const auto x = file.values<std::uint16_t>(step(x_name));
    const auto y = file.values<std::uint16_t>(step(y_name));
    Problem p{WeightFormat::bf16, file.extent(step(x_name), 0), file.extent(weight, 1),
              file.extent(weight, 0)};
    p.x = x;
    p.bits = file.values<std::uint16_t>(weight);
    const Exactly exact = exactly_projected(p);
    EXPECT_LE(exact.used(p.dtype, y), 1) << "recorded";
    EXPECT_LE(exact.used(p.dtype, projected(p)), 1) << "simulated";
  };
  const bool gated = file.has("weights.g_proj");
  check("fused_qkv_a_proj", "hidden_states", "qkv_a");
  check("kv_a_proj_with_mqa", "hidden_states", "kv_a");
  check("q_b_proj", "index_q_input", "q");
  check("q_proj", "hidden_states", "q");
  check("wq_index", "index_q_input", "index_q");
  check("wk_index", "hidden_states", "index_k_raw");
  check("wv_index", "hidden_states", "index_weights");
  check("g_proj", "hidden_states", "gate");
  check("o_proj", gated ? "attn_gated" : "attn_value", "output");

  const auto kv_b = file.values<std::uint16_t>("weights.kv_b_proj");
  const std::int64_t tokens = file.extent(step("q"), 0), heads = file.extent(step("q"), 1);
  const Weight weight{
      WeightFormat::bf16, Fp8Encoding::e4m3fn, kv_b.data(), nullptr, heads * 256, 512};
  const auto q = file.values<std::uint16_t>(step("q"));
  const auto latent = file.values<std::uint16_t>(step("attn_latent"));
  Absorption in{q.data(), tokens, heads, {128, 64, 128, 512}, weight, ActivationDtype::bf16};
  Exactly query(tokens * heads * 576);
  ASSERT_TRUE(absorb_q_exact(in, query.value.data(), query.bound.data()));
  EXPECT_LE(query.used(in.dtype, file.values<std::uint16_t>(step("mla_query"))), 1);
  in.x = latent.data();
  Exactly value(tokens * heads * 128);
  ASSERT_TRUE(absorb_v_exact(in, value.value.data(), value.bound.data()));
  EXPECT_LE(value.used(in.dtype, file.values<std::uint16_t>(step("attn_value"))), 1);

  if (gated) {
    const auto attn_value = file.values<std::uint16_t>(step("attn_value"));
    const auto gate = file.values<std::uint16_t>(step("gate"));
    std::vector<std::uint16_t> got(gate.size());
    ASSERT_TRUE(output_gate({attn_value.data(), gate.data(), std::ssize(gate), GateRounding::two,
                             ActivationDtype::bf16},
                            got.data()));
    EXPECT_EQ(got, file.values<std::uint16_t>(step("attn_gated")));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RecordedLayer,
                         ::testing::Values("prefill_q_lora_layernorm_gate",
                                           "prefill_no_q_lora_rmsnorm_yarn", "decode_next_n2",
                                           "decode_mxfp4", "decode_fnuz"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace dense_test
} // namespace dsakit::reference
