// KimiK3DSAAttention on a device: one rank's layer as one run of our kernels and of the library's
// projections (spec 1 to 5), on one stream and without a copy to the host between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dsakit/core/layer_contract.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::optimized {

/// One rank's layer, and the largest step that it takes. Names as in the model's configuration.
struct LayerConfig {
  std::int64_t hidden_size;
  std::int64_t heads;       ///< of the rank
  std::int64_t q_lora_rank; ///< 0: queries are projected from hidden_states
  std::int64_t qk_nope_head_dim;
  std::int64_t v_head_dim;
  std::int64_t index_num_heads;
  std::int64_t index_topk;
  IndexKNorm index_k_norm;
  bool mla_use_output_gate;
  float rms_norm_eps;
  float softmax_scale;
  std::int64_t max_tokens; ///< padding included
  std::int64_t max_requests;
  std::int64_t max_model_len;
  std::int64_t max_total_seq_len;      ///< keys gathered for a chunk of prefill (spec 2.7)
  std::int64_t max_logits_bytes;       ///< of a chunk
  std::int64_t num_speculative_tokens; ///< a request with at most one more new tokens decodes
  bool native_decode; ///< requests with as many new tokens each are scored as [requests, next_n]
  std::int32_t attention_splits; ///< 1 to 64; the bits of the attention depend on it
};

/// A projection's weight [outputs, inputs] in host memory, row-major. W = code * scale.
struct HostWeight {
  WeightFormat format;
  Fp8Encoding encoding; ///< of the fp8 formats
  const void* values;   ///< bf16 bits or e4m3 codes
  const float* scales;  ///< fp8_channel: [outputs]; fp8_block: [ceil(outputs / 128), ceil(inputs /
                        ///< 128)]; bf16: nullptr
  std::int64_t outputs;
  std::int64_t inputs;
};

/// A rank's weights in host memory, by their names in recordings: fused_qkv_a_proj, q_b_proj and
/// q_a_layernorm with q_lora_rank, else kv_a_proj_with_mqa and q_proj; kv_b_proj, o_proj, g_proj
/// with the output gate, wq_index, wk_index, wv_index; kv_a_layernorm, k_index_norm.weight and, for
/// layernorm, k_index_norm.bias.
struct HostLayerWeights {
  std::map<std::string, HostWeight> projections;
  std::map<std::string, std::vector<float>> norms;
};

/// A paged cache and where the step's tokens lie in it; all pointers are device memory.
struct LayerPool {
  std::uint8_t* cache; // index: as IndexCacheWriteParams or its MXFP4 form; mla: [pages, page_size]
                       // records of 656 bytes
  std::int64_t pages;
  std::int64_t page_stride;         // BYTES between pages
  const std::int64_t* slot_mapping; // [slots]; -1 writes nothing
  std::int64_t slots;               // at most the step's tokens
  const std::int32_t* block_table;  // [requests, table_columns]
  std::int64_t table_columns;
};

/// Device memory of one step.
struct LayerStep {
  const std::uint16_t* hidden_states; // [tokens, hidden_size] bf16, 16-byte aligned
  LayerPool index;
  LayerPool mla;
  std::int32_t* topk_indices; // [topk_rows, index_topk]: the buffer that layers share
  std::int64_t topk_rows;     // at least the step's tokens, which are written
  std::uint16_t* output;      // [tokens, hidden_size] bf16; of a rank its share of the sum
};

/// Device memory of the intermediates, T tokens; they hold the last step's. The gathered keys and
/// the logits are those of its last chunk. nullptr: a layer of that kind has none.
struct LayerTensors {
  std::uint16_t* qkv_a;         // [T, q_lora_rank + 576]
  std::uint16_t* index_q_input; // [T, q_lora_rank] normed
  std::uint16_t* q;             // [T, heads, qk_nope_head_dim + 64]
  std::uint16_t* kv_c;          // [T, 512] normed
  std::uint16_t* index_q;       // [T, index heads, 128]
  std::uint16_t* index_weights; // [T, index heads]
  std::uint16_t* index_k_raw;   // [T, 128]
  std::uint16_t* index_k;       // [T, 128] normed
  std::uint8_t* index_q_codes;  // [T, index heads, 128] e4m3 or [T, index heads, 64] e2m1
  void* index_q_scale;          // [T, index heads] fp32 or [T, index heads, 4] e8m0
  float* index_weights_folded;  // [T, index heads], FP8 only
  std::uint8_t* keys;           // [keys, 128] e4m3 or [keys, 64] e2m1
  void* key_scales;             // [keys] fp32 or [keys, 4] e8m0
  float* logits;                // [rows, the chunk's longest request], unwritten beyond a row
  std::int32_t* slots;          // [T, index_topk]
  std::uint16_t* mla_query;     // [T, heads, 576]
  std::uint16_t* latent;        // [T, heads, 512]
  float* lse;                   // [T, heads]
  std::uint16_t* attn_value;    // [T, heads * v_head_dim]
  std::uint16_t* gate;          // [T, heads * v_head_dim]
  std::uint16_t* attn_gated;    // [T, heads * v_head_dim]
};

struct LayerState; // optimized/layer/state.hpp

/// Owns its weights, as bf16, and the workspace of the largest step in one allocation of `device`,
/// which outlives it.
class KimiK3DSAAttention {
public:
  /// unsupported, with the value found, for what the kernels or the projections of the device do
  /// not take; bad_input for a weight that is missing, not known or of other extents.
  static Result<KimiK3DSAAttention> create(Device& device, const LayerConfig& config,
                                           const LayerContract& contract,
                                           const HostLayerWeights& weights);
  KimiK3DSAAttention(KimiK3DSAAttention&&) noexcept;
  KimiK3DSAAttention& operator=(KimiK3DSAAttention&&) noexcept;
  ~KimiK3DSAAttention();

  /// Other values of the same weights. fp8 weights are widened to bf16: W rounds to fp32, then to
  /// bf16. Waits for the device.
  Status load(const HostLayerWeights& weights);

  /// How the rows of the steps that follow lie: the new tokens of all requests in order, then
  /// padding up to `tokens`. query_lens, seq_lens: [requests], new and all tokens. bad_input where
  /// they disagree or are larger than the configuration. Uploads a few ids a row.
  Status prepare(std::int64_t tokens, const std::vector<std::int32_t>& query_lens,
                 const std::vector<std::int32_t>& seq_lens);

  /// Enqueues the step on the device's stream: writes the new tokens to both caches, selects,
  /// attends. Rows [0, tokens) of topk_indices are set, -1 where a row has no more keys; the output
  /// of a row without a key is 0. Neither waits nor allocates, so that it can be captured in a
  /// graph, which serves later prepares of the same tokens and query_lens: decode requests of any
  /// length up to the captured one, 0 included; prefill requests too, where they are cut into the
  /// same chunks.
  /// Without tokens, or where both caches have no pages (a dummy run): ok, nothing is launched.
  Status run(const LayerStep& step);

  LayerTensors tensors() const;
  /// Of the allocation: what the engine must set aside.
  std::size_t device_bytes() const;

private:
  explicit KimiK3DSAAttention(std::unique_ptr<LayerState> state);
  std::unique_ptr<LayerState> state_;
};

} // namespace dsakit::optimized
