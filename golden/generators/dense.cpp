// The dense operations of a small layer: projections, norms, absorption and the gate, with one
// rounding and with two, with q_lora and the gate and without.
#include <cmath>

#include "generator.hpp"

namespace dsakit::golden {
namespace {

constexpr std::int64_t kRows = 18; // more than a block of the host's projections
constexpr std::int64_t kHidden = 64;
constexpr std::int64_t kQLora = 40;
constexpr std::int64_t kLatent = 264; // 33 chunks of 8: one for the second half of an AMD wave
constexpr std::int64_t kPe = 64;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kNope = 16;
constexpr std::int64_t kValue = 24;
constexpr std::int64_t kIndexHeads = 2;
constexpr std::int64_t kIndexDim = 128;

/// Variance 1 / inputs, times `size`^2: outputs are of the size of the inputs, times `size`.
RecordedTensor weight(Random& random, std::int64_t outputs, std::int64_t inputs, float size = 1) {
  const float scale = size / std::sqrt(static_cast<float>(inputs));
  return bf16({outputs, inputs}, {"output", "input"},
              [&](std::int64_t) { return scale * random.normal(); });
}

RecordedTensor norm_weight(Random& random, std::int64_t dim) {
  return bf16({dim}, {"dim"}, [&](std::int64_t) { return 1 + 0.2F * random.normal(); });
}

RecordedTensor rows_of(std::int64_t dim) {
  return empty(Dtype::bfloat16, {kRows, dim}, {"token", "dim"});
}
RecordedTensor rows_of(std::int64_t heads, std::int64_t dim) {
  return empty(Dtype::bfloat16, {kRows, heads, dim}, {"token", "head", "dim"});
}

void dense_step(Golden& golden, std::int64_t number, bool whole) {
  golden.step(number, whole
                          ? ContractValues{}
                          : ContractValues{{"gate_rounding", "one"}, {"rmsnorm_rounding", "one"}});
  Random random(static_cast<std::uint64_t>(number) + 40);
  const RecordedTensor hidden_states = bf16(
      {kRows, kHidden}, {"token", "dim"}, [&](std::int64_t i) { // an outlier channel, small rows
        return random.normal() * (i % kHidden == 3 ? 30.0F : 1.0F) *
               (i / kHidden % 5 == 4 ? 1e-3F : 1);
      });
  const auto project = [&](const char* operation, const char* x, const RecordedTensor& input,
                           RecordedTensor w, const char* y, RecordedTensor output) {
    return golden.add(operation, {{x, input}, {"weight", std::move(w)}}, {{y, std::move(output)}})
        .at(y);
  };
  const std::int64_t columns = (whole ? kQLora : 0) + kLatent + kPe;
  const RecordedTensor qkv_a = project("qkv_a_proj", "hidden_states", hidden_states,
                                       weight(random, columns, kHidden), "qkv_a", rows_of(columns));
  RecordedTensor index_q_input = hidden_states;
  if (whole)
    index_q_input =
        golden
            .add("q_norm", {{"qkv_a", qkv_a}, {"norm_weight", norm_weight(random, kQLora)}},
                 {{"index_q_input", rows_of(kQLora)}})
            .at("index_q_input");
  const std::int64_t inputs = index_q_input.tensor.shape[1];
  const RecordedTensor q =
      project("q_b_proj", "index_q_input", index_q_input,
              weight(random, kHeads * (kNope + kPe), inputs), "q", rows_of(kHeads, kNope + kPe));
  golden.add("kv_norm", {{"qkv_a", qkv_a}, {"norm_weight", norm_weight(random, kLatent)}},
             {{"kv_c", rows_of(kLatent)}});
  project("index_q_proj", "index_q_input", index_q_input,
          weight(random, kIndexHeads * kIndexDim, inputs), "index_q",
          rows_of(kIndexHeads, kIndexDim));
  project("index_k_proj", "hidden_states", hidden_states, weight(random, kIndexDim, kHidden),
          "index_k_raw", rows_of(kIndexDim));
  project("index_w_proj", "hidden_states", hidden_states, weight(random, kIndexHeads, kHidden),
          "index_weights", rows_of(kIndexHeads));

  const RecordedTensor kv_b = weight(random, kHeads * (kNope + kValue), kLatent);
  project("absorb_q", "q", q, kv_b, "mla_query", rows_of(kHeads, kLatent + kPe));
  const RecordedTensor latent = bf16({kRows, kHeads, kLatent}, {"token", "head", "dim"},
                                     [&](std::int64_t) { return random.normal(); });
  const RecordedTensor attn_value =
      project("absorb_v", "latent", latent, kv_b, "attn_value", rows_of(kHeads * kValue));
  const RecordedTensor gate =
      project("gate_proj", "hidden_states", hidden_states,
              weight(random, kHeads * kValue, kHidden, 0.5F), "gate", rows_of(kHeads * kValue));
  const RecordedTensor attn_gated =
      golden
          .add("output_gate", {{"attn_value", attn_value}, {"gate", gate}},
               {{"attn_gated", rows_of(kHeads * kValue)}})
          .at("attn_gated");
  project("o_proj", whole ? "attn_gated" : "attn_value", whole ? attn_gated : attn_value,
          weight(random, kHidden, kHeads * kValue), "output", rows_of(kHidden));
}

} // namespace

void dense_file(const std::string& folder) {
  Golden golden(
      folder, "generated_dense",
      {{"activation_dtype", "bf16"}, {"gate_rounding", "two"}, {"rmsnorm_rounding", "two"}},
      {{"rms_norm_eps", "1e-5"}});
  dense_step(golden, 0, true);
  dense_step(golden, 1, false);
  golden.commit();
}

} // namespace dsakit::golden
