// One allocation for everything that a layer owns.
#include <cstddef>

#include "layer/state.hpp"

namespace dsakit::optimized {
namespace {

/// Hands out aligned parts of what begins at `base`.
class Parts {
public:
  explicit Parts(std::uintptr_t base) : base_(base) {}

  template <class T>
  T* take(std::int64_t elements) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(elements) * sizeof(T)));
  }
  void* take_bytes(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    void* part = reinterpret_cast<void*>(base_ + used_);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }
  std::size_t used() const { return used_; }

private:
  std::uintptr_t base_;
  std::size_t used_ = 0;
};

} // namespace

std::size_t point_into(LayerState& state, std::uintptr_t base) {
  Parts parts(base);
  const LayerConfig& config = state.config;
  const std::int64_t tokens = config.max_tokens;
  for (auto& [name, weight] : state.weights)
    weight.values = parts.take<std::uint16_t>(weight.outputs * weight.inputs);
  for (auto& [name, norm] : state.norms)
    norm.values = parts.take<float>(norm.width);

  for (std::int32_t** ids :
       {&state.ids.row_lens, &state.ids.row_request, &state.ids.ks, &state.ids.ke})
    *ids = parts.take<std::int32_t>(tokens);
  state.ids.cu_seq_lens = parts.take<std::int32_t>(most_bounds(config));

  LayerTensors& t = state.tensors;
  const auto activations = [&](std::int64_t width) {
    return parts.take<std::uint16_t>(tokens * width);
  };
  t.qkv_a = activations(state.qkv_a_width());
  if (state.q_lora()) t.index_q_input = activations(config.q_lora_rank);
  t.q = activations(config.heads * state.qk_head_dim());
  t.kv_c = activations(kLatent);
  t.index_q = activations(config.index_num_heads * kIndexDim);
  t.index_weights = activations(config.index_num_heads);
  t.index_k_raw = activations(kIndexDim);
  t.index_k = activations(kIndexDim);
  // A scale is 4 bytes in both formats: an fp32 or four e8m0.
  const std::int64_t code_bytes = state.fp8() ? kIndexDim : kIndexDim / 2;
  t.index_q_codes = parts.take<std::uint8_t>(tokens * config.index_num_heads * code_bytes);
  t.index_q_scale = parts.take<float>(tokens * config.index_num_heads);
  if (state.fp8()) t.index_weights_folded = parts.take<float>(tokens * config.index_num_heads);
  // One request has its own chunk, whatever it needs.
  const std::int64_t keys = std::max(config.max_total_seq_len, config.max_model_len);
  t.keys = parts.take<std::uint8_t>(keys * code_bytes);
  t.key_scales = parts.take<float>(keys);
  t.logits = parts.take<float>(std::max(
      config.max_logits_bytes / static_cast<std::int64_t>(sizeof(float)), config.max_model_len));
  t.slots = parts.take<std::int32_t>(tokens * config.index_topk);
  t.mla_query = activations(config.heads * (kLatent + kPe));
  t.latent = activations(config.heads * kLatent);
  t.lse = parts.take<float>(tokens * config.heads);
  t.attn_value = activations(state.value_width());
  if (config.mla_use_output_gate) {
    t.gate = activations(state.value_width());
    t.attn_gated = activations(state.value_width());
  }
  state.kernel_workspace = parts.take_bytes(state.kernel_workspace_bytes);
  return parts.used();
}

LayerState::LayerState(Device& on, const LayerConfig& layer, const LayerContract& under)
    : device(on), config(layer), contract(under) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t of_queries = q_lora() ? config.q_lora_rank : hidden;
  const auto add = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    weights[name] = {outputs, inputs, nullptr};
  };
  add(qkv_a_proj(), qkv_a_width(), hidden);
  add(q_proj(), config.heads * qk_head_dim(), of_queries);
  add("kv_b_proj", config.heads * (config.qk_nope_head_dim + config.v_head_dim), kLatent);
  if (config.mla_use_output_gate) add("g_proj", value_width(), hidden);
  add("o_proj", hidden, value_width());
  add("wq_index", config.index_num_heads * kIndexDim, of_queries);
  add("wk_index", kIndexDim, hidden);
  add("wv_index", config.index_num_heads, hidden);
  if (q_lora()) norms["q_a_layernorm"] = {config.q_lora_rank, nullptr};
  norms["kv_a_layernorm"] = {kLatent, nullptr};
  norms["k_index_norm.weight"] = {kIndexDim, nullptr};
  if (config.index_k_norm == IndexKNorm::layernorm)
    norms["k_index_norm.bias"] = {kIndexDim, nullptr};
}

LayerState::~LayerState() {
  if (memory) device.release(memory);
}

Status place(LayerState& state) {
  const std::size_t bytes = point_into(state, 0);
  const auto memory = state.device.allocate(bytes);
  DSAKIT_TRY(memory);
  state.memory = *memory;
  state.memory_bytes = bytes;
  point_into(state, reinterpret_cast<std::uintptr_t>(state.memory));
  return {};
}

} // namespace dsakit::optimized
