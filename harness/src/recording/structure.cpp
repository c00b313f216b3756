#include "structure.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "formats.hpp"
#include "hdf5.hpp"
#include "names.hpp"
#include "tensor_rules.hpp"
#include "text.hpp"

namespace dsakit::harness {
namespace {

std::vector<std::string> words(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> out;
  for (std::string word; in >> word;)
    out.push_back(word);
  return out;
}

bool has_word(std::string_view text, std::string_view word) {
  const auto list = words(text);
  return std::find(list.begin(), list.end(), word) != list.end();
}

const TensorInfo* find_tensor(const std::vector<TensorInfo>& tensors, std::string_view name) {
  for (const TensorInfo& tensor : tensors)
    if (tensor.name() == name) return &tensor;
  return nullptr;
}

/// Why this version records the operation and does not replay it; empty where it does.
std::string only_recorded(const Operation& known, const ContractValues& contract) {
  const auto says = [&](std::string_view key, std::string_view value) {
    const auto found = contract.find(std::string(key));
    return has_word(known.contract, key) && found != contract.end() && found->second == value;
  };
  if (known.name == "mla_cache_write" && says("mla_record", "bf16_576"))
    return "mla_record bf16_576";
  return "";
}

/// What the operation takes from the contract, in types: values that do not go together fail.
Status parse_contract(const Operation& known, const ContractValues& contract) {
  const auto takes = [&](std::string_view key) { return has_word(known.contract, key); };
  if (takes("index_page_layout")) {
    if (known.format == "mxfp4")
      DSAKIT_TRY(parse_mxfp4_pages(contract));
    else
      DSAKIT_TRY(parse_index_pages(contract));
  }
  if (takes("hadamard")) DSAKIT_TRY(parse_mxfp4_quant(contract));
  if (takes("index_k_floor")) DSAKIT_TRY(parse_index_key_quant(contract));
  if (takes("index_q_floor")) DSAKIT_TRY(parse_index_query_quant(contract));
  if (takes("mla_fp8_encoding") && takes("qmax")) DSAKIT_TRY(parse_mla_quant(contract));
  if (takes("page_size")) DSAKIT_TRY(parse_page_size(contract));
  if (has_word(known.optional_contract, "dcp_world")) {
    DSAKIT_TRY(parse_dcp_world(contract));
    DSAKIT_TRY(parse_dcp_interleave(contract));
  }
  for (const std::string& key : words(known.contract))
    DSAKIT_TRY(check_contract_value(key, contract.at(key)));
  return {};
}

/// The keys that the operation needs, present and well-formed.
Status check_keys(const OperationTensors& op, const Operation& known,
                  const ContractValues& contract) {
  const std::string where = "/contract (step " + std::to_string(op.id.step) + ")";
  for (const std::string& key : words(known.contract))
    if (!contract.count(key))
      return hdf5::fail(op.path, where, "found no key " + key + ", want it for " + op.id.operation);
  for (const std::string& key : words(known.optional_contract))
    for (const std::string& other : words(known.optional_contract))
      if (contract.count(key) && !contract.count(other))
        return hdf5::fail(op.path, where, "found no key " + other + ", want it with " + key);
  if (const Status parsed = parse_contract(known, contract); !parsed)
    return hdf5::fail(op.path, where, parsed.what());
  for (const std::string& key : words(known.config)) {
    const auto value = op.config.find(key);
    if (value == op.config.end())
      return hdf5::fail(op.path, "/config",
                        "found no key " + key + ", want it for " + op.id.operation);
    if (!parse_number(value->second))
      return hdf5::fail(op.path, "/config",
                        key + ": found " + in_quotes(value->second) + ", want a number > 0");
  }
  return {};
}

/// The dtypes that a tensor may have.
std::vector<Dtype> wanted_dtypes(std::string_view text, const ContractValues& contract) {
  const auto activation = [&] {
    return contract.at("activation_dtype") == "fp16" ? Dtype::float16 : Dtype::bfloat16;
  };
  if (text == "fp8")
    return {contract.at("index_fp8_encoding") == "e4m3fnuz" ? Dtype::float8_e4m3fnuz
                                                            : Dtype::float8_e4m3fn};
  if (text == "activation") return {activation()};
  if (text == "parameter") return {Dtype::float32, activation()};
  if (text == "weight") return {Dtype::bfloat16, Dtype::float8_e4m3fn, Dtype::float8_e4m3fnuz};
  if (text == "bf16_or_fp32") return {Dtype::bfloat16, Dtype::float32};
  return {*parse_dtype(text)};
}

/// Extents by name, with the object that fixed each.
class SharedExtents {
public:
  void fix(const std::string& axis, std::int64_t value, const std::string& from) {
    known_.emplace(axis, Extent{value, from});
  }

  /// The shape that `rule` asks for, given what other tensors fixed; empty if `shape` fits.
  std::string mismatch(const TensorInfo& tensor, std::string_view rule) {
    const auto axes = words(rule);
    bool fits = tensor.shape.size() == axes.size();
    std::string wanted;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const std::int64_t found = i < tensor.shape.size() ? tensor.shape[i] : -1;
      const auto [text, ok] = axis(tensor, axes[i], found);
      wanted += (i ? ", " : "") + text;
      fits = fits && ok;
    }
    return fits ? "" : "[" + wanted + "]";
  }

private:
  struct Extent {
    std::int64_t value;
    std::string from;
  };
  std::map<std::string, Extent> known_;

  std::pair<std::string, bool> axis(const TensorInfo& tensor, std::string axis,
                                    std::int64_t found) {
    if (std::isdigit(static_cast<unsigned char>(axis[0])))
      return {axis, std::to_string(found) == axis};
    const std::int64_t more = axis.ends_with("+1") ? 1 : 0;
    if (more) axis.resize(axis.size() - 2);
    const auto known = known_.find(axis);
    if (known != known_.end())
      return {std::to_string(known->second.value + more) + " (" + axis + (more ? " + 1" : "") +
                  " of " + known->second.from + ")",
              found == known->second.value + more};
    if (found >= more) known_.emplace(axis, Extent{found - more, tensor.name()});
    return {axis, found >= more};
  }
};

Status check_tensor(const OperationTensors& op, const TensorInfo& tensor, const TensorRule& rule,
                    const ContractValues& contract, SharedExtents& extents) {
  const auto dtypes = wanted_dtypes(rule.dtype, contract);
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::string wanted;
    for (Dtype dtype : dtypes)
      wanted += (wanted.empty() ? "" : " or ") + std::string(name(dtype));
    return hdf5::fail(op.path, tensor.object,
                      "found dtype " + std::string(name(tensor.dtype)) + ", want " + wanted);
  }
  if (const std::string wanted = extents.mismatch(tensor, rule.shape); !wanted.empty())
    return hdf5::fail(op.path, tensor.object,
                      "found shape " + to_string(tensor.shape) + ", want " + wanted);
  return {};
}

/// The cache's page_offset; a page of page_size records must lie there in each row.
Result<std::int64_t> check_page(const OperationTensors& op, const TensorInfo& cache,
                                std::int64_t page_size, std::int64_t record_bytes) {
  std::int64_t offset = 0;
  if (const auto text = cache.attributes.find("page_offset"); text != cache.attributes.end()) {
    const std::string& value = text->second;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), offset);
    if (error != std::errc{} || end != value.data() + value.size() || offset < 0)
      return hdf5::fail(op.path, cache.object,
                        "found page_offset " + in_quotes(value) + ", want bytes >= 0");
  }
  if (cache.shape[1] - offset < page_size * record_bytes || offset > cache.shape[1])
    return hdf5::fail(op.path, cache.object,
                      "found rows of " + std::to_string(cache.shape[1]) + " bytes, want at least " +
                          std::to_string(page_size * record_bytes) + " from byte " +
                          std::to_string(offset) + " (page_size " + std::to_string(page_size) +
                          ")");
  return offset;
}

/// A producer with an order or ties of its own is held to another gate than we are, by its name.
Status check_selection(const OperationTensors& op, const ContractValues& contract) {
  const bool open =
      contract.at("tie_rule") == "unspecified" || contract.at("topk_order") == "unspecified";
  if (const TensorInfo* ours = find_tensor(op.outputs, "topk_indices"); open && ours)
    return hdf5::fail(op.path, ours->object,
                      "found no producer in its name under an unspecified tie_rule or topk_order, "
                      "want topk_indices.<producer> with output = topk_indices");
  return {};
}

/// A number that all recordings of an output agree on, `otherwise` without the attribute.
Status check_number(const OperationTensors& op, const std::string& output, const std::string& name,
                    std::int64_t otherwise, std::int64_t least, std::int64_t most,
                    const std::string& want) {
  std::optional<std::int64_t> first;
  for (const TensorInfo& tensor : op.outputs) {
    if (tensor.output() != output) continue;
    std::int64_t value = otherwise;
    if (const auto found = tensor.attributes.find(name); found != tensor.attributes.end()) {
      const std::string& text = found->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
        return hdf5::fail(op.path, tensor.object,
                          "found " + name + " " + in_quotes(text) + ", want " + want);
    }
    if (first.value_or(value) != value)
      return hdf5::fail(op.path, tensor.object,
                        "found " + name + " " + std::to_string(value) + ", want " +
                            std::to_string(*first) + " as in the other " + output + " of the step");
    first = value;
  }
  return {};
}

/// The rank whose output it is.
Status check_dcp_rank(const OperationTensors& op, const std::string& output,
                      const ContractValues& contract) {
  const std::int64_t last_rank = *parse_dcp_world(contract) - 1;
  return check_number(op, output, "dcp_rank", 0, 0, last_rank,
                      "0 to " + std::to_string(last_rank) + " (dcp_world)");
}

/// The slots between pages, without the attribute page_size.
Status check_block_stride(const OperationTensors& op, const ContractValues& contract) {
  const std::int64_t page_size = *parse_page_size(contract);
  return check_number(op, "slots", "block_stride", page_size, page_size,
                      std::numeric_limits<std::int32_t>::max(),
                      "slots >= page_size " + std::to_string(page_size));
}

/// Dense rows offered as fp8_ds_mla, whose records are 656 bytes.
Status check_mla_rows(const OperationTensors& op) {
  for (const auto* side : {&op.inputs, &op.outputs})
    for (const TensorInfo& cache : *side) {
      if (cache.output() != "mla_cache" || cache.shape.empty()) continue;
      const auto bytes = cache.shape.back() * static_cast<std::int64_t>(size_of(cache.dtype));
      if (bytes == 576 || bytes == 1152)
        return hdf5::fail(op.path, cache.object,
                          "found rows of " + std::to_string(bytes) +
                              " bytes, want the 656 of mla_record fp8_ds_mla; hint: dense rows of "
                              "576 elements; sparse_attention reads those of bf16 under mla_record "
                              "bf16_576");
    }
  return {};
}

/// A share has the dtype of what it is a share of.
Status check_corrected(const OperationTensors& op) {
  const TensorInfo* latent = find_tensor(op.inputs, "rank_latent");
  for (const TensorInfo& tensor : op.outputs)
    if (tensor.output() == "corrected" && tensor.dtype != latent->dtype)
      return hdf5::fail(op.path, tensor.object,
                        "found dtype " + std::string(name(tensor.dtype)) + ", want " +
                            std::string(name(latent->dtype)) + " as rank_latent");
  return {};
}

/// Every output of the operation is there, and nothing that would never be compared.
Status check_outputs(const OperationTensors& op, const Operation& known) {
  for (const TensorInfo& tensor : op.outputs) {
    if (!has_word(known.outputs, tensor.output()) &&
        !has_word(known.optional_outputs, tensor.output()))
      return hdf5::fail(op.path, tensor.object,
                        "found output " + in_quotes(tensor.output()) +
                            ", want one of: " + std::string(known.outputs) +
                            (known.optional_outputs.empty() ? "" : " ") +
                            std::string(known.optional_outputs));
    for (const std::string& key : words(known.output_attributes)) {
      const auto text = tensor.attributes.find(key);
      if (text == tensor.attributes.end())
        return hdf5::fail(op.path, tensor.object,
                          "found no attribute " + key + ", want " + contract_key_values(key));
      if (const Status value = check_contract_value(key, text->second); !value)
        return hdf5::fail(op.path, tensor.object, value.what());
    }
  }
  for (const std::string& output : words(known.outputs))
    if (std::none_of(op.outputs.begin(), op.outputs.end(),
                     [&](const TensorInfo& tensor) { return tensor.output() == output; }))
      return hdf5::fail(op.path, object_path(op.id, Side::outputs, output), "is missing");
  return {};
}

/// Of "a|b" exactly one is there.
Status check_input(const OperationTensors& op, const std::string& names) {
  const std::string first = names.substr(0, names.find('|'));
  const std::string second = names.substr(std::min(names.size(), first.size() + 1));
  const bool has_first = find_tensor(op.inputs, first);
  const bool has_second = find_tensor(op.inputs, second);
  if (has_first != has_second) return {};
  const std::string object = object_path(op.id, Side::inputs, first);
  if (has_first)
    return hdf5::fail(op.path, object, "found " + second + " as well, want one of the two");
  return hdf5::fail(op.path, object,
                    second.empty() ? "is missing" : "is missing, and so is " + second);
}

} // namespace

Status check_replayable(const OperationTensors& op, const ContractValues& contract) {
  const Operation* known = find_recorded(op.id.operation, contract, op.inputs, op.outputs);
  if (!known) return {};
  const std::string why = only_recorded(*known, contract);
  if (why.empty()) return {};
  return unsupported(op.path + ": /steps/" + std::to_string(op.id.step) + "/" + op.id.operation +
                     ": " + why + " is recorded, but not replayed by this version");
}

Status check_structure(const OperationTensors& op, const ContractValues& contract) {
  const Operation* known = find_recorded(op.id.operation, contract, op.inputs, op.outputs);
  if (!known || !only_recorded(*known, contract).empty()) return {};
  DSAKIT_TRY(check_keys(op, *known, contract));
  DSAKIT_TRY(check_outputs(op, *known));
  for (const std::string& input : words(known->inputs))
    DSAKIT_TRY(check_input(op, input));

  if (op.id.operation == "index_key_norm" && contract.at("index_k_norm") == "layernorm" &&
      !find_tensor(op.inputs, "norm_bias"))
    return hdf5::fail(op.path, object_path(op.id, Side::inputs, "norm_bias"),
                      "is missing, want it for layernorm");
  if (op.id.operation == "topk") {
    DSAKIT_TRY(check_selection(op, contract));
    DSAKIT_TRY(check_dcp_rank(op, "topk_indices", contract));
  }
  if (op.id.operation == "topk_slots") {
    DSAKIT_TRY(check_block_stride(op, contract));
    DSAKIT_TRY(check_dcp_rank(op, "slots", contract));
  }
  if (op.id.operation == "dcp_attention_merge") DSAKIT_TRY(check_corrected(op));
  if (known->format != "bf16_576") DSAKIT_TRY(check_mla_rows(op));

  SharedExtents extents;
  if (has_word(known->contract, "page_size"))
    extents.fix("page_size", *parse_page_size(contract), "the contract");
  std::optional<std::int64_t> page_offset;
  for (const TensorRule& rule : kTensorRules) {
    if (!applies(rule, *known)) continue;
    for (const auto* side : {&op.inputs, &op.outputs})
      for (const TensorInfo& tensor : *side) {
        const bool is_output = side == &op.outputs;
        if ((is_output ? tensor.output() : tensor.name()) != rule.tensor) continue;
        DSAKIT_TRY(check_tensor(op, tensor, rule, contract, extents));
        if (rule.tensor != "index_cache") continue;
        auto offset =
            check_page(op, tensor, *parse_page_size(contract), known->format == "mxfp4" ? 68 : 132);
        if (!offset) return offset.status();
        if (page_offset.value_or(*offset) != *offset)
          return hdf5::fail(op.path, tensor.object,
                            "found page_offset " + std::to_string(*offset) + ", want " +
                                std::to_string(*page_offset) + " as in the input");
        page_offset = *offset;
      }
  }
  return check_dense(op);
}

} // namespace dsakit::harness
