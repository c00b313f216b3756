#include "dsakit/harness/import.hpp"

#include "../recording/atomic_file.hpp"
#include "../recording/text.hpp"
#include "../replay/names.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "sources.hpp"

namespace dsakit::harness {
namespace {

/// Puts every tensor in its place; what the file is, is told by its metadata alone.
Status place(Draft& draft, const ImportOptions& options) {
  if (!options.manifest.empty()) return place_by_manifest(draft, options.manifest);
  for (auto* place_file : {&place_exported_file, &place_kernel_file, &place_layer_file}) {
    auto known = (*place_file)(draft);
    if (!known) return known.status();
    if (*known) return {};
  }
  return bad_input(options.input + ": found no metadata of a known producer (op = " +
                   in_quotes(draft.metadata("op")) + "), want --manifest");
}

/// `accumulation:logits` fills an attribute of that output in every step.
Status fill_attribute(Draft& draft, const std::string& path, const std::string& key,
                      const std::string& tensor, const std::string& value) {
  bool found = false;
  for (const OperationId& id : draft.operations())
    for (const TensorInfo& info : draft.tensors(id, Side::outputs)) {
      if (info.output() != tensor && info.name() != tensor) continue;
      found = true;
      Attributes& attributes = draft.find(info.object)->info.attributes;
      const auto [said, filled] = attributes.try_emplace(key, value);
      if (said->second != value)
        return bad_input(path + ": " + info.object + ": found " + key + " " +
                         in_quotes(said->second) + ", want " + in_quotes(value) +
                         " as --contract says");
    }
  if (!found)
    return bad_input(path + ": --contract " + key + ":" + tensor + ": found no such output");
  return {};
}

/// What the file does not say. What it says must agree.
Status fill_contract(Draft& draft, const std::string& path, const ContractValues& given) {
  for (const auto& [key, value] : given) {
    const auto colon = key.find(':');
    DSAKIT_TRY(check_contract_value(key.substr(0, colon), value));
    if (const std::string name = key.substr(0, colon); is_per_output(name)) {
      if (colon == std::string::npos)
        return bad_input("--contract " + name + ": found no tensor, want " + name + ":<output>");
      DSAKIT_TRY(fill_attribute(draft, path, name, key.substr(colon + 1), value));
      continue;
    }
    if (colon != std::string::npos)
      return bad_input("--contract " + key + ": found a tensor, want the key alone");
    const auto [said, filled] = draft.contract.try_emplace(key, value);
    if (said->second != value)
      return bad_input(path + ": contract key " + key + ": found " + in_quotes(said->second) +
                       ", want " + in_quotes(value) + " as --contract says");
  }
  return {};
}

std::vector<std::string> fill_preset(Draft& draft) {
  std::vector<std::string> assumed;
  std::string text;
  for (const auto& [key, value] : kimi_k31_contract(draft.contract)) {
    if (!draft.contract.try_emplace(key, value).second) continue;
    assumed.push_back(key);
    text += (text.empty() ? "" : ", ") + key;
  }
  // Of outputs, not of the contract.
  bool reads = false;
  for (const OperationId& id : draft.operations()) {
    const Operation* operation = find_operation(id.operation);
    if (!operation || operation->output_attributes.find("mla_scale_read") == std::string_view::npos)
      continue;
    for (const TensorInfo& info : draft.tensors(id, Side::outputs))
      reads |=
          draft.find(info.object)->info.attributes.try_emplace("mla_scale_read", "fp32").second;
  }
  if (reads) {
    assumed.emplace_back("mla_scale_read");
    text += (text.empty() ? "" : ", ") + assumed.back();
  }
  if (!assumed.empty()) draft.provenance["assumed"] = text;
  return assumed;
}

Status check_contracts(const Draft& draft, const std::string& path) {
  const auto check = [&](const ContractValues& values) -> Status {
    for (const auto& [key, value] : values)
      if (is_per_output(key))
        return bad_input(path + ": contract key " + key +
                         ": found it in the contract, want it as an attribute of each output");
      else if (auto ok = check_contract_value(key, value); !ok)
        return bad_input(path + ": " + ok.what());
    return {};
  };
  DSAKIT_TRY(check(draft.contract));
  for (const auto& [step, values] : draft.step_contracts)
    DSAKIT_TRY(check(values));
  return {};
}

/// Space-separated.
constexpr std::string_view kConfigKeys =
    "fp8_encoding hidden_size index_head_dim index_k_norm_type index_num_heads index_topk "
    "kv_lora_rank mscale_all_dim num_attention_heads num_heads output_gate page_size q_lora_rank "
    "qk_nope_head_dim qk_rope_head_dim rms_norm_eps rope_factor rope_type softmax_scale "
    "tensor_parallel_rank tensor_parallel_size use_fp4 v_head_dim";
constexpr std::string_view kAttributes = "accumulation block_stride dcp_rank mla_scale_read output "
                                         "page_offset producer reconstructed";

/// A misspelt key is kept like any other: it has to be said.
std::vector<std::string> unknown_keys(const Draft& draft) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : draft.config)
    if (!is_one_of(kConfigKeys, key)) unknown.push_back("config: " + escaped(key));
  for (const OperationId& id : draft.operations())
    for (const Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : draft.tensors(id, side))
        for (const auto& [key, value] : info.attributes)
          if (!is_one_of(kAttributes, key)) unknown.push_back(info.object + ": " + escaped(key));
  return unknown;
}

} // namespace

Result<ImportSummary> import_safetensors(const ImportOptions& options) {
  if (!options.contract_preset.empty() && options.contract_preset != "kimi-k3.1")
    return bad_input("--contract-preset: found " + in_quotes(options.contract_preset) +
                     ", want kimi-k3.1");
  DSAKIT_TRY(check_not_input(options.output, options.input));
  DSAKIT_TRY(check_not_input(options.output, options.manifest));
  auto file = SafetensorsReader::open(options.input);
  if (!file) return file.status();

  Draft draft(*file);
  DSAKIT_TRY(place(draft, options));
  DSAKIT_TRY(draft.placed());
  DSAKIT_TRY(fill_contract(draft, options.input, options.contract));
  ImportSummary summary;
  if (!options.contract_preset.empty()) summary.assumed = fill_preset(draft);
  DSAKIT_TRY(check_contracts(draft, options.input));
  draft.provenance.try_emplace("command", options.command);
  DSAKIT_TRY(complete(draft));
  DSAKIT_TRY(draft.check());
  summary.left_out = draft.unplaced();
  summary.unknown = unknown_keys(draft);
  DSAKIT_TRY(draft.write(options.output, options.deflate));
  return summary;
}

} // namespace dsakit::harness
