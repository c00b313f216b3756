// What each tensor of a replayed operation looks like.
#pragma once

#include <string_view>

namespace dsakit::harness {

/// Shape of a tensor: a name is an extent that all tensors of the operation share, "requests+1" one
/// more than it; page_size is the contract's. dtype: a dtype name; "fp8" and "activation" are what
/// the contract says, "parameter" is float32 or the activation dtype.
struct TensorRule {
  std::string_view operation;
  std::string_view tensor; ///< inputs and outputs of one name look the same
  std::string_view dtype;
  std::string_view shape;
};

inline constexpr TensorRule kTensorRules[] = {
    {"index_cache_write", "index_k", "activation", "keys 128"},
    {"index_cache_write", "slot_mapping", "int64", "tokens"},
    {"index_cache_write", "index_cache", "uint8", "pages bytes"},

    {"index_cache_gather", "index_cache", "uint8", "pages bytes"},
    {"index_cache_gather", "block_table", "int32", "requests columns"},
    {"index_cache_gather", "cu_seq_lens", "int32", "requests+1"},
    {"index_cache_gather", "row_request", "int32", "rows"},
    {"index_cache_gather", "k_fp8", "fp8", "rows 128"},
    {"index_cache_gather", "k_scale", "float32", "rows"},

    {"index_logits_decode", "index_q_fp8", "fp8", "rows heads 128"},
    {"index_logits_decode", "index_cache", "uint8", "pages bytes"},
    {"index_logits_decode", "index_weights_folded", "float32", "rows heads"},
    {"index_logits_decode", "block_table", "int32", "requests columns"},
    {"index_logits_decode", "row_lens", "int32", "rows"},
    {"index_logits_decode", "row_request", "int32", "rows"},
    {"index_logits_decode", "logits", "float32", "rows keys"},
};

} // namespace dsakit::harness
