// What the layer is built from: the model's and the engine's settings, the contract, the weights
// (spec 0.4, 1, 7).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/layer_contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"
#include "dsakit/reference/dense.hpp"

namespace dsakit::reference {

/// The model's `dsa_config`, under its names.
struct DsaConfig {
  std::int64_t index_num_heads;
  std::int64_t index_head_dim;
  std::int64_t index_topk;
  std::int64_t index_rope_dim;
  std::optional<std::int64_t> index_topk_freq;
  std::string index_k_norm_type; ///< layernorm | rmsnorm
};

/// The model's `rope_parameters`: the layer rotates nothing, but scales as they say.
struct RopeParameters {
  std::string rope_type; ///< "default", or one that scales
  double factor;
  double mscale_all_dim;
};

/// The engine's parallelism.
struct Parallelism {
  std::int64_t tensor_parallel_size;
  std::int64_t prefill_context_parallel_size;
  std::int64_t decode_context_parallel_size;
  std::int64_t cp_kv_cache_interleave_size = 1; ///< positions in a row on one of those ranks
};

struct LayerConfig {
  // The model.
  std::int64_t hidden_size;
  std::int64_t num_attention_heads;
  std::optional<std::int64_t> q_lora_rank;
  HeadDims head; ///< qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank
  double rms_norm_eps;
  bool mla_use_nope;
  bool mla_use_output_gate;
  RopeParameters rope;
  std::optional<DsaConfig> dsa;
  // The engine.
  Parallelism parallel;
  bool reduce_results;
  std::string cache_dtype;      ///< resolved: fp8_ds_mla
  std::string indexer_kv_dtype; ///< fp8 | mxfp4
  std::int64_t max_model_len;
  std::int64_t max_num_seqs;
  std::int64_t num_speculative_tokens;
  std::int64_t max_cudagraph_capture_size;
  std::int64_t max_logits_bytes; ///< of a chunk of the indexer's prefill (spec 2.7)
  bool native_decode;            ///< decode rows as [requests, next_n] (spec 2.9), else flattened

  /// Of q and k, before absorption.
  std::int64_t qk_head_dim() const { return head.nope + head.pe; }
  /// Heads of a rank; num_attention_heads is padded up to a multiple of the ranks.
  std::int64_t local_heads() const {
    return (num_attention_heads + parallel.tensor_parallel_size - 1) /
           parallel.tensor_parallel_size;
  }
  /// Keys that a prefill chunk may gather (spec 2.7).
  std::int64_t max_total_seq_len() const { return 40 * max_model_len; }
  /// Rows of dcp_scores: the largest decode step (spec 6).
  std::int64_t decode_rows() const {
    return std::max(max_num_seqs * (1 + num_speculative_tokens), max_cudagraph_capture_size);
  }
  bool use_fp4() const { return indexer_kv_dtype == "mxfp4"; }
  double softmax_scale() const;
};

/// The rank's one buffer of selected positions, which layers share: [rows, columns].
struct TopkBuffer {
  std::int32_t* data;
  std::int64_t rows;
  std::int64_t columns; ///< index_topk
};

/// Everything of spec 7 that a configuration can break, in its order; each failure names the value
/// found. Success: what is worth a warning (heads padded up).
Result<std::vector<std::string>> check_layer(const LayerConfig& config, const TopkBuffer& topk);

using dsakit::Fp8Indexer;
using dsakit::LayerContract;
using dsakit::Mxfp4Indexer;

/// From a recording's keys. The page layout says which indexer; mla_scale_read is that of the
/// outputs, which recordings do not hold as a key.
Result<LayerContract> parse_layer_contract(const ContractValues& values,
                                           MlaScaleRead mla_scale_read);

/// A projection's weight that owns its values; Weight views it.
struct WeightTensor {
  WeightFormat format;
  Fp8Encoding encoding; ///< of the fp8 formats
  Tensor values;        ///< [outputs, inputs] bfloat16, or fp8 codes
  Tensor scales;        ///< float32, as Weight::scales; empty for bf16

  Weight view() const;
};

/// A layer's weights under the names that recordings use.
///   projections: fused_qkv_a_proj and q_b_proj with q_lora_rank, else kv_a_proj_with_mqa and
///     q_proj; kv_b_proj, o_proj, g_proj with the output gate, wq_index, wk_index, wv_index
///   norms (fp32): q_a_layernorm with q_lora_rank, kv_a_layernorm, k_index_norm.weight, and
///     k_index_norm.bias for layernorm
struct LayerWeights {
  std::map<std::string, WeightTensor> projections;
  std::map<std::string, std::vector<float>> norms;
};

/// Name and extents of each weight that a rank of the layer takes.
struct WeightShape {
  std::string name;
  Shape shape; ///< [outputs, inputs], or [width] of a norm
};
std::vector<WeightShape> weight_shapes(const LayerConfig& config);

/// bad_input for a weight that is missing, not known or of other extents; unsupported for wk_index
/// or wv_index in another format than bf16.
Status check_weights(const LayerConfig& config, const LayerWeights& weights);

/// The weights of one rank: its heads of q_b_proj (or q_proj), kv_b_proj, g_proj and o_proj, zero
/// for those past num_attention_heads; the others are replicated. `whole` has the model's heads,
/// whatever config.parallel says. unsupported where a rank's rows split an fp8_block.
Result<LayerWeights> slice_weights(const LayerConfig& config, const LayerWeights& whole,
                                   std::int64_t rank);

} // namespace dsakit::reference
