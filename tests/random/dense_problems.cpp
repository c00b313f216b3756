// Problems of the dense operations: projections, absorption, norms and the gate.
#include "problems.hpp"

namespace dsakit::testing {
namespace {

using tiny::draw;
using tiny::tensor;

/// The input `x` [rows, in], the weight [out, in], and the output's axes after the first.
void draw_projection(TinyRecording& r, Draw& d, const char* operation, const char* x, const char* y,
                     Shape out) {
  r.contract["activation_dtype"] = "bf16";
  const std::int64_t rows = d.count(40), in = d.one_in(8) ? d.between(1, 9) : d.between(1, 700);
  auto& op = r.operations[operation];
  op.inputs[x] = bf16_tensor({rows, in}, [&] { return d.value(); });
  op.inputs["weight"] = bf16_tensor({element_count(out), in}, [&] { return d.value(); });
  out.insert(out.begin(), rows);
  op.outputs[y] = to_fill(Dtype::bfloat16, out);
}

/// Columns of a wider tensor, with `beside` others after them, or a tensor of their own.
void draw_rms_norm(TinyRecording& r, Draw& d, const char* operation, const char* raw, const char* y,
                   std::int64_t before, std::int64_t beside) {
  r.contract["activation_dtype"] = "bf16";
  r.contract["rmsnorm_rounding"] = d.any({"one", "two"});
  r.config["rms_norm_eps"] = d.any({"1e-5", "1e-6"});
  const std::int64_t rows = d.count(12);
  const std::int64_t dim = d.one_in(4) ? d.any<std::int64_t>({512, 1536}) : 8 * d.between(1, 130);
  const bool wider = d.one_in(2);
  auto& op = r.operations[operation];
  op.inputs[wider ? "qkv_a" : raw] = bf16_tensor({rows, wider ? before + dim + beside : dim}, [&] {
    return d.extreme() && d.one_in(1000) ? std::numeric_limits<float>::quiet_NaN() : d.value();
  });
  const auto weight = [&] { return 1 + 0.1F * d.value(); };
  op.inputs["norm_weight"] = d.one_in(2) ? tensor(Dtype::float32, {dim}, draw<float>(dim, weight))
                                         : bf16_tensor({dim}, weight);
  op.outputs[y] = to_fill(Dtype::bfloat16, {rows, dim});
}

struct HeadSizes {
  std::int64_t tokens, heads, nope, pe, value, latent;
};

HeadSizes draw_heads(TinyRecording& r, Draw& d) {
  r.contract["activation_dtype"] = "bf16";
  return {d.count(20),      d.between(1, 6),   d.between(1, 140),
          d.between(0, 70), d.between(1, 140), d.between(1, 140)};
}

} // namespace

void draw_qkv_a_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "qkv_a_proj", "hidden_states", "qkv_a", {d.between(1, 700)});
}
void draw_q_b_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "q_b_proj", "index_q_input", "q", {d.between(1, 5), d.between(1, 200)});
}
void draw_index_q_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "index_q_proj", "index_q_input", "index_q", {d.between(1, 5), 128});
}
void draw_index_k_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "index_k_proj", "hidden_states", "index_k_raw", {128});
}
void draw_index_w_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "index_w_proj", "hidden_states", "index_weights", {d.between(1, 64)});
}
void draw_gate_proj(TinyRecording& r, Draw& d) {
  draw_projection(r, d, "gate_proj", "hidden_states", "gate", {d.between(1, 500)});
}
void draw_o_proj(TinyRecording& r, Draw& d) {
  const char* x = d.one_in(2) ? "attn_gated" : "attn_value"; // without a gate
  draw_projection(r, d, "o_proj", x, "output", {d.between(1, 500)});
}

void draw_q_norm(TinyRecording& r, Draw& d) {
  draw_rms_norm(r, d, "q_norm", "q_c_raw", "index_q_input", 0, 8 * d.below(80));
}
void draw_kv_norm(TinyRecording& r, Draw& d) {
  draw_rms_norm(r, d, "kv_norm", "kv_c_raw", "kv_c", 8 * d.below(80), 64);
}

void draw_absorb_q(TinyRecording& r, Draw& d) {
  const HeadSizes s = draw_heads(r, d);
  auto& op = r.operations["absorb_q"];
  op.inputs["q"] = bf16_tensor({s.tokens, s.heads, s.nope + s.pe}, [&] { return d.value(); });
  op.inputs["weight"] =
      bf16_tensor({s.heads * (s.nope + s.value), s.latent}, [&] { return d.value(); });
  op.outputs["mla_query"] = to_fill(Dtype::bfloat16, {s.tokens, s.heads, s.latent + s.pe});
}
void draw_absorb_v(TinyRecording& r, Draw& d) {
  const HeadSizes s = draw_heads(r, d);
  auto& op = r.operations["absorb_v"];
  op.inputs["latent"] = bf16_tensor({s.tokens, s.heads, s.latent}, [&] { return d.value(); });
  op.inputs["weight"] =
      bf16_tensor({s.heads * (s.nope + s.value), s.latent}, [&] { return d.value(); });
  op.outputs["attn_value"] = to_fill(Dtype::bfloat16, {s.tokens, s.heads * s.value});
}

void draw_output_gate(TinyRecording& r, Draw& d) {
  r.contract["activation_dtype"] = "bf16";
  r.contract["gate_rounding"] = d.any({"one", "two"});
  const Shape shape = {d.count(20), 8 * d.between(1, 100)};
  auto& op = r.operations["output_gate"];
  // An infinite value times a sigmoid of 0 or nearly 0 is no question of accuracy.
  op.inputs["attn_value"] = bf16_tensor(shape, [&] { return d.value(); });
  op.inputs["gate"] = bf16_tensor(shape, [&] { return d.any_value(); });
  op.outputs["attn_gated"] = to_fill(Dtype::bfloat16, shape);
}

} // namespace dsakit::testing
