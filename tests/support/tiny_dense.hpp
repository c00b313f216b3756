// A small recording of the layer's dense operations, made by the reference, to be changed and
// written: 3 rows, 2 heads, and the MLA cache write that takes kv_c and k_pe.
#pragma once

#include <random>
#include <string>
#include <utility>

#include "dsakit/harness/operations.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::testing {

namespace tiny {

/// Computes the outputs of the operation, which have their forms, with the reference.
inline void fill_outputs(TinyRecording& r, const std::string& name) {
  harness::RecordedOperation& operation = r.operations.at(name);
  const auto expected =
      harness::find_adapter(name)->reference({{0, name}, r.contract, operation, r.config});
  ASSERT_TRUE(expected) << name << ": " << expected.status().what();
  for (const harness::Expected& output : *expected)
    operation.outputs.at(output.output).tensor = output.value.tensor;
}

} // namespace tiny

inline TinyRecording tiny_dense() {
  using namespace tiny;
  constexpr std::int64_t kRows = 3, kHidden = 16, kQLora = 24, kHeads = 2, kNope = 8, kValue = 16;
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  const auto normals = [&](Shape shape, float mean = 0) {
    const auto bits = draw<std::uint16_t>(
        element_count(shape), [&] { return reference::float_to_bf16(mean + normal(random)); });
    return bf16(std::move(shape), bits);
  };
  TinyRecording r;
  r.contract.insert({{"gate_rounding", "two"},
                     {"rmsnorm_rounding", "two"},
                     {"mla_fp8_encoding", "e4m3fn"},
                     {"mla_record", "fp8_ds_mla"}});
  r.config = {{"rms_norm_eps", "1e-5"}};
  const auto hidden_states = normals({kRows, kHidden});
  const auto add = [&](const std::string& name, const char* x, const harness::RecordedTensor& input,
                       const char* parameter, harness::RecordedTensor value, const char* y,
                       Shape shape) {
    auto& operation = r.operations[name];
    operation.inputs[x] = input;
    operation.inputs[parameter] = std::move(value);
    operation.outputs[y] = bf16(std::move(shape), {});
    fill_outputs(r, name);
    return operation.outputs[y];
  };
  const auto qkv_a = add("qkv_a_proj", "hidden_states", hidden_states, "weight",
                         normals({kQLora + 576, kHidden}), "qkv_a", {kRows, kQLora + 576});
  const auto index_q_input = add("q_norm", "qkv_a", qkv_a, "norm_weight", normals({kQLora}, 1),
                                 "index_q_input", {kRows, kQLora});
  const auto q = add("q_b_proj", "index_q_input", index_q_input, "weight",
                     normals({kHeads * (kNope + 64), kQLora}), "q", {kRows, kHeads, kNope + 64});
  const auto kv_c =
      add("kv_norm", "qkv_a", qkv_a, "norm_weight", normals({512}, 1), "kv_c", {kRows, 512});
  add("index_q_proj", "index_q_input", index_q_input, "weight", normals({3 * 128, kQLora}),
      "index_q", {kRows, 3, 128});
  add("index_k_proj", "hidden_states", hidden_states, "weight", normals({128, kHidden}),
      "index_k_raw", {kRows, 128});
  add("index_w_proj", "hidden_states", hidden_states, "weight", normals({3, kHidden}),
      "index_weights", {kRows, 3});

  auto& write = r.operations["mla_cache_write"];
  auto k_pe = bf16({kRows, 64}, {});
  for (std::int64_t row = 0; row < kRows; ++row)
    std::copy_n(qkv_a.tensor.as<std::uint16_t>() + (row + 1) * (kQLora + 576) - 64, 64,
                k_pe.tensor.as<std::uint16_t>() + row * 64);
  write.inputs["kv_c"] = kv_c;
  write.inputs["k_pe"] = k_pe;
  write.inputs["slot_mapping"] = tensor<std::int64_t>(Dtype::int64, {kRows}, {2, 0, 1});
  write.inputs["mla_cache"] = tensor<std::uint8_t>(Dtype::uint8, {2, 2, 656}, {});
  write.outputs["mla_cache"] = write.inputs["mla_cache"];
  fill_outputs(r, "mla_cache_write");

  const auto kv_b = normals({kHeads * (kNope + kValue), 512});
  add("absorb_q", "q", q, "weight", kv_b, "mla_query", {kRows, kHeads, 576});
  const auto attn_value = add("absorb_v", "latent", normals({kRows, kHeads, 512}), "weight", kv_b,
                              "attn_value", {kRows, kHeads * kValue});
  const auto gate = add("gate_proj", "hidden_states", hidden_states, "weight",
                        normals({kHeads * kValue, kHidden}), "gate", {kRows, kHeads * kValue});
  const auto attn_gated = add("output_gate", "attn_value", attn_value, "gate", gate, "attn_gated",
                              {kRows, kHeads * kValue});
  add("o_proj", "attn_gated", attn_gated, "weight", normals({kHidden, kHeads * kValue}), "output",
      {kRows, kHidden});
  return r;
}

} // namespace dsakit::testing
