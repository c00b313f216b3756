// What each tensor of a replayed operation looks like.
#pragma once

#include <string_view>

#include "dsakit/core/operations.hpp"

namespace dsakit::harness {

/// Shape of a tensor: a name is an extent that all tensors of the operation share, "requests+1" one
/// more than it; page_size is the contract's. dtype: a dtype name; "fp8" and "activation" are what
/// the contract says, "parameter" is float32 or the activation dtype, "bf16_or_fp32" is either.
struct TensorRule {
  std::string_view operation;
  std::string_view tensor; ///< inputs and outputs of one name look the same
  std::string_view dtype;
  std::string_view shape;
  std::string_view format = {}; ///< Operation::format, where the tensors of the formats differ
};

constexpr bool applies(const TensorRule& rule, const Operation& operation) {
  return rule.operation == operation.name &&
         (rule.format.empty() || rule.format == operation.format);
}

inline constexpr TensorRule kTensorRules[] = {
    {"qkv_a_proj", "hidden_states", "activation", "rows in"},
    {"qkv_a_proj", "weight", "weight", "out in"},
    {"qkv_a_proj", "qkv_a", "activation", "rows out"},

    {"q_norm", "norm_weight", "parameter", "dim"},
    {"q_norm", "qkv_a", "activation", "rows columns"},
    {"q_norm", "q_c_raw", "activation", "rows dim"},
    {"q_norm", "index_q_input", "activation", "rows dim"},

    {"q_b_proj", "index_q_input", "activation", "rows in"},
    {"q_b_proj", "weight", "weight", "out in"},
    {"q_b_proj", "q", "activation", "rows heads dim"},

    {"kv_norm", "norm_weight", "parameter", "dim"},
    {"kv_norm", "qkv_a", "activation", "rows columns"},
    {"kv_norm", "kv_c_raw", "activation", "rows dim"},
    {"kv_norm", "kv_c", "activation", "rows dim"},

    {"index_q_proj", "index_q_input", "activation", "rows in"},
    {"index_q_proj", "weight", "weight", "out in"},
    {"index_q_proj", "index_q", "activation", "rows heads 128"},

    {"index_k_proj", "hidden_states", "activation", "rows in"},
    {"index_k_proj", "weight", "bfloat16", "128 in"},
    {"index_k_proj", "index_k_raw", "activation", "rows 128"},

    {"index_w_proj", "hidden_states", "activation", "rows in"},
    {"index_w_proj", "weight", "bfloat16", "heads in"},
    {"index_w_proj", "index_weights", "activation", "rows heads"},

    {"index_query_quant", "index_q", "activation", "rows heads 128"},
    {"index_query_quant", "index_q_fp8", "fp8", "rows heads 128"},
    {"index_query_quant", "index_q_scale", "float32", "rows heads", "fp8"},
    {"index_query_quant", "index_q_packed", "float4_e2m1fn_x2", "rows heads 64"},
    {"index_query_quant", "index_q_scale", "float8_e8m0fnu", "rows heads 4", "mxfp4"},

    {"index_weights_fold", "index_weights", "activation", "rows heads"},
    {"index_weights_fold", "index_q_scale", "float32", "rows heads"},
    {"index_weights_fold", "index_weights_folded", "float32", "rows heads"},

    {"index_key_norm", "index_k_raw", "activation", "tokens 128"},
    {"index_key_norm", "norm_weight", "parameter", "128"},
    {"index_key_norm", "norm_bias", "parameter", "128"},
    {"index_key_norm", "index_k", "activation", "tokens 128"},

    {"index_cache_write", "index_k", "activation", "keys 128"},
    {"index_cache_write", "slot_mapping", "int64", "tokens"},
    {"index_cache_write", "index_cache", "uint8", "pages bytes"},

    {"index_cache_gather", "index_cache", "uint8", "pages bytes"},
    {"index_cache_gather", "block_table", "int32", "requests columns"},
    {"index_cache_gather", "cu_seq_lens", "int32", "requests+1"},
    {"index_cache_gather", "row_request", "int32", "rows"},
    {"index_cache_gather", "k_fp8", "fp8", "rows 128"},
    {"index_cache_gather", "k_scale", "float32", "rows", "fp8"},
    {"index_cache_gather", "k_packed", "float4_e2m1fn_x2", "rows 64"},
    {"index_cache_gather", "k_scale", "float8_e8m0fnu", "rows 4", "mxfp4"},

    {"index_logits_prefill", "index_q_fp8", "fp8", "rows heads 128"},
    {"index_logits_prefill", "k_fp8", "fp8", "keys 128"},
    {"index_logits_prefill", "k_scale", "float32", "keys", "fp8"},
    {"index_logits_prefill", "index_weights_folded", "float32", "rows heads"},
    {"index_logits_prefill", "index_q_packed", "float4_e2m1fn_x2", "rows heads 64"},
    {"index_logits_prefill", "index_q_scale", "float8_e8m0fnu", "rows heads 4"},
    {"index_logits_prefill", "k_packed", "float4_e2m1fn_x2", "keys 64"},
    {"index_logits_prefill", "k_scale", "float8_e8m0fnu", "keys 4", "mxfp4"},
    {"index_logits_prefill", "index_weights", "activation", "rows heads"},
    {"index_logits_prefill", "ks", "int32", "rows"},
    {"index_logits_prefill", "ke", "int32", "rows"},
    {"index_logits_prefill", "column_origin", "int32", "rows"},
    {"index_logits_prefill", "logits", "float32", "rows columns"},

    {"index_logits_decode", "index_q_fp8", "fp8", "rows heads 128"},
    {"index_logits_decode", "index_cache", "uint8", "pages bytes"},
    {"index_logits_decode", "index_weights_folded", "float32", "rows heads"},
    {"index_logits_decode", "index_q_packed", "float4_e2m1fn_x2", "rows heads 64"},
    {"index_logits_decode", "index_q_scale", "float8_e8m0fnu", "rows heads 4"},
    {"index_logits_decode", "index_weights", "activation", "rows heads"},
    {"index_logits_decode", "block_table", "int32", "requests columns"},
    {"index_logits_decode", "row_lens", "int32", "rows"},
    {"index_logits_decode", "row_request", "int32", "rows"},
    {"index_logits_decode", "logits", "float32", "rows keys"},

    {"topk", "logits", "float32", "rows keys"},
    {"topk", "row_lens", "int32", "rows"},
    {"topk", "topk_indices", "int32", "rows k"},

    {"topk", "dcp_scores", "float32", "rows k"},

    {"dcp_topk_merge", "rank_scores", "float32", "ranks rows k"},
    {"dcp_topk_merge", "rank_indices", "int32", "ranks rows k"},
    {"dcp_topk_merge", "topk_indices", "int32", "rows k"},

    {"mla_cache_write", "kv_c", "activation", "keys 512"},
    {"mla_cache_write", "k_pe", "activation", "keys 64"},
    {"mla_cache_write", "slot_mapping", "int64", "tokens"},
    {"mla_cache_write", "mla_cache", "uint8", "pages page_size 656"},

    {"topk_slots", "topk_indices", "int32", "rows k"},
    {"topk_slots", "block_table", "int32", "requests columns"},
    {"topk_slots", "row_request", "int32", "rows"},
    {"topk_slots", "row_lens", "int32", "rows"},
    {"topk_slots", "slots", "int32", "rows k"},
    {"topk_slots", "compact_slots", "int32", "rows k"},
    {"topk_slots", "counts", "int32", "rows"},

    {"absorb_q", "q", "activation", "rows heads q_dim"},
    {"absorb_q", "weight", "weight", "kv_b latent"},
    {"absorb_q", "mla_query", "activation", "rows heads query_dim"},

    {"sparse_attention", "mla_query", "bfloat16", "rows heads 576"},
    {"sparse_attention", "mla_cache", "uint8", "pages page_size 656", "fp8_ds_mla"},
    {"sparse_attention", "mla_cache", "bfloat16", "cached 576", "bf16_576"},
    {"sparse_attention", "slots", "int32", "rows k"},
    {"sparse_attention", "latent", "bfloat16", "rows heads 512"},
    {"sparse_attention", "lse", "float32", "rows heads"},

    {"dcp_attention_merge", "rank_latent", "bf16_or_fp32", "ranks rows heads dim"},
    {"dcp_attention_merge", "rank_lse", "float32", "ranks rows heads"},
    {"dcp_attention_merge", "latent", "bfloat16", "rows heads dim"},
    {"dcp_attention_merge", "lse", "float32", "rows heads"},
    {"dcp_attention_merge", "corrected", "bf16_or_fp32", "ranks rows heads dim"},

    {"absorb_v", "latent", "activation", "rows heads latent"},
    {"absorb_v", "weight", "weight", "kv_b latent"},
    {"absorb_v", "attn_value", "activation", "rows values"},

    {"gate_proj", "hidden_states", "activation", "rows in"},
    {"gate_proj", "weight", "weight", "out in"},
    {"gate_proj", "gate", "activation", "rows out"},

    {"output_gate", "attn_value", "activation", "rows dim"},
    {"output_gate", "gate", "activation", "rows dim"},
    {"output_gate", "attn_gated", "activation", "rows dim"},

    {"o_proj", "attn_gated", "activation", "rows in"},
    {"o_proj", "attn_value", "activation", "rows in"},
    {"o_proj", "weight", "weight", "out in"},
    {"o_proj", "output", "activation", "rows out"},
};

} // namespace dsakit::harness
