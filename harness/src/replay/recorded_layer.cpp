// What of a recording makes a layer, and whether it goes together.
#include <algorithm>

#include "../operations/launch.hpp"
#include "dsakit/reference/layer_config.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "layer_run.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

constexpr const char* kOperationsOfALayer[] = {
    "qkv_a_proj",      "q_b_proj",       "kv_norm",           "index_q_proj",      "index_k_proj",
    "index_w_proj",    "index_key_norm", "index_query_quant", "index_cache_write", "topk",
    "mla_cache_write", "topk_slots",     "absorb_q",          "sparse_attention",  "absorb_v",
    "o_proj"};

Status lacks(std::int64_t step, const std::string& what) {
  return unsupported("step " + std::to_string(step) + " holds no " + what +
                     ", which the layer as a whole needs");
}

Status differs(const std::string& tensor, const Shape& found, const Shape& want) {
  return unsupported("the operations are not of one layer: " + tensor + ": found " +
                     to_string(found) + ", want " + to_string(want));
}

} // namespace

Result<RecordedLayer> RecordedLayer::read(const RecordingReader& reader, std::int64_t step,
                                          const ContractValues& values) {
  const auto world = parse_dcp_world(values);
  DSAKIT_TRY(world);
  if (*world != 1)
    return unsupported("dcp_world: found " + std::to_string(*world) +
                       ", want 1: as a whole the layer runs without context parallelism");
  std::map<std::string, RecordedOperation> parts;
  const auto& ids = reader.operations();
  const auto recorded = [&](const std::string& operation) {
    return std::any_of(ids.begin(), ids.end(), [&](const OperationId& id) {
      return id.step == step && id.operation == operation;
    });
  };
  for (const char* operation : kOperationsOfALayer)
    if (!recorded(operation)) return lacks(step, operation);
  if (!recorded("index_logits_decode") && !recorded("index_logits_prefill"))
    return lacks(step, "index_logits_decode or index_logits_prefill");
  for (const OperationId& id : ids) {
    if (id.step != step) continue;
    auto part = reader.read(id, values);
    DSAKIT_TRY(part);
    for (auto& [name, tensor] : part->outputs)
      tensor.tensor.bytes.clear(); // the shapes are enough
    parts.emplace(id.operation, std::move(*part));
  }
  const auto& of_layer = parts[std::string(kLayer)].inputs;
  for (const char* lens : {"query_lens", "seq_lens"})
    if (const auto found = of_layer.find(lens); found == of_layer.end() ||
                                                found->second.tensor.dtype != Dtype::int32 ||
                                                found->second.tensor.shape.size() != 1)
      return lacks(step, std::string("layer/inputs/") + lens + " of int32 [requests]");

  const auto scale_read = parse_mla_scale_read(values.at("mla_scale_read"));
  DSAKIT_TRY(scale_read);
  const auto contract = reference::parse_layer_contract(values, *scale_read);
  if (!contract) return unsupported("the layer as a whole: " + contract.status().what());
  RecordedLayer layer(*contract, std::move(parts), reader.config());
  DSAKIT_TRY(layer.check());
  DSAKIT_TRY(layer.check_lens(reader.path(), step));
  const auto widen = [&](const std::string& weight, const std::string& operation,
                         const std::string& input) {
    const auto& inputs = layer.parts_.at(operation).inputs;
    if (inputs.count(input)) layer.norms_[weight] = widened(inputs.at(input).tensor);
  };
  if (layer.has("q_norm")) widen("q_a_layernorm", "q_norm", "norm_weight");
  widen("kv_a_layernorm", "kv_norm", "norm_weight");
  widen("k_index_norm.weight", "index_key_norm", "norm_weight");
  widen("k_index_norm.bias", "index_key_norm", "norm_bias");
  return layer;
}

/// What the operations agree on; the extents of the weights are judged by the layer.
Status RecordedLayer::check() const {
  const Tensor& hidden = input("qkv_a_proj", "hidden_states");
  const Tensor& lens = input(std::string(kLayer), "query_lens");
  const Shape requests = lens.shape, rows = {hidden.shape[0]};
  if (logits() == "index_logits_prefill")
    for (const std::int32_t length : int32s("query_lens"))
      if (length == 0)
        return unsupported(
            "query_lens: found a request without new tokens in a prefill step, which "
            "would end the one launch of its indexer");
  if (const Tensor& seq = input(std::string(kLayer), "seq_lens"); seq.shape != requests)
    return differs("seq_lens", seq.shape, requests);
  for (const Tensor* table : {&index_table(), &input("topk_slots", "block_table")})
    if (table->shape[0] != requests[0])
      return differs("block_table", table->shape, {requests[0], table->shape[1]});
  for (const auto& [operation, name] : {std::pair{"q_b_proj", "q"},
                                        {"index_q_proj", "index_q"},
                                        {"topk", "topk_indices"},
                                        {"topk_slots", "slots"},
                                        {"sparse_attention", "latent"},
                                        {"o_proj", "output"}})
    if (const Shape& shape = output(operation, name).shape; shape[0] != rows[0])
      return differs(name, {shape[0]}, rows);
  if (const Shape& found = output(logits(), "logits").shape; found[0] != rows[0])
    return differs("logits", {found[0]}, rows);
  if (const Shape& found = output("qkv_a_proj", "qkv_a").shape;
      !has("q_norm") && found[1] != reference::kMlaLatent + reference::kMlaPe)
    return differs("qkv_a of a layer without q_norm", found,
                   {rows[0], reference::kMlaLatent + reference::kMlaPe});
  const Tensor& cache = input("mla_cache_write", "mla_cache");
  if (cache.shape[1] != contract_.page_size)
    return differs("mla_cache", cache.shape,
                   {cache.shape[0], contract_.page_size, reference::kMlaRecord});
  return {};
}

/// Lengths that no step of these rows, tables and logits has are bad input; of logits that are
/// wider than the longest of them, the layer has other ones.
Status RecordedLayer::check_lens(const std::string& path, std::int64_t step) const {
  const std::vector<std::int32_t> added = int32s("query_lens"), lens = int32s("seq_lens");
  const auto bad = [&](const char* name, std::size_t i, std::int64_t found,
                       const std::string& want) {
    const OperationId id{step, std::string(kLayer)};
    return bad_input(path + ": " + object_path(id, Side::inputs, name) + " " +
                     to_string(Shape{static_cast<std::int64_t>(i)}) + ": found " +
                     std::to_string(found) + ", want " + want);
  };
  const std::int64_t rows = input("qkv_a_proj", "hidden_states").shape[0];
  const std::int64_t columns = output(logits(), "logits").shape[1];
  const std::int64_t in_tables =
      contract_.page_size *
      std::min(index_table().shape[1], input("topk_slots", "block_table").shape[1]);
  std::int64_t all = 0;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    if (added[i] < 0 || all + added[i] > rows)
      return bad("query_lens", i, added[i],
                 "0 to the " + std::to_string(rows - all) + " rows that are left of hidden_states");
    all += added[i];
    if (lens[i] < added[i])
      return bad("seq_lens", i, lens[i],
                 "at least its " + std::to_string(added[i]) + " new tokens (query_lens)");
    if (lens[i] > in_tables)
      return bad("seq_lens", i, lens[i],
                 "at most the " + std::to_string(in_tables) + " tokens of a row of block_table");
    if (lens[i] > columns)
      return bad("seq_lens", i, lens[i],
                 "at most the " + std::to_string(columns) + " columns of logits");
  }
  const std::int64_t longest = longest_of(lens);
  if (longest == columns) return {};
  return unsupported("the operations are not of one layer: seq_lens: found " +
                     std::to_string(longest) + " as the longest, want " + std::to_string(columns) +
                     ", the columns of logits, which count from each request's first key");
}

} // namespace dsakit::harness
