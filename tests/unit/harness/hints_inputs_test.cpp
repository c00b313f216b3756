// Hints from assumptions about the inputs, each planted: what a producer gives that made it.
#include <cmath>

#include "hints_problem.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;

class InputHints : public testing::ReplayTest {
protected:
  /// The hint where the recorded outputs are those of other inputs.
  template <class Change>
  std::string hint_of(TinyRecording recording, const std::string& tensor, Change change) const {
    const auto& [operation, right] = *recording.operations.begin();
    RecordedOperation wrong = right;
    Attributes config = recording.config;
    change(wrong, config);
    testing::compute(recording, operation, wrong, config);
    return first(hint(recording, operation, tensor));
  }

  /// A second one may be an accumulation whose gate is wide enough.
  static std::string first(const std::string& hints) {
    return hints.substr(0, hints.find("; or: "));
  }

  /// The same, where one input alone differs.
  template <class T, class Value>
  std::string hint_of_each(const TinyRecording& recording, const std::string& tensor,
                           const std::string& input, Value value) const {
    return hint_of(recording, tensor, [&](RecordedOperation& wrong, Attributes&) {
      Tensor& elements = wrong.inputs.at(input).tensor;
      for (std::int64_t i = 0; i < elements.elements(); ++i)
        elements.as<T>()[i] = value(elements.as<T>()[i], i);
    });
  }
};

std::string fits(const std::string& assumption) {
  return "the recorded values are what comes out where " + assumption;
}

TEST_F(InputHints, S30_HeadWeightsInBf16) {
  EXPECT_EQ(hint_of_each<float>(testing::logits_recording(), "logits", "index_weights_folded",
                                [](float weight, std::int64_t) {
                                  return reference::bf16_to_float(reference::float_to_bf16(weight));
                                }),
            fits("the head weights are rounded to bf16"));
}

TEST_F(InputHints, S27_ReluAfterTheWeightOrMissing) {
  EXPECT_EQ(hint_of_each<float>(testing::logits_recording(), "logits", "index_weights_folded",
                                [](float weight, std::int64_t) { return std::max(weight, 0.0f); }),
            fits("a negative head weight counts as 0: ReLU after the weight"));
  // sum w x, from the codes as they are.
  TinyRecording recording = testing::logits_recording();
  const RecordedOperation& in = recording.operations.at("index_logits_prefill");
  const auto value = [&](const char* input, std::int64_t i) {
    return element(in.inputs.at(input).tensor, i);
  };
  for (std::int64_t row = 0; row < 5; ++row)
    for (std::int64_t key = 0; key < 40; ++key) {
      double sum = 0;
      for (std::int64_t head = 0; head < 16; ++head)
        for (std::int64_t d = 0; d < 128; ++d)
          sum += value("index_weights_folded", 16 * row + head) *
                 value("index_q_fp8", (16 * row + head) * 128 + d) * value("k_fp8", 128 * key + d);
      recording.output("index_logits_prefill", "logits").as<float>()[40 * row + key] =
          static_cast<float>(sum * value("k_scale", key));
    }
  EXPECT_EQ(first(hint(recording, "index_logits_prefill", "logits")), fits("ReLU is left out"));
}

TEST_F(InputHints, HeadsAndDimsThatAreLeftOut) {
  EXPECT_EQ(
      hint_of_each<float>(testing::logits_recording(), "logits", "index_weights_folded",
                          [](float weight, std::int64_t i) { return i % 16 < 15 ? weight : 0; }),
      fits("the last head is left out"));
  EXPECT_EQ(hint_of_each<std::uint8_t>(testing::logits_recording(), "logits", "index_q_fp8",
                                       [](std::uint8_t code, std::int64_t i) {
                                         return i % 128 < 96 ? code : std::uint8_t{0};
                                       }),
            fits("dims 96 to 127 of the dot are left out"));
}

TEST_F(InputHints, TheFirstRowForAll) {
  EXPECT_EQ(hint_of(testing::logits_recording(), "logits",
                    [](RecordedOperation& wrong, Attributes&) {
                      float* weights = wrong.inputs.at("index_weights_folded").tensor.as<float>();
                      for (int i = 16; i < 5 * 16; ++i)
                        weights[i] = weights[i - 16];
                    }),
            fits("every row takes the first row of index_weights_folded"));
}

TEST_F(InputHints, S28_AQueryThatIsHalfSplitAgainstAnInterleavedKey) {
  EXPECT_EQ(hint_of(testing::logits_recording(), "logits",
                    [](RecordedOperation& wrong, Attributes&) {
                      Tensor& codes = wrong.inputs.at("index_q_fp8").tensor;
                      const Tensor right = codes;
                      for (std::int64_t i = 0; i < codes.elements(); ++i)
                        if (const std::int64_t d = i % 128; d < 64) // the rotary part is the first
                          codes.as<std::uint8_t>()[i] =
                              right.as<std::uint8_t>()[i - d + d / 2 + d % 2 * 32];
                    }),
            fits("dims 0 to 63 of the query are half-split and those of the key interleaved"));
}

TEST_F(InputHints, AMissingQueryScale) {
  TinyRecording recording = testing::only("index_weights_fold");
  EXPECT_EQ(hint_of_each<float>(recording, "index_weights_folded", "index_q_scale",
                                [](float, std::int64_t) { return 1.0f; }),
            fits("the query scale is left out"));
}

TEST_F(InputHints, AMissingKeyScale) {
  EXPECT_EQ(hint_of_each<float>(testing::logits_recording(), "logits", "k_scale",
                                [](float, std::int64_t) { return 1.0f; }),
            fits("the key scale is left out"));
}

TEST_F(InputHints, AWrongSoftmaxScale) {
  const double plain = testing::tiny::kSoftmaxScale, m = 0.1 * std::log(40.0) + 1;
  const auto with = [&](double scale, double used) {
    TinyRecording recording = testing::attention_recording();
    recording.config["softmax_scale"] = std::to_string(scale);
    return hint_of(recording, "lse", [&](RecordedOperation&, Attributes& config) {
      config["softmax_scale"] = std::to_string(used);
    });
  };
  const std::string is = "the softmax scale is ";
  EXPECT_EQ(with(plain, plain * m * m),
            fits(is + "192^-0.5 with the mscale of a YaRN factor of 40"));
  EXPECT_EQ(with(plain * m * m, plain), fits(is + "192^-0.5, without mscale"));
  EXPECT_EQ(with(plain * m * m, plain * m), fits(is + "mscale once, not squared"));
  EXPECT_EQ(with(plain, 1 / std::sqrt(576.0)), fits(is + "576^-0.5, of the absorbed query"));
  EXPECT_EQ(with(plain, plain * 1.1), "") << "no usual scale";
}

TEST_F(InputHints, SlotZeroInPlaceOfPadding) {
  EXPECT_EQ(
      hint_of_each<std::int32_t>(testing::attention_recording(), "lse", "slots",
                                 [](std::int32_t slot, std::int64_t) { return std::max(slot, 0); }),
      fits("slot 0 is attended in place of -1"));
}

TEST_F(InputHints, AKeyThatIsLeftOut) {
  EXPECT_EQ(hint_of(testing::attention_recording(), "lse",
                    [](RecordedOperation& wrong, Attributes&) {
                      auto* slots = wrong.inputs.at("slots").tensor.as<std::int32_t>();
                      for (int row = 0; row < 6; ++row)
                        slots[4 * row + (row < 4 ? 3 : 1)] = -1;
                    }),
            fits("the last key of each row is left out"));
}

TEST_F(InputHints, AnAssumptionThatExplainsFewElementsIsNotNamed) {
  // Three wrong logits, which a weight in bf16 would explain.
  TinyRecording recording = testing::logits_recording();
  RecordedOperation wrong = recording.operations.at("index_logits_prefill");
  Tensor& weights = wrong.inputs.at("index_weights_folded").tensor;
  for (std::int64_t i = 0; i < weights.elements(); ++i)
    weights.as<float>()[i] =
        reference::bf16_to_float(reference::float_to_bf16(weights.as<float>()[i]));
  TinyRecording other = recording;
  testing::compute(other, "index_logits_prefill", wrong, other.config);
  for (const int i : {7, 50, 120})
    recording.output("index_logits_prefill", "logits").as<float>()[i] =
        other.output("index_logits_prefill", "logits").as<float>()[i];
  const std::string text = hint(recording, "index_logits_prefill", "logits");
  EXPECT_EQ(text.find("what comes out where"), std::string::npos) << text;
}

TEST_F(InputHints, TopkRules) {
  TinyRecording recording = testing::topk_recording();
  auto* scores = recording.input("topk", "logits").as<float>();
  for (int row = 0; row < 12; ++row) // 3 zeros of either sign at the threshold
    scores[8 * row] = -0.0f, scores[8 * row + 1] = 0, scores[8 * row + 2] = 0,
               scores[8 * row + 3] = 1, scores[8 * row + 4] = 2, scores[8 * row + 5] = 3,
               scores[8 * row + 6] = scores[8 * row + 7] = -1;
  testing::compute(recording, "topk");
  EXPECT_EQ(hint_of_each<float>(recording, "topk_indices", "logits",
                                [](float score, std::int64_t) {
                                  return score == 0 && std::signbit(score) ? -1e-40f : score;
                                }),
            fits("-0 ranks below 0"));
}

} // namespace
} // namespace dsakit::harness
