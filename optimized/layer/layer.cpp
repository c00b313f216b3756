#include "dsakit/optimized/layer.hpp"

#include <limits>
#include <string>
#include <utility>

#include "layer/state.hpp"

namespace dsakit::optimized {
namespace {

/// What no kernel is asked about.
Status check_config(const LayerConfig& config, const LayerContract& contract) {
  const std::pair<const char*, std::int64_t> positive[] = {
      {"hidden_size", config.hidden_size},
      {"heads", config.heads},
      {"qk_nope_head_dim", config.qk_nope_head_dim},
      {"v_head_dim", config.v_head_dim},
      {"index_num_heads", config.index_num_heads},
      {"index_topk", config.index_topk},
      {"max_tokens", config.max_tokens},
      {"max_requests", config.max_requests},
      {"max_model_len", config.max_model_len},
      {"max_total_seq_len", config.max_total_seq_len},
      {"max_logits_bytes", config.max_logits_bytes},
      {"attention_splits", config.attention_splits}};
  for (const auto& [name, value] : positive)
    if (value < 1) return bad_input(found(name, value, "at least 1"));
  constexpr std::int64_t kMostKeys = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, value] : {std::pair{"max_model_len", config.max_model_len},
                                    {"max_total_seq_len", config.max_total_seq_len}})
    if (value > kMostKeys)
      return unsupported(found(name, value, "at most " + std::to_string(kMostKeys)));
  if (contract.activation_dtype != ActivationDtype::bf16)
    return unsupported("activation_dtype: found fp16, want bf16");
  if (const auto* fp8 = std::get_if<Fp8Indexer>(&contract.indexer);
      fp8 && (fp8->key.scale_kind != ScaleKind::ue8m0 || fp8->query.scale_kind != ScaleKind::ue8m0))
    return unsupported("scale_kind: found fp32, want ue8m0");
  return {};
}

/// Asks every kernel whether it would run a step of decode and one of prefill rows, and sizes their
/// workspace for the largest. No kernel looks at what a pointer points to.
Status rehearse(LayerState& state) {
  constexpr std::uintptr_t kNowhere = 256; // aligned as an allocation is
  const LayerConfig& config = state.config;
  point_into(state, kNowhere);
  const auto pool = [&](std::int64_t record) {
    return LayerPool{reinterpret_cast<std::uint8_t*>(kNowhere),
                     1,
                     state.contract.page_size * record,
                     reinterpret_cast<const std::int64_t*>(kNowhere),
                     0,
                     reinterpret_cast<const std::int32_t*>(kNowhere),
                     1};
  };
  const LayerStep step{reinterpret_cast<const std::uint16_t*>(kNowhere),
                       pool(state.fp8() ? 132 : 68),
                       pool(kMlaRecord),
                       reinterpret_cast<std::int32_t*>(kNowhere),
                       config.max_tokens,
                       reinterpret_cast<std::uint16_t*>(kNowhere)};
  state.rehearsal = true;
  for (const bool decode : {false, true}) {
    Chunk chunk{};
    chunk.decode = decode;
    chunk.requests = 1;
    chunk.rows = 1;
    chunk.longest = config.max_model_len;
    chunk.keys = decode ? 0 : config.max_model_len;
    state.plan = {};
    state.plan.tokens = config.max_tokens;
    state.plan.requests = 1;
    state.plan.chunks.push_back(chunk);
    DSAKIT_TRY(run_step(state, step));
  }
  state.rehearsal = false;
  state.plan = {};
  return {};
}

Status check_pool(const LayerState& state, const std::string& name, const LayerPool& pool) {
  if (pool.slots < 0 || pool.slots > state.plan.tokens)
    return bad_input(found(name + " slots", pool.slots,
                           "0 to the " + std::to_string(state.plan.tokens) + " of the step"));
  if (state.plan.longest > pool.table_columns * state.contract.page_size)
    return bad_input(found("seq_lens", state.plan.longest,
                           "at most the " +
                               std::to_string(pool.table_columns * state.contract.page_size) +
                               " tokens of a row of " + name + "_block_table"));
  return {};
}

} // namespace

KimiK3DSAAttention::KimiK3DSAAttention(std::unique_ptr<LayerState> state)
    : state_(std::move(state)) {}
KimiK3DSAAttention::KimiK3DSAAttention(KimiK3DSAAttention&&) noexcept = default;
KimiK3DSAAttention& KimiK3DSAAttention::operator=(KimiK3DSAAttention&&) noexcept = default;
KimiK3DSAAttention::~KimiK3DSAAttention() = default;

Result<KimiK3DSAAttention> KimiK3DSAAttention::create(Device& device, const LayerConfig& config,
                                                      const LayerContract& contract,
                                                      const HostLayerWeights& weights) {
  DSAKIT_TRY(check_config(config, contract));
  auto state = std::make_unique<LayerState>(device, config, contract);
  DSAKIT_TRY(check_weights(*state, weights));
  DSAKIT_TRY(rehearse(*state));
  DSAKIT_TRY(place(*state));
  DSAKIT_TRY(upload_weights(*state, weights));
  return KimiK3DSAAttention(std::move(state));
}

Status KimiK3DSAAttention::load(const HostLayerWeights& weights) {
  DSAKIT_TRY(check_weights(*state_, weights));
  return upload_weights(*state_, weights);
}

Status KimiK3DSAAttention::prepare(std::int64_t tokens, const std::vector<std::int32_t>& query_lens,
                                   const std::vector<std::int32_t>& seq_lens) {
  auto plan = plan_step(state_->config, tokens, query_lens, seq_lens);
  DSAKIT_TRY(plan);
  state_->plan = std::move(*plan);
  const StepPlan& ready = state_->plan;
  const DeviceIds& ids = state_->ids;
  for (const auto& [to, from] : {std::pair{ids.row_lens, &ready.row_lens},
                                 {ids.row_request, &ready.row_request},
                                 {ids.ks, &ready.ks},
                                 {ids.ke, &ready.ke},
                                 {ids.cu_seq_lens, &ready.cu_seq_lens}})
    if (!from->empty())
      DSAKIT_TRY(state_->device.upload(to, from->data(), from->size() * sizeof(std::int32_t)));
  return {};
}

Status KimiK3DSAAttention::run(const LayerStep& step) {
  const bool dummy = step.index.pages == 0 && step.mla.pages == 0;
  if (state_->plan.tokens == 0 || dummy) return {};
  if (step.topk_rows < state_->plan.tokens)
    return bad_input(found("topk_indices_buffer rows", step.topk_rows,
                           "at least the " + std::to_string(state_->plan.tokens) + " of the step"));
  DSAKIT_TRY(check_pool(*state_, "index", step.index));
  DSAKIT_TRY(check_pool(*state_, "mla", step.mla));
  return run_step(*state_, step);
}

LayerTensors KimiK3DSAAttention::tensors() const {
  return state_->tensors;
}

std::size_t KimiK3DSAAttention::device_bytes() const {
  return state_->memory_bytes;
}

} // namespace dsakit::optimized
