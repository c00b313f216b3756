// The dense operations of a layer: what is refused of a recording, what passes, what fails and why.
#include <cmath>
#include <functional>

#include "dsakit/harness/recording.hpp"
#include "dsakit/reference/dense.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_dense.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_dense;
using testing::TinyRecording;

class ReplayDense : public testing::ReplayTest {
protected:
  Report chained(const TinyRecording& recording) const {
    ReplayOptions options;
    options.mode = ReplayMode::chained;
    return replay(recording, options);
  }

  /// What opening the changed recording says of the operation's tensors; "" if it opens.
  std::string refusal(const std::string& operation,
                      const std::function<void(RecordedOperation&)>& change) {
    TinyRecording recording = tiny_dense();
    change(recording.operations.at(operation));
    recording.write(path("x.h5"));
    const auto reader = RecordingReader::open(path("x.h5"));
    if (reader) return "";
    const std::string where = path("x.h5") + ": /steps/0/" + operation + "/";
    const std::string what = reader.status().what();
    return what.starts_with(where) ? what.substr(where.size()) : what;
  }

  /// One step of the storage dtype, away from 0.
  static void move(Tensor& bf16, std::int64_t element) { ++bf16.as<std::uint16_t>()[element]; }
};

Tensor zeros(Shape shape) {
  return {Dtype::bfloat16, std::move(shape)};
}

TEST_F(ReplayDense, ASoundRecordingPassesFedAndChained) {
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950}) {
    ReplayOptions options;
    options.host.arch = arch;
    const Report fed = replay(tiny_dense(), options);
    EXPECT_EQ(fed.verdict(), Verdict::pass) << to_text(fed, {});
    EXPECT_EQ(fed.lines.size(), 39u) << "3 comparisons of each of 13 outputs";
    EXPECT_EQ(find(fed, "o_proj", "output", "kernel", "reference")->kernel, "eigen");
    EXPECT_EQ(find(fed, "kv_norm", "kv_c", "kernel", "reference")->kernel, "wave_row");
  }
  const Report report = chained(tiny_dense());
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(report.lines.size(), 26u);
}

TEST_F(ReplayDense, EitherNameOfAnInputAndNotBoth) {
  TinyRecording recording = tiny_dense();
  RecordedOperation& norm = recording.operations.at("kv_norm");
  const Tensor wide = norm.inputs.extract("qkv_a").mapped().tensor;
  RecordedTensor& alone = norm.inputs["kv_c_raw"] = testing::tiny::bf16({3, 512}, {});
  reference::take_columns(wide.as<std::uint16_t>(), 3, 600, 24, 512,
                          alone.tensor.as<std::uint16_t>());
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass);

  EXPECT_EQ(refusal("kv_norm", [](auto& op) { op.inputs["kv_c_raw"] = op.outputs.at("kv_c"); }),
            "inputs/qkv_a: found kv_c_raw as well, want one of the two");
  EXPECT_EQ(refusal("q_norm", [](auto& op) { op.inputs.erase("qkv_a"); }),
            "inputs/qkv_a: is missing, and so is q_c_raw");
  EXPECT_EQ(refusal("o_proj", [](auto& op) { op.inputs.erase("attn_gated"); }),
            "inputs/attn_gated: is missing, and so is attn_value");
}

TEST_F(ReplayDense, ShapesThatDoNotFitTogether) {
  const auto with = [&](const char* operation, const char* name, Shape shape) {
    return refusal(operation, [&](RecordedOperation& op) {
      auto& side = op.inputs.contains(name) ? op.inputs : op.outputs;
      side.at(name).tensor = zeros(shape);
    });
  };
  EXPECT_EQ(with("qkv_a_proj", "weight", {600, 15}),
            "inputs/weight: found shape [600, 15], want [out, 16 (in of hidden_states)]");
  EXPECT_EQ(with("q_norm", "qkv_a", {3, 23}),
            "inputs/qkv_a: found shape [3, 23], want at least 24 columns");
  EXPECT_EQ(with("kv_norm", "qkv_a", {3, 575}),
            "inputs/qkv_a: found shape [3, 575], want at least 576 columns");
  EXPECT_EQ(with("q_b_proj", "weight", {143, 24}),
            "inputs/weight: found shape [143, 24], want 144 rows for 2 heads of 72");
  EXPECT_EQ(with("absorb_q", "weight", {49, 512}),
            "inputs/weight: found shape [49, 512], want as many rows for each of 2 heads");
  EXPECT_EQ(
      with("absorb_q", "weight", {16, 512}),
      "inputs/weight: found shape [16, 512], want more than 8 rows for each of 2 heads: W_UK, "
      "then W_UV");
  EXPECT_EQ(with("absorb_q", "mla_query", {3, 2, 511}),
            "outputs/mla_query: found shape [3, 2, 511], want 512 latent columns and fewer of pe "
            "than 72");
  EXPECT_EQ(with("absorb_q", "mla_query", {3, 2, 584}),
            "outputs/mla_query: found shape [3, 2, 584], want 512 latent columns and fewer of pe "
            "than 72");
  EXPECT_EQ(with("absorb_v", "attn_value", {3, 31}),
            "outputs/attn_value: found shape [3, 31], want as many columns for each of 2 heads");
  EXPECT_EQ(with("absorb_v", "latent", {3, 0, 512}),
            "inputs/latent: found shape [3, 0, 512], want at least one head");
}

TEST_F(ReplayDense, AnOutputBeyondItsBoundFails) {
  for (const auto& [operation, output] :
       {std::pair("qkv_a_proj", "qkv_a"), std::pair("q_b_proj", "q"),
        std::pair("index_q_proj", "index_q"), std::pair("absorb_q", "mla_query"),
        std::pair("absorb_v", "attn_value"), std::pair("gate_proj", "gate"),
        std::pair("o_proj", "output")}) {
    TinyRecording recording = tiny_dense();
    Tensor& tensor = recording.output(operation, output);
    move(tensor, 5);
    move(tensor, 5);
    const Report report = replay(recording);
    const ReportLine* line = find(report, operation, output, "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::fail) << output;
    EXPECT_EQ(line->gate, "derived");
    EXPECT_EQ(line->mismatches, 1);
    EXPECT_EQ(line->first_at, coordinates(tensor.shape, 5));
    EXPECT_EQ(find(report, operation, output, "kernel", "reference")->verdict, Verdict::pass);
  }
}

/// q_pe is copied: its bound is 0.
TEST_F(ReplayDense, TheLastBitOfACopiedElementCounts) {
  TinyRecording recording = tiny_dense();
  move(recording.output("absorb_q", "mla_query"), 575);
  const Report report = replay(recording);
  const ReportLine* line = find(report, "absorb_q", "mla_query", "reference", "recorded");
  EXPECT_EQ(line->mismatches, 1);
  EXPECT_EQ(line->first_at, (std::vector<std::int64_t>{0, 0, 575}));
}

TEST_F(ReplayDense, TheOtherRoundingFailsAndIsNamed) {
  for (const auto& [operation, output, key] :
       {std::tuple("q_norm", "index_q_input", "rmsnorm_rounding"),
        std::tuple("kv_norm", "kv_c", "rmsnorm_rounding"),
        std::tuple("output_gate", "attn_gated", "gate_rounding")}) {
    ReplayOptions options;
    options.overrides = {*parse_override(std::string(key) + "=one")};
    const Report report = replay(tiny_dense(), options);
    const ReportLine* line = find(report, operation, output, "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::fail) << output;
    EXPECT_EQ(line->gate, "exact");
    EXPECT_NE(line->hint.find(std::string(key) + "=two: the contract field is " + key),
              std::string::npos)
        << line->hint;
  }
}

/// Another producer of qkv_a is right within its bound; what it passed on is explained, down to the
/// bytes of the cache that hold k_pe.
TEST_F(ReplayDense, KPeIsChainedOutOfQkvA) {
  TinyRecording recording = tiny_dense();
  Tensor& qkv_a = recording.output("qkv_a_proj", "qkv_a");
  const std::int64_t k_pe = 600 - 64 + 7; // of row 0
  move(qkv_a, k_pe);
  recording.input("q_norm", "qkv_a") = recording.input("kv_norm", "qkv_a") = qkv_a;
  move(recording.input("mla_cache_write", "k_pe"), 7);
  testing::tiny::fill_outputs(recording, "mla_cache_write");
  const Report report = chained(recording);
  const ReportLine* line = find(report, "mla_cache_write", "mla_cache", "kernel", "recorded");
  EXPECT_EQ(line->verdict, Verdict::pass) << to_text(report, {});
  EXPECT_EQ(line->moved, 1) << "the low byte of one element";
}

/// A wrong projection fails where it is made, and explains everything after it.
TEST_F(ReplayDense, AWrongProducerIsNamedInAChain) {
  TinyRecording recording = tiny_dense();
  Tensor& q = recording.output("q_b_proj", "q");
  q.as<std::uint16_t>()[3] ^= 0x80; // twice or half of it
  recording.input("absorb_q", "q") = q;
  testing::tiny::fill_outputs(recording, "absorb_q");
  const Report report = chained(recording);
  for (const ReportLine& line : report.lines)
    EXPECT_EQ(line.verdict == Verdict::fail,
              line.operation == "q_b_proj" && line.against == "recorded")
        << line.operation << " " << line.subject << "/" << line.against;
}

TEST_F(ReplayDense, ASampleHasSoManyRows) {
  ReplayOptions options;
  options.rows = 2;
  const Report report = replay(tiny_dense(), options);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(find(report, "qkv_a_proj", "qkv_a", "kernel", "recorded")->elements, 2 * 600);
  EXPECT_EQ(find(report, "kv_norm", "kv_c", "kernel", "recorded")->elements, 2 * 512);
  EXPECT_EQ(find(report, "absorb_q", "mla_query", "kernel", "recorded")->elements, 2 * 2 * 576);
  EXPECT_EQ(find(report, "output_gate", "attn_gated", "kernel", "recorded")->elements, 2 * 32);
}

/// W = code * scale: the reference says what it gives, and a device takes it rounded to bf16.
TEST_F(ReplayDense, WeightsOfFp8) {
  for (const Shape& scales : {Shape{16}, Shape{1, 1}}) {
    TinyRecording recording = tiny_dense();
    std::erase_if(recording.operations, [](const auto& item) { return item.first != "o_proj"; });
    RecordedOperation& projection = recording.operations.at("o_proj");
    RecordedTensor& weight = projection.inputs.at("weight");
    Tensor codes(Dtype::float8_e4m3fn, weight.tensor.shape);
    for (std::int64_t i = 0; i < codes.elements(); ++i)
      codes.as<std::uint8_t>()[i] = reference::encode_fp8_saturating(
          Fp8Encoding::e4m3fn, static_cast<float>(4 * element(weight.tensor, i)));
    weight.tensor = codes;
    projection.inputs["weight_scale"] = testing::tiny::tensor(
        Dtype::float32, scales,
        std::vector<float>(static_cast<std::size_t>(element_count(scales)), 0.25F));
    testing::tiny::fill_outputs(recording, "o_proj");
    const Tensor& x = recording.input("o_proj", "attn_gated");
    const Tensor& output = recording.output("o_proj", "output");
    for (std::int64_t i = 0; i < output.elements(); ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < 32; ++k)
        sum += element(x, i / 16 * 32 + k) * element(codes, i % 16 * 32 + k) * 0.25;
      EXPECT_NEAR(element(output, i), sum, 0x1p-8 * std::abs(sum)) << i;
    }
    const Report report = replay(recording);
    EXPECT_EQ(find(report, "o_proj", "output", "reference", "recorded")->verdict, Verdict::pass);
    const ReportLine* line = find(report, "o_proj", "output", "kernel", "reference");
    EXPECT_EQ(line->verdict, Verdict::pass);
    EXPECT_GT(line->elements, 0);
  }
}

TEST_F(ReplayDense, ScalesOfAWeight) {
  const auto with = [&](Dtype weight, Dtype scale, Shape shape) {
    return refusal("o_proj", [&](RecordedOperation& op) {
      Tensor& w = op.inputs.at("weight").tensor;
      w = Tensor(weight, w.shape); // [16, 32]
      if (!shape.empty()) {
        op.inputs["weight_scale"].tensor = Tensor(scale, shape);
        op.inputs["weight_scale"].axes.assign(shape.size(), "axis");
      }
    });
  };
  EXPECT_EQ(with(Dtype::float8_e4m3fnuz, Dtype::float32, {16}), "");
  EXPECT_EQ(with(Dtype::float8_e4m3fn, Dtype::float32, {1, 1}), "");
  EXPECT_EQ(with(Dtype::float8_e4m3fn, Dtype::float32, {32}),
            "inputs/weight_scale: found shape [32], want [16] or [1, 1]");
  EXPECT_EQ(with(Dtype::float8_e4m3fn, Dtype::bfloat16, {16}),
            "inputs/weight_scale: found dtype bfloat16, want float32");
  EXPECT_EQ(with(Dtype::float8_e4m3fn, Dtype::float32, {}),
            "inputs/weight_scale: is missing, want it for a weight of float8_e4m3fn");
  EXPECT_EQ(with(Dtype::bfloat16, Dtype::float32, {16}),
            "inputs/weight_scale: found scales of a bfloat16 weight, want none");
  EXPECT_EQ(refusal("index_k_proj",
                    [](RecordedOperation& op) {
                      Tensor& w = op.inputs.at("weight").tensor;
                      w = Tensor(Dtype::float8_e4m3fn, w.shape);
                    }),
            "inputs/weight: found dtype float8_e4m3fn, want bfloat16");
}

TEST_F(ReplayDense, ActivationsOfFp16HaveAReferenceAndNoKernel) {
  TinyRecording recording = tiny_dense();
  std::erase_if(recording.operations, [](const auto& item) { return item.first != "o_proj"; });
  recording.contract["activation_dtype"] = "fp16";
  RecordedOperation& projection = recording.operations.at("o_proj");
  projection.inputs.at("attn_gated").tensor.dtype = Dtype::float16;
  projection.outputs.at("output").tensor.dtype = Dtype::float16;
  testing::tiny::fill_outputs(recording, "o_proj");
  const Report report = replay(recording);
  EXPECT_EQ(find(report, "o_proj", "output", "reference", "recorded")->verdict, Verdict::pass);
  EXPECT_EQ(find(report, "o_proj", "output", "kernel", "reference")->verdict, Verdict::unsupported);
}

} // namespace
} // namespace dsakit::harness
