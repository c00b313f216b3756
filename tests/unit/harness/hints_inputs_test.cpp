// Hints from assumptions about the inputs, each planted: what a producer gives that made it.
#include <cmath>
#include <cstring>

#include "hints_problem.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_dense.hpp"

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
            fits("a negative head weight counts as 0"));
  // From the codes as they are.
  const auto hint_of_sum = [&](auto term) {
    TinyRecording recording = testing::logits_recording();
    const RecordedOperation& in = recording.operations.at("index_logits_prefill");
    const auto value = [&](const char* input, std::int64_t i) {
      return element(in.inputs.at(input).tensor, i);
    };
    for (std::int64_t row = 0; row < 5; ++row)
      for (std::int64_t key = 0; key < 40; ++key) {
        double sum = 0;
        for (std::int64_t head = 0; head < 16; ++head) {
          double dot = 0;
          for (std::int64_t d = 0; d < 128; ++d)
            dot +=
                value("index_q_fp8", (16 * row + head) * 128 + d) * value("k_fp8", 128 * key + d);
          sum += term(value("index_weights_folded", 16 * row + head), dot);
        }
        recording.output("index_logits_prefill", "logits").as<float>()[40 * row + key] =
            static_cast<float>(sum * value("k_scale", key));
      }
    return first(hint(recording, "index_logits_prefill", "logits"));
  };
  EXPECT_EQ(hint_of_sum([](double weight, double dot) { return weight * dot; }),
            fits("ReLU is left out"));
  EXPECT_EQ(hint_of_sum([](double weight, double dot) { return std::max(weight * dot, 0.0); }),
            fits("the ReLU is after the head weight, not before it"));
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
  EXPECT_EQ(hint_of_each<std::uint8_t>(testing::logits_recording(), "logits", "index_q_fp8",
                                       [](std::uint8_t code, std::int64_t i) {
                                         return i % 32 < 24 ? code : std::uint8_t{0};
                                       }),
            fits("dims 24 to 31 of each 32 of the dot are left out: a step of the sum"));
}

TEST_F(InputHints, TheOtherHalfOfTheAbsorbedWeight) {
  TinyRecording dense = testing::tiny_dense();
  const auto only = [&](const char* operation) {
    TinyRecording recording = dense;
    std::erase_if(recording.operations, [&](const auto& item) { return item.first != operation; });
    return recording;
  };
  // Rows of another place in the weight, for those of the operation.
  const auto of_rows = [&](const char* operation, const char* tensor, auto from) {
    return hint_of(only(operation), tensor, [&](RecordedOperation& wrong, Attributes&) {
      Tensor& weight = wrong.inputs.at("weight").tensor;
      const Tensor right = weight;
      const std::int64_t heads = wrong.inputs.begin()->second.tensor.shape[1];
      const std::int64_t head_rows = weight.shape[0] / heads;
      const auto bytes = right.bytes.size() / static_cast<std::size_t>(weight.shape[0]);
      for (std::int64_t row = 0; row < weight.shape[0]; ++row)
        if (const std::int64_t source = from(row / head_rows, row % head_rows); source >= 0)
          std::memcpy(weight.bytes.data() + static_cast<std::size_t>(row) * bytes,
                      right.bytes.data() + static_cast<std::size_t>(source) * bytes, bytes);
    });
  };
  const auto& q_weight = dense.input("absorb_q", "weight");
  const std::int64_t heads = dense.input("absorb_q", "q").shape[1];
  const std::int64_t head_rows = q_weight.shape[0] / heads;
  const std::int64_t value = dense.output("absorb_v", "attn_value").shape[1] / heads;
  const std::int64_t nope = head_rows - value;
  EXPECT_EQ(of_rows("absorb_v", "attn_value",
                    [=](std::int64_t head, std::int64_t row) {
                      return row < nope ? -1 : head * head_rows + row - nope;
                    }),
            fits("W_UK is taken for W_UV"));
  EXPECT_EQ(of_rows("absorb_q", "mla_query",
                    [=](std::int64_t head, std::int64_t row) {
                      return row < nope ? head * nope + row : -1;
                    }),
            fits("the heads of the weight are taken from one another, with nothing between them"));
}

TEST_F(InputHints, ThePlaceInABlockOfInterleavedPositions) {
  TinyRecording recording = testing::only("topk_slots");
  recording.contract["dcp_world"] = "2";
  recording.contract["dcp_interleave"] = "2";
  recording.contract["page_size"] = "2";
  RecordedOperation& slots = recording.operations.at("topk_slots");
  slots.inputs.erase("row_lens");
  std::vector<std::int32_t> positions, table;
  for (int i = 0; i < 4 * 8; ++i)
    positions.push_back((7 * i + i / 8) % 32);
  for (int i = 0; i < 2 * 8; ++i)
    table.push_back((5 * i + 3) % 16);
  slots.inputs["topk_indices"] = testing::tiny::tensor(Dtype::int32, {4, 8}, positions);
  slots.inputs["block_table"] = testing::tiny::tensor(Dtype::int32, {2, 8}, table);
  slots.inputs["row_request"] =
      testing::tiny::tensor(Dtype::int32, {4}, std::vector<std::int32_t>{0, 0, 1, 1});
  slots.outputs.at("slots").tensor = Tensor(Dtype::int32, {4, 8});
  testing::compute(recording, "topk_slots");
  std::int32_t* wrong = recording.output("topk_slots", "slots").as<std::int32_t>();
  for (std::size_t i = 0; i < 32; ++i) {
    const std::int32_t block = positions[i] / 2;
    if (block % 2 != 0) continue;
    const std::int32_t local = block / 2;
    const std::size_t request = i / 16, page = static_cast<std::size_t>(local) / 2;
    wrong[i] = table[8 * request + page] * 2 + local % 2;
  }
  EXPECT_EQ(hint(recording, "topk_slots", "slots"),
            fits("the place in a block of dcp_interleave positions is lost"));
}

// A row that is right has to stay right under what explains the wrong ones.
TEST_F(InputHints, AnAssumptionThatSpoilsRightRowsIsNotNamed) {
  TinyRecording recording = testing::logits_recording();
  TinyRecording wrong = recording;
  RecordedOperation changed = recording.operations.at("index_logits_prefill");
  Tensor& weights = changed.inputs.at("index_weights_folded").tensor;
  for (std::int64_t i = 0; i < weights.elements(); ++i)
    weights.as<float>()[i] = i % 16 < 15 ? weights.as<float>()[i] : 0;
  testing::compute(wrong, "index_logits_prefill", changed, recording.config);
  // Rows 0 to 3 lost their last head, row 4 did not.
  const Tensor& right = recording.output("index_logits_prefill", "logits");
  std::memcpy(wrong.output("index_logits_prefill", "logits").bytes.data() + 4 * 40 * 4,
              right.bytes.data() + 4 * 40 * 4, 40 * 4);
  EXPECT_EQ(hint(wrong, "index_logits_prefill", "logits").find("the last head is left out"),
            std::string::npos);
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

TEST_F(InputHints, TheKeyScaleOfATile) {
  TinyRecording recording = testing::logits_recording();
  RecordedOperation& prefill = recording.operations.at("index_logits_prefill");
  const Tensor scales = prefill.inputs.at("k_scale").tensor;
  EXPECT_EQ(
      hint_of_each<float>(recording, "logits", "k_scale",
                          [&](float, std::int64_t i) { return scales.as<float>()[i - i % 16]; }),
      fits("every key of a tile of 16 has the scale of the tile's first"));
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

  // Of heads of another size, or one that the recorded scale does not tell.
  const double of_256 = 1 / std::sqrt(256.0);
  EXPECT_EQ(with(of_256, plain), fits(is + "192^-0.5"));
  EXPECT_EQ(with(of_256, 1 / std::sqrt(576.0)), fits(is + "576^-0.5, of the absorbed query"));
  EXPECT_EQ(with(of_256 * m * m, of_256), fits(is + "256^-0.5, without mscale"));
  EXPECT_EQ(with(of_256, of_256 * m * m),
            fits(is + "256^-0.5 with the mscale of a YaRN factor of 40"));
  EXPECT_EQ(with(0.05, 0.05 * std::sqrt(192 / 576.0)),
            fits(is + "that of 576^-0.5 in place of 192^-0.5"));
  EXPECT_EQ(with(0.05, 0.05 / (m * m)), fits(is + "without the mscale of a YaRN factor of 40"));
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

// Every element that is compared comes out so, and still three are no pattern.
TEST_F(InputHints, FourElementsAreEnoughAndThreeAreNot) {
  for (const std::int32_t keys : {3, 4}) {
    TinyRecording recording = testing::logits_recording();
    auto* ke = recording.input("index_logits_prefill", "ke").as<std::int32_t>();
    for (int row = 0; row < 5; ++row)
      ke[row] = row == 1 ? keys : 0;
    testing::compute(recording, "index_logits_prefill");
    const std::string text =
        hint_of_each<float>(recording, "logits", "index_weights_folded",
                            [](float weight, std::int64_t) { return std::max(weight, 0.0f); });
    EXPECT_EQ(says(text, "what comes out where"), keys == 4) << text;
  }
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
