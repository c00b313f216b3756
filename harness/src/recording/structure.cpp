#include "structure.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <sstream>

#include "dsakit/core/operations.hpp"
#include "hdf5.hpp"
#include "names.hpp"
#include "text.hpp"

namespace dsakit::harness {
namespace {

/// Shape of a tensor: a name is an extent that all tensors of the operation share, "requests+1" one
/// more than it. dtype: a dtype name, or "fp8" and "activation" for what the contract says.
struct TensorRule {
  std::string_view operation;
  std::string_view tensor; ///< inputs and outputs of one name look the same
  std::string_view dtype;
  std::string_view shape;
};

constexpr TensorRule kRules[] = {
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

bool is_mxfp4(IndexPageLayout layout) {
  return layout == IndexPageLayout::flat || layout == IndexPageLayout::preshuffle64;
}

/// The keys that the operation needs, present and well-formed.
Result<IndexPages> check_contract(const OperationTensors& op, const Operation& known,
                                  const ContractValues& contract) {
  const std::string where = "/contract (step " + std::to_string(op.id.step) + ")";
  for (const std::string& key : words(known.contract))
    if (!contract.count(key))
      return hdf5::fail(op.path, where, "found no key " + key + ", want it for " + op.id.operation);
  auto pages = parse_index_pages(contract);
  if (!pages) return hdf5::fail(op.path, where, pages.status().what());
  if (has_word(known.contract, "qmax"))
    if (auto quant = parse_index_key_quant(contract); !quant)
      return hdf5::fail(op.path, where, quant.status().what());
  return pages;
}

Dtype wanted_dtype(std::string_view text, const ContractValues& contract) {
  if (text == "fp8")
    return contract.at("index_fp8_encoding") == "e4m3fnuz" ? Dtype::float8_e4m3fnuz
                                                           : Dtype::float8_e4m3fn;
  if (text == "activation")
    return contract.at("activation_dtype") == "fp16" ? Dtype::float16 : Dtype::bfloat16;
  return *parse_dtype(text);
}

/// Extents by name, with the object that fixed each.
class SharedExtents {
public:
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
  const Dtype dtype = wanted_dtype(rule.dtype, contract);
  if (tensor.dtype != dtype)
    return hdf5::fail(op.path, tensor.object,
                      "found dtype " + std::string(name(tensor.dtype)) + ", want " +
                          std::string(name(dtype)));
  if (const std::string wanted = extents.mismatch(tensor, rule.shape); !wanted.empty())
    return hdf5::fail(op.path, tensor.object,
                      "found shape " + to_string(tensor.shape) + ", want " + wanted);
  return {};
}

/// The cache's page_offset; a page of page_size records of 132 bytes must lie there in each row.
Result<std::int64_t> check_page(const OperationTensors& op, const TensorInfo& cache,
                                std::int64_t page_size) {
  std::int64_t offset = 0;
  if (const auto text = cache.attributes.find("page_offset"); text != cache.attributes.end()) {
    const std::string& value = text->second;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), offset);
    if (error != std::errc{} || end != value.data() + value.size() || offset < 0)
      return hdf5::fail(op.path, cache.object,
                        "found page_offset " + in_quotes(value) + ", want bytes >= 0");
  }
  constexpr std::int64_t kRecordBytes = 132;
  if (cache.shape[1] - offset < page_size * kRecordBytes || offset > cache.shape[1])
    return hdf5::fail(op.path, cache.object,
                      "found rows of " + std::to_string(cache.shape[1]) + " bytes, want at least " +
                          std::to_string(page_size * kRecordBytes) + " from byte " +
                          std::to_string(offset) + " (page_size " + std::to_string(page_size) +
                          ")");
  return offset;
}

/// Every output of the operation is there, and nothing that would never be compared.
Status check_outputs(const OperationTensors& op, const Operation& known) {
  for (const TensorInfo& tensor : op.outputs) {
    if (!has_word(known.outputs, tensor.output()))
      return hdf5::fail(op.path, tensor.object,
                        "found output " + in_quotes(tensor.output()) +
                            ", want one of: " + std::string(known.outputs));
    if (!has_word(known.accumulating, tensor.output())) continue;
    const auto text = tensor.attributes.find("accumulation");
    if (text == tensor.attributes.end())
      return hdf5::fail(op.path, tensor.object,
                        "found no attribute accumulation, want exact | fp32 | sm90_wgmma_fp8");
    if (auto accumulation = parse_accumulation(text->second); !accumulation)
      return hdf5::fail(op.path, tensor.object, accumulation.status().what());
  }
  for (const std::string& output : words(known.outputs))
    if (std::none_of(op.outputs.begin(), op.outputs.end(),
                     [&](const TensorInfo& tensor) { return tensor.output() == output; }))
      return hdf5::fail(op.path, object_path(op.id, Side::outputs, output), "is missing");
  return {};
}

} // namespace

Status check_replayable(const OperationTensors& op, const ContractValues& contract) {
  const Operation* known = find_operation(op.id.operation);
  if (!known) return {};
  auto pages = check_contract(op, *known, contract);
  if (!pages) return pages.status();
  if (is_mxfp4(pages->index_page_layout))
    return unsupported(op.path + ": /steps/" + std::to_string(op.id.step) + "/" + op.id.operation +
                       ": index_page_layout " + std::string(name(pages->index_page_layout.value)) +
                       " (MXFP4) is recorded, but not replayed by this version");
  return {};
}

Status check_structure(const OperationTensors& op, const ContractValues& contract) {
  const Operation* known = find_operation(op.id.operation);
  if (!known) return {};
  auto pages = check_contract(op, *known, contract);
  if (!pages) return pages.status();
  if (is_mxfp4(pages->index_page_layout)) return {};

  DSAKIT_TRY(check_outputs(op, *known));
  for (const std::string& input : words(known->inputs))
    if (!find_tensor(op.inputs, input))
      return hdf5::fail(op.path, object_path(op.id, Side::inputs, input), "is missing");

  SharedExtents extents;
  std::optional<std::int64_t> page_offset;
  for (const TensorRule& rule : kRules) {
    if (rule.operation != op.id.operation) continue;
    for (const auto* side : {&op.inputs, &op.outputs})
      for (const TensorInfo& tensor : *side) {
        const bool is_output = side == &op.outputs;
        if ((is_output ? tensor.output() : tensor.name()) != rule.tensor) continue;
        DSAKIT_TRY(check_tensor(op, tensor, rule, contract, extents));
        if (rule.tensor != "index_cache") continue;
        auto offset = check_page(op, tensor, pages->page_size);
        if (!offset) return offset.status();
        if (page_offset.value_or(*offset) != *offset)
          return hdf5::fail(op.path, tensor.object,
                            "found page_offset " + std::to_string(*offset) + ", want " +
                                std::to_string(*page_offset) + " as in the input");
        page_offset = *offset;
      }
  }
  return {};
}

} // namespace dsakit::harness
