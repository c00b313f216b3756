// Problems by shape: what kTensorRules says of each tensor, filled with random values.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "../recording/tensor_rules.hpp"
#include "../recording/text.hpp"
#include "../replay/names.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/formats.hpp"
#include "fill.hpp"
#include "problem.hpp"

namespace dsakit::harness {
namespace {

using ExtentMap = std::map<std::string, std::int64_t, std::less<>>;

constexpr std::int64_t kUsualPageSize = 64;

ContractValues default_contract(const std::string& format) {
  ContractValues values = kimi_k31_contract({{"index_fp8_encoding", "e4m3fn"}});
  values["index_fp8_encoding"] = values["mla_fp8_encoding"] = "e4m3fn";
  values["index_k_norm"] = "layernorm";
  values["mla_scale_read"] = "fp32";
  values["accumulation"] = "fp32";
  if (format == "mxfp4") values["index_page_layout"] = "flat";
  return values;
}

/// Under the overrides; a key that the operation does not use is another problem's.
Result<ContractValues> contract_of(const Operation& operation,
                                   const std::vector<ContractOverride>& overrides) {
  ContractValues values = default_contract(std::string(operation.format)), used;
  for (const ContractOverride& o : overrides) {
    DSAKIT_TRY(check_contract_value(o.key, o.value));
    values[o.key] = o.value;
  }
  for (const std::string_view keys : {operation.contract, operation.output_attributes})
    for (const std::string& key : split_names(keys))
      used[key] = values.at(key);
  if (used.contains("mla_record") && used["mla_record"] != "fp8_ds_mla")
    return bad_input("--contract mla_record=" + used["mla_record"] +
                     ": no problem by shape has it, want fp8_ds_mla");
  return used;
}

Dtype fp8_dtype(const ContractValues& contract, const char* key) {
  const auto encoding = contract.find(key);
  return encoding != contract.end() && encoding->second == "e4m3fnuz" ? Dtype::float8_e4m3fnuz
                                                                      : Dtype::float8_e4m3fn;
}

Fp8Encoding encoding_of(const ContractValues& contract, const char* key) {
  return fp8_dtype(contract, key) == Dtype::float8_e4m3fnuz ? Fp8Encoding::e4m3fnuz
                                                            : Fp8Encoding::e4m3fn;
}

class Generator {
public:
  Generator(const Operation& operation, const BenchDims& dims, ContractValues contract,
            std::uint64_t seed)
      : operation_(operation), dims_(dims), contract_(std::move(contract)), pool_(seed) {
    for (const auto& [name, value] : dims)
      if (value.find_first_not_of("0123456789") == std::string::npos)
        extents_[name] = std::strtoll(value.c_str(), nullptr, 10);
    if (const auto size = contract_.find("page_size"); size != contract_.end())
      page_size_ = std::strtoll(size->second.c_str(), nullptr, 10);
    derive_extents();
  }

  Result<BenchProblem> run(bool with_values) {
    BenchProblem problem;
    problem.id = {0, std::string(operation_.name)};
    problem.contract = contract_;
    problem.dims = dims_;
    problem.config = {{"softmax_scale", "0.07216878364870322"}, {"rms_norm_eps", "1e-5"}};
    RecordedOperation& tensors = problem.tensors;
    std::vector<std::string> inputs = split_names(operation_.inputs);
    for (const char* optional : {"norm_bias", "row_request"})
      for (const std::string& name : split_names(operation_.optional))
        if (name == optional && operation_.name != "index_cache_gather") inputs.push_back(name);
    for (const std::string& input : inputs) // "a|b": the last, which is the smaller one
      DSAKIT_TRY(form(input.substr(input.rfind('|') + 1), tensors.inputs));
    for (const std::string_view outputs : {operation_.outputs, operation_.optional_outputs})
      for (const std::string& output : split_names(outputs))
        if (output != "dcp_scores" && output != "compact_slots" && output != "counts" &&
            output != "corrected")
          DSAKIT_TRY(form(output, tensors.outputs));
    DSAKIT_TRY(check_memory(problem.id.operation + " by shape", bytes_));
    if (!with_values) return problem;
    for (auto* side : {&tensors.inputs, &tensors.outputs})
      for (auto& [name, recorded] : *side)
        recorded.tensor = Tensor(recorded.tensor.dtype, recorded.tensor.shape);
    for (auto& [name, recorded] : tensors.outputs)
      for (const std::string& key : split_names(operation_.output_attributes))
        recorded.attributes[key] = contract_.at(key);
    std::uint64_t stream = 0;
    for (auto& [name, recorded] : tensors.inputs)
      fill(name, recorded.tensor, stream += 16);
    problem.contract.erase("accumulation");
    return problem;
  }

private:
  std::int64_t extent(std::string_view name) const { return extents_.find(name)->second; }
  bool has_extent(std::string_view name) const { return extents_.contains(name); }
  std::int64_t pages_of(std::int64_t tokens) const {
    return (tokens + page_size_ - 1) / page_size_;
  }

  /// What the tensors have beside the dimensions.
  void derive_extents() {
    const std::string name(operation_.name);
    extents_["page_size"] = page_size_;
    extents_["bytes"] = page_size_ * (operation_.format == "mxfp4" ? 68 : 132);
    if (name == "index_logits_decode") extents_["rows"] = extent("requests") * extent("next_n");
    if (name == "index_logits_decode") extents_["keys"] = extent("context");
    if (name == "index_logits_prefill") extents_["columns"] = extent("keys");
    if (name == "index_cache_gather") extents_["rows"] = extent("requests") * extent("context");
    if (has_extent("requests")) extents_["columns"] = pages_of(extent("context"));
    if (has_extent("requests")) extents_["pages"] = extent("requests") * extent("columns");
    if (name == "index_cache_write" || name == "mla_cache_write") {
      extents_["keys"] = extent("tokens");
      extents_["pages"] = pages_of(extent("tokens"));
    }
    if (name == "q_b_proj") extents_["dim"] = 192, extents_["out"] = extent("heads") * 192;
    if (name == "index_q_proj") extents_["out"] = extent("heads") * 128;
    if (name == "dcp_attention_merge") extents_["dim"] = 512;
    if (name == "absorb_q" || name == "absorb_v") {
      extents_["kv_b"] = extent("heads") * 256;
      extents_["latent"] = 512;
      extents_["q_dim"] = 192;
      extents_["query_dim"] = 576;
      extents_["values"] = extent("heads") * 128;
    }
  }

  Dtype dtype_of(std::string_view rule) const {
    if (rule == "activation" || rule == "weight" || rule == "bf16_or_fp32") return Dtype::bfloat16;
    if (rule == "parameter") return Dtype::float32;
    if (rule == "fp8") return fp8_dtype(contract_, "index_fp8_encoding");
    return *parse_dtype(rule);
  }

  /// Adds the tensor without its payload.
  Status form(const std::string& name, std::map<std::string, RecordedTensor>& side) {
    for (const TensorRule& rule : kTensorRules) {
      if (!applies(rule, operation_) || rule.tensor != name) continue;
      RecordedTensor recorded;
      recorded.tensor.dtype = dtype_of(rule.dtype);
      for (const std::string& axis : split_names(rule.shape)) {
        recorded.axes.push_back(axis);
        recorded.tensor.shape.push_back(extent_of(axis));
      }
      double bytes = static_cast<double>(size_of(recorded.tensor.dtype));
      for (const std::int64_t n : recorded.tensor.shape) {
        if (n >= std::int64_t{1} << 31)
          return bad_input(std::string(operation_.name) + ": " + name + ": found an extent of " +
                           std::to_string(n) + ", want less than 2^31");
        bytes *= static_cast<double>(n);
      }
      bytes_ += bytes;
      side[name] = std::move(recorded);
      return {};
    }
    return bad_input(std::string(operation_.name) + ": no problem by shape has a " + name);
  }

  std::int64_t extent_of(const std::string& axis) const {
    if (axis.find_first_not_of("0123456789") == std::string::npos)
      return std::strtoll(axis.c_str(), nullptr, 10);
    if (axis.ends_with("+1")) return extent(axis.substr(0, axis.size() - 2)) + 1;
    return extent(axis);
  }

  void fill(const std::string& name, Tensor& tensor, std::uint64_t stream) {
    auto* ids = tensor.as<std::int32_t>();
    const std::int64_t n = tensor.elements();
    if (name == "weight") {
      fill_values(tensor, pool_, stream, 1 / std::sqrt(static_cast<float>(tensor.shape[1])));
    } else if (name == "norm_weight") {
      fill_values(tensor, pool_, stream, 0.1F, 1);
    } else if (name == "index_cache") {
      fill_index_cache(tensor, page_size_, operation_.format == "mxfp4",
                       encoding_of(contract_, "index_fp8_encoding"), pool_, stream);
    } else if (name == "mla_cache") {
      fill_mla_cache(tensor, encoding_of(contract_, "mla_fp8_encoding"), pool_, stream);
    } else if (name == "logits") {
      fill_logits(tensor, dims_.at("input"), pool_, stream);
    } else if (name == "k_scale" || name == "index_q_scale") {
      fill_scales(tensor, stream);
    } else if (name == "block_table") {
      const auto order = pool_.permutation(kPages, n);
      std::copy(order.begin(), order.end(), ids);
    } else if (name == "slot_mapping") {
      const auto order = pool_.permutation(kPages, extent("pages"));
      for (std::int64_t token = 0; token < n; ++token)
        tensor.as<std::int64_t>()[token] =
            order[static_cast<std::size_t>(token / page_size_)] * page_size_ + token % page_size_;
    } else if (tensor.dtype == Dtype::int32) {
      fill_ids(name, tensor, stream);
    } else {
      fill_values(tensor, pool_, stream);
    }
  }

  void fill_scales(Tensor& tensor, std::uint64_t stream) const {
    if (tensor.dtype != Dtype::float32) return fill_values(tensor, pool_, stream);
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.as<float>()[i] =
          1.0F / static_cast<float>(1 << pool_.bits(stream, static_cast<std::uint64_t>(i)) % 6);
  }

  /// The request of a row: requests have equally many rows, as far as that goes.
  std::int64_t request_of(std::int64_t row) const {
    return has_extent("requests") ? row * extent("requests") / extent("rows") : 0;
  }

  void fill_ids(const std::string& name, Tensor& tensor, std::uint64_t stream) {
    auto* ids = tensor.as<std::int32_t>();
    const std::int64_t n = tensor.elements();
    const auto each = [&](const auto& value) {
      for (std::int64_t i = 0; i < n; ++i)
        ids[i] = static_cast<std::int32_t>(value(i));
    };
    if (name == "row_lens") {
      each([&](std::int64_t row) { return row_length(row); });
    } else if (name == "row_request") {
      each([&](std::int64_t row) { return request_of(row); });
    } else if (name == "cu_seq_lens") {
      each([&](std::int64_t request) { return request * extent("context"); });
    } else if (name == "ks") {
      each([](std::int64_t) { return 0; });
    } else if (name == "ke") { // the rows are the last tokens of the keys
      const std::int64_t rows = extent("rows"), keys = extent("keys");
      each([&](std::int64_t row) { return std::max<std::int64_t>(keys - rows + 1 + row, 1); });
    } else if (name == "topk_indices") {
      fill_positions(tensor, extent("context"), dims_.at("sets"), pool_, stream);
    } else if (name == "slots") {
      fill_positions(tensor, extent("context"), dims_.at("sets"), pool_, stream);
      const auto order = pool_.permutation(kPages, extent("pages"));
      const std::int64_t k = tensor.shape[1], columns = extent("columns");
      for (std::int64_t i = 0; i < n; ++i)
        if (ids[i] >= 0) {
          const std::int64_t page = request_of(i / k) * columns + ids[i] / page_size_;
          ids[i] = static_cast<std::int32_t>(order[static_cast<std::size_t>(page)] * page_size_ +
                                             ids[i] % page_size_);
        }
    } else { // rank_indices [ranks, rows, k]: positions of each rank, which share none
      const std::int64_t ranks = extent("ranks"), k = extent("k"), of_rank = n / ranks;
      each([&](std::int64_t i) { return i % k * ranks + i / of_rank; });
    }
  }

  std::int64_t row_length(std::int64_t row) const {
    if (operation_.name == "topk") return extent("keys");
    const std::int64_t context = extent("context");
    if (operation_.name != "index_logits_decode") return context;
    const std::int64_t next_n = extent("next_n"), request = row / next_n;
    std::int64_t length = context;
    if (dims_.at("lengths") == "uneven") { // from context / 16 up to it
      const std::int64_t least = (context + 15) / 16;
      length = least +
               static_cast<std::int64_t>(pool_.bits(kLengths, static_cast<std::uint64_t>(request)) %
                                         static_cast<std::uint64_t>(context - least + 1));
    }
    return std::max<std::int64_t>(length - next_n + 1 + row % next_n, 0);
  }

  static constexpr std::uint64_t kPages = 1, kLengths = 2;

  const Operation& operation_;
  const BenchDims& dims_;
  ContractValues contract_;
  ValuePool pool_;
  ExtentMap extents_;
  std::int64_t page_size_ = kUsualPageSize;
  double bytes_ = 0;
};

} // namespace

Result<BenchProblem> generate(const std::string& operation, const BenchDims& shape,
                              const std::vector<ContractOverride>& overrides, std::uint64_t seed,
                              bool fill) {
  const auto format = shape.find("format");
  std::string_view which = format != shape.end() ? std::string_view(format->second) : "";
  if (operation == "sparse_attention") which = "fp8_ds_mla";
  const Operation* found = find_operation(operation, which);
  if (!found) return bad_input("operation: found " + in_quotes(operation) + ", want another");
  auto contract = contract_of(*found, overrides);
  DSAKIT_TRY(contract);
  if (contract->contains("activation_dtype") && contract->at("activation_dtype") != "bf16")
    return unsupported("activation_dtype: found fp16, want bf16");
  const auto k = shape.find("k");
  if (operation == "dcp_topk_merge" &&
      std::strtoll(k->second.c_str(), nullptr, 10) *
              std::strtoll(shape.at("ranks").c_str(), nullptr, 10) >=
          (std::int64_t{1} << 31))
    return bad_input("dcp_topk_merge: found ranks=" + shape.at("ranks") + " k=" + k->second +
                     ", want a product below 2^31");
  return Generator(*found, shape, std::move(*contract), seed).run(fill);
}

} // namespace dsakit::harness
