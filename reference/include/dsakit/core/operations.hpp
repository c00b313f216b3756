// The operations in causal order, with the names of their tensors and their contract keys.
// Recordings, kernels, rules and reports all use these names (design 5). The indexer's exist in FP8
// and in MXFP4, attention reads two records: one name, an entry for each format.
#pragma once

#include <string_view>

namespace dsakit {

/// Space-separated names, so that the table reads as one.
struct Operation {
  std::string_view name;
  std::string_view inputs;              ///< required; "a|b": exactly one of them
  std::string_view optional;            ///< inputs that may be missing
  std::string_view outputs;             ///< required
  std::string_view contract;            ///< keys that a recording of it must hold
  std::string_view config;              ///< numbers that its /config must hold
  std::string_view output_attributes;   ///< contract keys that each output holds for its producer
  std::string_view format{};            ///< of operations that exist in two: fp8 or mxfp4, or the
                                        ///< mla_record
  std::string_view optional_outputs{};  ///< outputs that a recording may lack
  std::string_view optional_contract{}; ///< keys that it may hold, all of them or none
};

inline constexpr Operation kOperations[] = {
    {"qkv_a_proj", "hidden_states weight", "weight_scale", "qkv_a", "activation_dtype", "", ""},
    {"q_norm", "qkv_a|q_c_raw norm_weight", "", "index_q_input",
     "activation_dtype rmsnorm_rounding", "rms_norm_eps", ""},
    {"q_b_proj", "index_q_input weight", "weight_scale", "q", "activation_dtype", "", ""},
    {"kv_norm", "qkv_a|kv_c_raw norm_weight", "", "kv_c", "activation_dtype rmsnorm_rounding",
     "rms_norm_eps", ""},
    {"index_q_proj", "index_q_input weight", "weight_scale", "index_q", "activation_dtype", "", ""},
    {"index_k_proj", "hidden_states weight", "", "index_k_raw", "activation_dtype", "", ""},
    {"index_w_proj", "hidden_states weight", "", "index_weights", "activation_dtype", "", ""},
    {"index_query_quant", "index_q", "", "index_q_fp8 index_q_scale",
     "index_fp8_encoding activation_dtype scale_kind index_q_floor qmax", "", "", "fp8"},
    {"index_query_quant", "index_q", "", "index_q_packed index_q_scale",
     "activation_dtype hadamard", "", "", "mxfp4"},
    {"index_weights_fold", "index_weights index_q_scale", "", "index_weights_folded",
     "weight_fold activation_dtype", "", ""},
    {"index_key_norm", "index_k_raw norm_weight", "norm_bias", "index_k",
     "activation_dtype index_k_norm rmsnorm_rounding", "rms_norm_eps", ""},
    {"index_cache_write", "index_k slot_mapping index_cache", "", "index_cache",
     "index_fp8_encoding index_page_layout page_size activation_dtype scale_kind index_k_floor "
     "qmax",
     "", "", "fp8"},
    {"index_cache_write", "index_k slot_mapping index_cache", "", "index_cache",
     "index_page_layout page_size activation_dtype hadamard", "", "", "mxfp4"},
    {"index_cache_gather", "index_cache block_table cu_seq_lens", "row_request k_fp8 k_scale",
     "k_fp8 k_scale", "index_fp8_encoding index_page_layout page_size", "", "", "fp8"},
    {"index_cache_gather", "index_cache block_table cu_seq_lens", "row_request k_packed k_scale",
     "k_packed k_scale", "index_page_layout page_size", "", "", "mxfp4"},
    {"index_logits_prefill", "index_q_fp8 k_fp8 k_scale index_weights_folded ks ke",
     "column_origin", "logits", "index_fp8_encoding", "", "accumulation", "fp8"},
    {"index_logits_prefill", "index_q_packed index_q_scale k_packed k_scale index_weights ks ke",
     "column_origin", "logits", "activation_dtype", "", "accumulation", "mxfp4"},
    {"index_logits_decode", "index_q_fp8 index_cache index_weights_folded block_table row_lens",
     "row_request", "logits", "index_fp8_encoding index_page_layout page_size", "", "accumulation",
     "fp8"},
    {"index_logits_decode",
     "index_q_packed index_q_scale index_cache index_weights block_table row_lens", "row_request",
     "logits", "index_page_layout page_size activation_dtype", "", "accumulation", "mxfp4"},
    {"topk", "logits row_lens", "logits_band", "topk_indices", "tie_rule topk_order", "", "", "",
     "dcp_scores", "dcp_world dcp_interleave"},
    {"dcp_topk_merge", "rank_scores rank_indices", "", "topk_indices", "topk_order", "", ""},
    {"mla_cache_write", "kv_c k_pe slot_mapping mla_cache", "", "mla_cache",
     "mla_fp8_encoding mla_record page_size activation_dtype qmax", "", ""},
    {"topk_slots", "topk_indices block_table row_request", "row_lens", "slots", "page_size", "", "",
     "", "compact_slots counts", "dcp_world dcp_interleave"},
    {"absorb_q", "q weight", "weight_scale", "mla_query", "activation_dtype", "", ""},
    {"sparse_attention", "mla_query mla_cache slots", "", "latent lse",
     "mla_fp8_encoding mla_record page_size lse_base", "softmax_scale",
     "accumulation mla_scale_read", "fp8_ds_mla"},
    {"sparse_attention", "mla_query mla_cache slots", "", "latent", "mla_record", "softmax_scale",
     "accumulation", "bf16_576"},
    {"dcp_attention_merge", "rank_latent rank_lse", "", "lse", "lse_base", "", "accumulation", "",
     "latent corrected"},
    {"absorb_v", "latent weight", "weight_scale", "attn_value", "activation_dtype", "", ""},
    {"gate_proj", "hidden_states weight", "weight_scale", "gate", "activation_dtype", "", ""},
    {"output_gate", "attn_value gate", "", "attn_gated", "activation_dtype gate_rounding", "", ""},
    {"o_proj", "attn_gated|attn_value weight", "weight_scale", "output", "activation_dtype", "",
     ""},
};

/// nullptr when no operation has that name. Of two formats the first, FP8's.
constexpr const Operation* find_operation(std::string_view name) {
  for (const Operation& op : kOperations)
    if (op.name == name) return &op;
  return nullptr;
}

/// nullptr when no operation of that name has that format.
constexpr const Operation* find_operation(std::string_view name, std::string_view format) {
  for (const Operation& op : kOperations)
    if (op.name == name && op.format == format) return &op;
  return nullptr;
}

} // namespace dsakit
