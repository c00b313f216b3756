// A step, operation after operation (spec 1).
#include "dsakit/optimized/mla_cache_write.hpp"
#include "dsakit/optimized/output_gate.hpp"
#include "dsakit/optimized/rms_norm.hpp"
#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/optimized/topk_slots.hpp"
#include "layer/state.hpp"

namespace dsakit::optimized {
namespace {

Status norm_columns(LayerState& state, const std::string& norm, std::int64_t first,
                    std::uint16_t* y) {
  const DeviceNorm& weight = state.norms.at(norm);
  RmsNormParams params{};
  params.x = state.tensors.qkv_a + first;
  params.weight = weight.values;
  params.y = y;
  params.x_stride = state.qkv_a_width();
  params.y_stride = weight.width;
  params.rows = state.plan.tokens;
  params.width = static_cast<std::int32_t>(weight.width);
  params.eps = state.config.rms_norm_eps;
  params.rounding = state.contract.rmsnorm_rounding;
  return launch(state, params);
}

Status write_mla_cache(LayerState& state, const LayerPool& pool) {
  MlaCacheWriteParams params{};
  params.kv_c = state.tensors.kv_c;
  params.k_pe = state.tensors.qkv_a + state.config.q_lora_rank + kLatent;
  params.slot_mapping = pool.slot_mapping;
  params.cache = pool.cache;
  params.kv_c_stride = kLatent;
  params.k_pe_stride = state.qkv_a_width();
  params.page_stride = pool.page_stride;
  params.record_stride = kMlaRecord;
  params.tokens = pool.slots;
  params.pages = pool.pages;
  params.page_size = static_cast<std::int32_t>(state.contract.page_size);
  params.qmax = state.contract.mla.qmax;
  params.encoding = state.contract.mla.mla_fp8_encoding;
  return launch(state, params);
}

Status find_slots(LayerState& state, const LayerStep& step) {
  TopkSlotsParams params{};
  params.topk_indices = step.topk_indices;
  params.block_table = step.mla.block_table;
  params.row_request = state.ids.row_request;
  params.slots = state.tensors.slots;
  params.rows = state.plan.tokens;
  params.table_stride = step.mla.table_columns;
  params.k = static_cast<std::int32_t>(state.config.index_topk);
  params.requests = static_cast<std::int32_t>(state.plan.requests);
  params.table_columns = static_cast<std::int32_t>(step.mla.table_columns);
  params.page_size = static_cast<std::int32_t>(state.contract.page_size);
  params.block_stride = params.page_size;
  return launch(state, params);
}

/// The product of one absorption, a head a batch; x, y and the weight are of the first head.
ProjectionParams absorption(const LayerState& state) {
  const LayerConfig& config = state.config;
  ProjectionParams params{};
  params.weight = state.weights.at("kv_b_proj").values;
  params.weight_batch_stride = (config.qk_nope_head_dim + config.v_head_dim) * kLatent;
  params.rows = state.plan.tokens;
  params.batch = config.heads;
  return params;
}

Status project(LayerState& state, const ProjectionParams& params) {
  if (!state.rehearsal) return state.device.project(params);
  ProjectionParams none = params;
  none.rows = 0;
  return state.device.project(none);
}

/// The latent part of mla_query is a product a head; q_pe is copied beside it.
Status absorb_q(LayerState& state) {
  const LayerConfig& config = state.config;
  const std::int64_t q_dim = state.qk_head_dim(), query_dim = kLatent + kPe;
  const std::uint16_t* q = state.tensors.q;
  std::uint16_t* query = state.tensors.mla_query;
  ProjectionParams params = absorption(state);
  params.x = q;
  params.y = query;
  params.x_batch_stride = q_dim;
  params.x_row_stride = config.heads * q_dim;
  params.weight_out_stride = 1; // W_UK is summed over its rows
  params.weight_in_stride = kLatent;
  params.y_batch_stride = query_dim;
  params.y_row_stride = config.heads * query_dim;
  params.in = config.qk_nope_head_dim;
  params.out = kLatent;
  DSAKIT_TRY(project(state, params));
  if (state.rehearsal) return {};
  constexpr std::int64_t kBytes = sizeof(std::uint16_t);
  return state.device.copy_rows(query + kLatent, query_dim * kBytes, q + config.qk_nope_head_dim,
                                q_dim * kBytes, kPe * kBytes, state.plan.tokens * config.heads);
}

Status attend(LayerState& state, const LayerPool& pool) {
  SparseAttentionParams params{};
  params.q = state.tensors.mla_query;
  params.cache = pool.cache;
  params.slots = state.tensors.slots;
  params.latent = state.tensors.latent;
  params.lse = state.tensors.lse;
  params.q_token_stride = state.config.heads * (kLatent + kPe);
  params.slots_stride = state.config.index_topk;
  params.page_stride = pool.page_stride;
  params.record_stride = kMlaRecord;
  params.tokens = state.plan.tokens;
  params.pages = pool.pages;
  params.heads = static_cast<std::int32_t>(state.config.heads);
  params.k = static_cast<std::int32_t>(state.config.index_topk);
  params.page_size = static_cast<std::int32_t>(state.contract.page_size);
  params.splits = state.config.attention_splits;
  params.softmax_scale = state.config.softmax_scale;
  params.encoding = state.contract.mla.mla_fp8_encoding;
  params.scale_read = state.contract.mla_scale_read;
  params.lse_base = state.contract.lse_base;
  return launch(state, params);
}

Status absorb_v(LayerState& state) {
  const LayerConfig& config = state.config;
  ProjectionParams params = absorption(state);
  params.x = state.tensors.latent;
  params.weight += config.qk_nope_head_dim * kLatent;
  params.y = state.tensors.attn_value;
  params.x_batch_stride = kLatent;
  params.x_row_stride = config.heads * kLatent;
  params.weight_out_stride = kLatent;
  params.weight_in_stride = 1;
  params.y_batch_stride = config.v_head_dim;
  params.y_row_stride = state.value_width();
  params.in = kLatent;
  params.out = config.v_head_dim;
  return project(state, params);
}

Status gate(LayerState& state, const std::uint16_t* hidden_states) {
  DSAKIT_TRY(project(state, "g_proj", hidden_states, state.tensors.gate));
  OutputGateParams params{};
  params.attn_value = state.tensors.attn_value;
  params.gate = state.tensors.gate;
  params.row_lens = state.ids.row_lens;
  params.attn_gated = state.tensors.attn_gated;
  params.attn_value_stride = state.value_width();
  params.gate_stride = state.value_width();
  params.attn_gated_stride = state.value_width();
  params.rows = state.plan.tokens;
  params.width = static_cast<std::int32_t>(state.value_width());
  params.rounding = state.contract.gate_rounding;
  return launch(state, params);
}

} // namespace

Status project(LayerState& state, const std::string& weight, const std::uint16_t* x,
               std::uint16_t* y) {
  const DeviceWeight& w = state.weights.at(weight);
  return project(state, projection(x, w.values, y, state.plan.tokens, w.inputs, w.outputs));
}

Status run_step(LayerState& state, const LayerStep& step) {
  LayerTensors& t = state.tensors;
  const bool gated = state.config.mla_use_output_gate;
  DSAKIT_TRY(project(state, state.qkv_a_proj(), step.hidden_states, t.qkv_a));
  if (state.q_lora()) DSAKIT_TRY(norm_columns(state, "q_a_layernorm", 0, t.index_q_input));
  DSAKIT_TRY(
      project(state, state.q_proj(), state.q_lora() ? t.index_q_input : step.hidden_states, t.q));
  DSAKIT_TRY(norm_columns(state, "kv_a_layernorm", state.config.q_lora_rank, t.kv_c));
  DSAKIT_TRY(run_indexer(state, step));
  DSAKIT_TRY(write_mla_cache(state, step.mla));
  DSAKIT_TRY(find_slots(state, step));
  DSAKIT_TRY(absorb_q(state));
  DSAKIT_TRY(attend(state, step.mla));
  DSAKIT_TRY(absorb_v(state));
  if (gated) DSAKIT_TRY(gate(state, step.hidden_states));
  // A row without a key attends to nothing: zeros, whatever its hidden states hold.
  return project(state, "o_proj", gated ? t.attn_gated : t.attn_value, step.output);
}

} // namespace dsakit::optimized
