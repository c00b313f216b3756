// replay --attribute: a rounding that a producer has more, or lacks, is named.
#include <sstream>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "hints_problem.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;

class Attribute : public testing::ReplayTest {
protected:
  ReportAttribution attribution(const TinyRecording& recording, const std::string& operation,
                                const std::string& output, const char* subject = "reference",
                                const char* against = "recorded") const {
    ReplayOptions options;
    options.attribute = true;
    const Report report = replay(recording, options);
    const ReportLine* line = find(report, operation, output, subject, against);
    EXPECT_TRUE(line->attribution) << output;
    return line->attribution.value_or(ReportAttribution{});
  }
};

/// logits_recording() with the simulated logits of that rounding.
TinyRecording rounded_logits(const reference::LogitsRounding& rounding) {
  TinyRecording recording = testing::logits_recording();
  const RecordedOperation& in = recording.operations.at("index_logits_prefill");
  const auto at = [&](const char* input) -> const Tensor& { return in.inputs.at(input).tensor; };
  EXPECT_TRUE(reference::index_logits_prefill_rounded(
      {at("index_q_fp8").as<std::uint8_t>(), at("index_weights_folded").as<float>(),
       at("k_fp8").as<std::uint8_t>(), at("k_scale").as<float>(), at("ks").as<std::int32_t>(),
       at("ke").as<std::int32_t>(), nullptr, 5, 16, 40, 40, Fp8Encoding::e4m3fn},
      rounding, recording.output("index_logits_prefill", "logits").as<float>()));
  return recording;
}

TEST_F(Attribute, EachRoundingOfLogits) {
  const std::pair<reference::LogitsRounding, const char*> cases[] = {
      {{true, false, false, false}, "head weight rounded to bf16"},
      {{false, true, false, false}, "dot rounded to bf16"},
      {{false, false, true, false}, "weighted dot rounded to bf16"},
      {{false, false, false, true}, "logit rounded to bf16"}};
  for (const auto& [rounding, name] : cases) {
    const auto found = attribution(rounded_logits(rounding), "index_logits_prefill", "logits");
    EXPECT_EQ(found.explained_by, name);
    EXPECT_GT(found.implementation, 1) << name; // bf16 is beyond the gate of fp32
    EXPECT_LT(found.format, 0.1) << name;
    for (const SwitchedPoint& point : found.points)
      EXPECT_EQ(point.used == 0, point.point == name) << point.point;
  }
}

TEST_F(Attribute, NoPointExplainsAnotherError) {
  TinyRecording recording = testing::logits_recording();
  Tensor& logits = recording.output("index_logits_prefill", "logits");
  for (std::int64_t i = 0; i < logits.elements(); ++i)
    logits.as<float>()[i] *= 1.01f;
  EXPECT_EQ(attribution(recording, "index_logits_prefill", "logits").explained_by, "");
  EXPECT_EQ(attribution(rounded_logits({}), "index_logits_prefill", "logits").implementation, 0);
}

TEST_F(Attribute, EachRoundingOfAttention) {
  const std::pair<reference::AttentionRounding, const char*> cases[] = {
      {{false, false, false, false}, "probability not rounded to bf16"},
      {{true, true, false, false}, "score rounded to bf16"},
      {{true, false, true, false}, "probability rounded to bf16 in the sum, too"},
      {{true, false, false, true}, "weighted sum rounded to bf16"}};
  for (const auto& [rounding, name] : cases) {
    TinyRecording recording = testing::attention_recording();
    const auto in =
        testing::tiny::attention_of(recording.operations.at("sparse_attention"),
                                    Fp8Encoding::e4m3fn, MlaScaleRead::fp32, LseBase::e);
    EXPECT_TRUE(reference::sparse_attention(
        in, recording.output("sparse_attention", "latent").as<std::uint16_t>(),
        recording.output("sparse_attention", "lse").as<float>(), rounding));
    EXPECT_EQ(attribution(recording, "sparse_attention", "latent").explained_by, name);
  }
}

TEST_F(Attribute, AKernelIsJudgedAsWellAndAnotherOperationIsNot) {
  const auto found = attribution(testing::logits_recording(), "index_logits_prefill", "logits",
                                 "kernel", "reference");
  EXPECT_LT(found.implementation, 1);
  EXPECT_EQ(found.points.size(), 4u);
  ReplayOptions options;
  options.attribute = true;
  const Report report = replay(testing::topk_recording(), options);
  EXPECT_FALSE(find(report, "topk", "topk_indices", "kernel", "reference")->attribution);
  EXPECT_FALSE(replay(testing::logits_recording()).lines[0].attribution);
}

TEST_F(Attribute, TextAndJsonSayIt) {
  ReplayOptions options;
  options.attribute = true;
  const Report report = replay(rounded_logits({false, true, false, false}), options);
  std::istringstream lines(to_text(report, {}));
  std::string text, word;
  while (lines >> word) // whatever the lines' width
    text += word + " ";
  EXPECT_NE(text.find("explained by: dot rounded to bf16, which leaves 0"), std::string::npos)
      << text;
  EXPECT_NE(to_json(report).find("\"explained_by\": \"dot rounded to bf16\""), std::string::npos);
}

} // namespace
} // namespace dsakit::harness
