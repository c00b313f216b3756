// The layers of layer_problem.hpp on a device.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "dsakit/optimized/layer.hpp"
#include "support/devices.hpp"
#include "support/layer_problem.hpp"

namespace dsakit::testing {

/// What takes steps of up to `tokens` rows and `requests` requests.
inline optimized::LayerConfig device_config(const reference::LayerConfig& config,
                                            std::int64_t tokens, std::int64_t requests) {
  return {.hidden_size = config.hidden_size,
          .heads = config.local_heads(),
          .q_lora_rank = config.q_lora_rank.value_or(0),
          .qk_nope_head_dim = config.head.nope,
          .v_head_dim = config.head.value,
          .index_num_heads = config.dsa->index_num_heads,
          .index_topk = config.dsa->index_topk,
          .index_k_norm = config.dsa->index_k_norm_type == "layernorm" ? IndexKNorm::layernorm
                                                                       : IndexKNorm::rmsnorm,
          .mla_use_output_gate = config.mla_use_output_gate,
          .rms_norm_eps = static_cast<float>(config.rms_norm_eps),
          .softmax_scale = static_cast<float>(config.softmax_scale()),
          .max_tokens = tokens,
          .max_requests = requests,
          .max_model_len = config.max_model_len,
          .max_total_seq_len = 2 * config.max_model_len,
          .max_logits_bytes = std::min<std::int64_t>(config.max_logits_bytes, 1 << 22),
          .num_speculative_tokens = config.num_speculative_tokens,
          .native_decode = config.native_decode,
          .attention_splits = 2};
}

inline optimized::HostLayerWeights host_weights(const reference::LayerWeights& weights) {
  optimized::HostLayerWeights host;
  for (const auto& [name, weight] : weights.projections)
    host.projections[name] = {weight.format,
                              weight.encoding,
                              weight.values.bytes.data(),
                              weight.format == WeightFormat::bf16 ? nullptr
                                                                  : weight.scales.as<float>(),
                              weight.values.shape[0],
                              weight.values.shape[1]};
  for (const auto& [name, values] : weights.norms)
    host.norms[name] = values;
  return host;
}

/// The tensors of one step on the device.
class DeviceStep {
public:
  /// `topk_rows` of the shared buffer: at least the step's tokens.
  DeviceStep(optimized::Device& device, const OwnedStep& step, const reference::LayerConfig& config,
             std::int64_t topk_rows)
      : hidden_states(device, step.hidden_states), slots(device, step.slot_mapping),
        table(device, step.block_table), index_cache(device, step.index_cache),
        mla_cache(device, step.mla_cache),
        topk(device, std::vector<std::int32_t>(
                         static_cast<std::size_t>(topk_rows * config.dsa->index_topk), 77)),
        output(device, std::vector<std::uint16_t>(
                           static_cast<std::size_t>(step.tokens * config.hidden_size), 0xDEAD)),
        pages_(step.pages), index_stride_(step.index_stride), tokens_(step.tokens),
        columns_(step.columns), topk_rows_(topk_rows) {}

  optimized::LayerStep view() {
    const auto pool = [&](std::uint8_t* cache, std::int64_t stride) {
      return optimized::LayerPool{cache,   pages_,       stride,  slots.data(),
                                  tokens_, table.data(), columns_};
    };
    return {hidden_states.data(),
            pool(index_cache.data(), index_stride_),
            pool(mla_cache.data(), kLayerPage * 656),
            topk.data(),
            topk_rows_,
            output.data()};
  }

  OnDevice<std::uint16_t> hidden_states;
  OnDevice<std::int64_t> slots;
  OnDevice<std::int32_t> table;
  OnDevice<std::uint8_t> index_cache, mla_cache;
  OnDevice<std::int32_t> topk;
  OnDevice<std::uint16_t> output;

private:
  std::int64_t pages_, index_stride_, tokens_, columns_, topk_rows_;
};

} // namespace dsakit::testing
