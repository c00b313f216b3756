// Recordings of one operation, large enough for a pattern, with outputs that the reference gives.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::testing {

/// Outputs as the reference says, of inputs that may differ from the recorded ones.
inline void compute(TinyRecording& recording, const std::string& operation,
                    const harness::RecordedOperation& inputs, const harness::Attributes& config) {
  harness::RecordedOperation& recorded = recording.operations.at(operation);
  ContractValues contract = recording.contract;
  contract["mla_scale_read"] = "fp32";
  const auto outputs =
      harness::find_adapter(operation)->reference({{0, operation}, contract, inputs, config});
  ASSERT_TRUE(outputs) << outputs.status().what();
  for (const harness::Expected& output : *outputs) {
    harness::RecordedTensor& tensor = recorded.outputs[output.output];
    tensor.tensor = output.value.tensor;
    tensor.axes.assign(tensor.tensor.shape.size(), "axis");
  }
}

inline void compute(TinyRecording& recording, const std::string& operation) {
  compute(recording, operation, recording.operations.at(operation), recording.config);
}

/// A tiny layer with that operation alone.
inline TinyRecording only(const std::string& operation) {
  TinyRecording recording = tiny_layer();
  std::erase_if(recording.operations, [&](const auto& entry) { return entry.first != operation; });
  return recording;
}

inline std::vector<std::uint16_t> normal_bf16(std::int64_t n, std::mt19937& random,
                                              float width = 1) {
  std::normal_distribution<float> normal(0, width);
  return tiny::draw<std::uint16_t>(n, [&] { return reference::float_to_bf16(normal(random)); });
}

/// 6 tokens of 8 heads, which attend to 4 of 8 records; the last two rows have two keys only.
inline TinyRecording attention_recording() {
  TinyRecording recording = only("sparse_attention");
  std::mt19937 random(5);
  harness::RecordedOperation& attention = recording.operations.at("sparse_attention");
  attention.inputs["mla_query"] = tiny::bf16({6, 8, 576}, normal_bf16(6 * 8 * 576, random, 0.5f));
  std::vector<std::int32_t> slots;
  for (int row = 0; row < 6; ++row)
    for (int i = 0; i < 4; ++i)
      slots.push_back(row >= 4 && i >= 2 ? -1 : (3 * row + 2 * i + 1) % 8);
  attention.inputs["slots"] = tiny::tensor(Dtype::int32, {6, 4}, slots);
  attention.outputs["latent"].attributes =
      attention.outputs["lse"].attributes = {{"accumulation", "fp32"}, {"mla_scale_read", "fp32"}};
  compute(recording, "sparse_attention");
  return recording;
}

/// 5 rows against 40 keys, with 16 heads.
inline TinyRecording logits_recording() {
  constexpr std::int64_t kRows = 5, kKeys = 40, kHeads = 16;
  TinyRecording recording = only("index_logits_prefill");
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const auto codes = [&](std::int64_t n) {
    return tiny::draw<std::uint8_t>(n, [&] {
      return reference::encode_fp8_saturating(Fp8Encoding::e4m3fn, 8 * normal(random));
    });
  };
  harness::RecordedOperation& prefill = recording.operations.at("index_logits_prefill");
  prefill.inputs["index_q_fp8"] =
      tiny::tensor(Dtype::float8_e4m3fn, {kRows, kHeads, 128}, codes(kRows * kHeads * 128));
  prefill.inputs["k_fp8"] = tiny::tensor(Dtype::float8_e4m3fn, {kKeys, 128}, codes(kKeys * 128));
  prefill.inputs["k_scale"] = tiny::tensor(
      Dtype::float32, {kKeys},
      tiny::draw<float>(kKeys, [&] { return std::ldexp(1.0f, static_cast<int>(random() % 4)); }));
  prefill.inputs["index_weights_folded"] =
      tiny::tensor(Dtype::float32, {kRows, kHeads},
                   tiny::draw<float>(kRows * kHeads, [&] { return normal(random); }));
  prefill.inputs["ks"] = tiny::tensor(Dtype::int32, {kRows}, std::vector<std::int32_t>(kRows, 0));
  prefill.inputs["ke"] =
      tiny::tensor(Dtype::int32, {kRows}, std::vector<std::int32_t>(kRows, kKeys));
  prefill.inputs.erase("column_origin");
  prefill.outputs["logits"].tensor = Tensor(Dtype::float32, {kRows, kKeys});
  prefill.outputs["logits"].attributes["accumulation"] = "fp32";
  compute(recording, "index_logits_prefill");
  return recording;
}

/// 12 rows of 8 columns, of which the best 4 are wanted: 6 rows are longer than that, 6 are not.
inline TinyRecording topk_recording() {
  TinyRecording recording = only("topk");
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  harness::RecordedOperation& topk = recording.operations.at("topk");
  topk.inputs["logits"] = tiny::tensor(Dtype::float32, {12, 8},
                                       tiny::draw<float>(12 * 8, [&] { return normal(random); }));
  topk.inputs["row_lens"] = tiny::tensor(
      Dtype::int32, {12}, std::vector<std::int32_t>{8, 4, 8, 3, 7, 2, 6, 4, 5, 1, 8, 4});
  topk.outputs["topk_indices"].tensor = Tensor(Dtype::int32, {12, 4});
  compute(recording, "topk");
  return recording;
}

} // namespace dsakit::testing
