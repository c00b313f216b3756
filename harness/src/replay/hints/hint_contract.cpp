// Assumptions about the contract: each field that says how the operation works, with another value.
#include <algorithm>

#include "../names.hpp"
#include "assumption.hpp"
#include "dsakit/core/operations.hpp"

namespace dsakit::harness {
namespace {

struct Field {
  std::string_view key;
  std::string_view value;
  std::string_view qmax = {};   ///< the usual divisor with that encoding
  std::string_view format = {}; ///< of two formats the one that knows the value
};

constexpr Field kFields[] = {
    {"index_fp8_encoding", "e4m3fn", "448"},
    {"index_fp8_encoding", "e4m3fnuz", "224"},
    {"index_page_layout", "block_flat", {}, "fp8"},
    {"index_page_layout", "mfma_preshuffle", {}, "fp8"},
    {"index_page_layout", "flat", {}, "mxfp4"},
    {"index_page_layout", "preshuffle64", {}, "mxfp4"},
    {"hadamard", "none"},
    {"hadamard", "query_and_key"},
    {"mla_fp8_encoding", "e4m3fn", "448"},
    {"mla_fp8_encoding", "e4m3fnuz", "224"},
    {"mla_scale_read", "fp32"},
    {"mla_scale_read", "bf16"},
    {"qmax", "448"},
    {"qmax", "240"},
    {"qmax", "224"},
    {"scale_kind", "ue8m0"},
    {"scale_kind", "fp32"},
    {"index_q_floor", "1e-10"},
    {"index_q_floor", "1e-4"},
    {"index_k_floor", "1e-4"},
    {"index_k_floor", "1e-10"},
    {"weight_fold", "bf16_intermediate"},
    {"weight_fold", "fp32"},
    {"index_k_norm", "layernorm"},
    {"index_k_norm", "rmsnorm"},
    {"rmsnorm_rounding", "one"},
    {"rmsnorm_rounding", "two"},
    {"gate_rounding", "one"},
    {"gate_rounding", "two"},
    {"lse_base", "e"},
    {"lse_base", "2"},
    {"topk_order", "rank"},
    {"topk_order", "ascending"},
    {"dcp_interleave", "1"},
    {"dcp_interleave", "2"},
    {"dcp_interleave", "4"},
    {"dcp_interleave", "8"},
    {"dcp_interleave", "16"},
    {"dcp_interleave", "32"},
    {"dcp_interleave", "64"},
    {"dcp_world", "1"},
    {"page_size", "1"},
    {"page_size", "16"},
    {"page_size", "32"},
    {"page_size", "64"},
    {"page_size", "128"},
};

/// The contract key says something about the operation or its outputs.
bool takes(const Operation& operation, std::string_view key) {
  for (std::string_view keys :
       {operation.contract, operation.optional_contract, operation.output_attributes}) {
    const auto names = split_names(keys);
    if (std::find(names.begin(), names.end(), key) != names.end()) return true;
  }
  return false;
}

} // namespace

std::vector<Assumption> other_contracts(const OperationData& data) {
  std::vector<Assumption> assumptions;
  for (const Field& field : kFields) {
    const auto found = data.contract.find(std::string(field.key));
    if (found == data.contract.end() || found->second == field.value ||
        !takes(data.operation(), field.key) ||
        (!field.format.empty() && field.format != data.operation().format) ||
        (field.value == "layernorm" && !data.optional_input("norm_bias")))
      continue;
    const std::string key(field.key);
    assumptions.push_back(
        {"right under " + key + "=" + std::string(field.value) + ": the contract field is " + key,
         [&field](RecordedOperation&, ContractValues& contract, Attributes&) {
           contract[std::string(field.key)] = field.value;
           if (!field.qmax.empty() && contract.contains("qmax")) contract["qmax"] = field.qmax;
         }});
  }
  return assumptions;
}

} // namespace dsakit::harness
