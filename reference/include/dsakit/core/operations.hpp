// The operations in causal order, with the names of their tensors and their contract keys.
// Recordings, kernels, rules and reports all use these names (design 5).
#pragma once

#include <array>
#include <string_view>

namespace dsakit {

/// Space-separated names, so that the table reads as one.
struct Operation {
  std::string_view name;
  std::string_view inputs;            ///< required
  std::string_view optional;          ///< inputs that may be missing
  std::string_view outputs;           ///< required
  std::string_view contract;          ///< keys that a recording of it must hold
  std::string_view config;            ///< numbers that its /config must hold
  std::string_view output_attributes; ///< contract keys that each output holds for its producer
};

inline constexpr std::array<Operation, 3> kOperations = {{
    {"index_cache_write", "index_k slot_mapping index_cache", "", "index_cache",
     "index_fp8_encoding index_page_layout page_size activation_dtype scale_kind index_k_floor "
     "qmax",
     "", ""},
    {"index_cache_gather", "index_cache block_table cu_seq_lens", "row_request k_fp8 k_scale",
     "k_fp8 k_scale", "index_fp8_encoding index_page_layout page_size", "", ""},
    {"index_logits_decode", "index_q_fp8 index_cache index_weights_folded block_table row_lens",
     "row_request", "logits", "index_fp8_encoding index_page_layout page_size", "", "accumulation"},
}};

/// nullptr when no operation has that name.
constexpr const Operation* find_operation(std::string_view name) {
  for (const Operation& op : kOperations)
    if (op.name == name) return &op;
  return nullptr;
}

} // namespace dsakit
