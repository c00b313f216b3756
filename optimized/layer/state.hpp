// What a layer on a device holds: its weights, the ids of the prepared step, its intermediates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "dsakit/optimized/kernel.hpp"
#include "dsakit/optimized/layer.hpp"
#include "layer/plan.hpp"

namespace dsakit::optimized {

inline constexpr std::int64_t kLatent = 512;    ///< kv_lora_rank of fp8_ds_mla
inline constexpr std::int64_t kPe = 64;         ///< q and k dims beside the latent
inline constexpr std::int64_t kIndexDim = 128;  ///< index_head_dim
inline constexpr std::int64_t kMlaRecord = 656; ///< BYTES

/// A projection's weight on the device, bf16 [outputs, inputs].
struct DeviceWeight {
  std::int64_t outputs;
  std::int64_t inputs;
  std::uint16_t* values;
};
/// A norm's weight or bias, fp32.
struct DeviceNorm {
  std::int64_t width;
  float* values;
};

/// StepPlan's vectors of these names.
struct DeviceIds {
  std::int32_t* row_lens;
  std::int32_t* row_request;
  std::int32_t* ks;
  std::int32_t* ke;
  std::int32_t* cu_seq_lens;
};

struct LayerState {
  LayerState(Device& on, const LayerConfig& layer, const LayerContract& under);
  ~LayerState();
  LayerState(const LayerState&) = delete;
  LayerState& operator=(const LayerState&) = delete;

  Device& device;
  LayerConfig config;
  LayerContract contract;
  std::map<std::string, DeviceWeight> weights; ///< all that the layer takes
  std::map<std::string, DeviceNorm> norms;
  DeviceIds ids = {};
  LayerTensors tensors = {};
  void* kernel_workspace = nullptr;
  std::size_t kernel_workspace_bytes = 0;
  void* memory = nullptr; ///< the allocation that all of these point into
  std::size_t memory_bytes = 0;
  StepPlan plan;
  bool rehearsal = false; ///< kernels are asked whether they would run, and do not

  const Fp8Indexer* fp8() const { return std::get_if<Fp8Indexer>(&contract.indexer); }
  const Mxfp4Indexer* mxfp4() const { return std::get_if<Mxfp4Indexer>(&contract.indexer); }
  bool q_lora() const { return config.q_lora_rank > 0; }
  std::int64_t qkv_a_width() const { return config.q_lora_rank + kLatent + kPe; }
  std::int64_t qk_head_dim() const { return config.qk_nope_head_dim + kPe; }
  std::int64_t value_width() const { return config.heads * config.v_head_dim; }
  const char* qkv_a_proj() const { return q_lora() ? "fused_qkv_a_proj" : "kv_a_proj_with_mqa"; }
  const char* q_proj() const { return q_lora() ? "q_b_proj" : "q_proj"; }
};

/// Points everything into memory that begins at `base`; returns how many bytes that takes.
std::size_t point_into(LayerState& state, std::uintptr_t base);
/// Allocates it.
Status place(LayerState& state);

/// bad_input for weights that are missing, not known or of other extents; unsupported for wk_index
/// and wv_index in another format than bf16.
Status check_weights(const LayerState& state, const HostLayerWeights& weights);
/// Of checked weights.
Status upload_weights(LayerState& state, const HostLayerWeights& weights);

/// Enqueues the prepared step, which has tokens.
Status run_step(LayerState& state, const LayerStep& step);
/// The indexer's part of it: quantises the queries, norms and writes the new keys, scores every row
/// and fills topk_indices.
Status run_indexer(LayerState& state, const LayerStep& step);

/// y [tokens, outputs] = x [tokens, inputs] times the weight of that name.
Status project(LayerState& state, const std::string& weight, const std::uint16_t* x,
               std::uint16_t* y);

/// Enqueues the chosen kernel on the layer's workspace.
template <class Params>
Status launch(LayerState& state, const Params& params) {
  const auto choice = choose<Params>(state.device.arch(), state.device.description(), params);
  DSAKIT_TRY(choice);
  const Kernel<Params>& kernel = *choice->kernel;
  if (state.rehearsal) {
    state.kernel_workspace_bytes =
        std::max(state.kernel_workspace_bytes, kernel.workspace_bytes(choice->params));
    return {};
  }
  return kernel.launch(choice->params, state.kernel_workspace, state.kernel_workspace_bytes,
                       state.device.stream());
}

} // namespace dsakit::optimized
