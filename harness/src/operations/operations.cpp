#include "dsakit/harness/operations.hpp"

#include <algorithm>

#include "../recording/formats.hpp"
#include "../replay/names.hpp"
#include "adapters.hpp"
#include "by_format.hpp"

namespace dsakit::harness {

const Operation& OperationData::operation() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors.inputs)
    names.push_back(name);
  for (const auto& [name, tensor] : tensors.outputs)
    names.push_back(output_of(name, tensor.attributes));
  return *find_recorded(id.operation, contract, names);
}

const RecordedTensor* OperationData::find_output(std::string_view name) const {
  for (const auto& [tensor, recorded] : tensors.outputs)
    if (output_of(tensor, recorded.attributes) == name) return &recorded;
  return nullptr;
}

const RecordedTensor& OperationData::output(std::string_view name) const {
  return *find_output(name);
}

Result<std::vector<double>> OperationAdapter::bound(const OperationData& data,
                                                    std::string_view output, Accumulation) const {
  return bad_input(data.id.operation + " has no derived bound for " + std::string(output) +
                   ", want gate exact");
}

Result<Mask> OperationAdapter::valid_set(const OperationData& data, const Tensor&,
                                         const std::vector<double>&) const {
  return bad_input(data.id.operation + " has no sets to compare, want another gate than topk_set");
}

const OperationAdapter* find_adapter(std::string_view operation) {
  using Adapter = const OperationAdapter& (*)();
  static constexpr std::pair<std::string_view, Adapter> kAdapters[] = {
      {"index_query_quant", by_format<index_query_quant_adapter, index_query_quant_mxfp4_adapter>},
      {"index_weights_fold", index_weights_fold_adapter},
      {"index_key_norm", index_key_norm_adapter},
      {"index_cache_write", by_format<index_cache_write_adapter, index_cache_write_mxfp4_adapter>},
      {"index_cache_gather",
       by_format<index_cache_gather_adapter, index_cache_gather_mxfp4_adapter>},
      {"index_logits_prefill",
       by_format<index_logits_prefill_adapter, index_logits_prefill_mxfp4_adapter>},
      {"index_logits_decode",
       by_format<index_logits_decode_adapter, index_logits_decode_mxfp4_adapter>},
      {"topk", topk_adapter},
      {"dcp_topk_merge", dcp_topk_merge_adapter},
      {"mla_cache_write", mla_cache_write_adapter},
      {"topk_slots", topk_slots_adapter},
      {"sparse_attention", sparse_attention_adapter},
      {"dcp_attention_merge", dcp_attention_merge_adapter},
      {"qkv_a_proj", qkv_a_proj_adapter},
      {"q_norm", q_norm_adapter},
      {"q_b_proj", q_b_proj_adapter},
      {"kv_norm", kv_norm_adapter},
      {"index_q_proj", index_q_proj_adapter},
      {"index_k_proj", index_k_proj_adapter},
      {"index_w_proj", index_w_proj_adapter},
      {"absorb_q", absorb_q_adapter},
      {"absorb_v", absorb_v_adapter},
      {"gate_proj", gate_proj_adapter},
      {"output_gate", output_gate_adapter},
      {"o_proj", o_proj_adapter},
  };
  for (const auto& [name, adapter] : kAdapters)
    if (name == operation) return &adapter();
  return nullptr;
}

} // namespace dsakit::harness
