#include "sources.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "../recording/names.hpp"
#include "../recording/text.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "json.hpp"
#include "layer_places.hpp"

namespace dsakit::harness {
namespace {

/// Places of a tensor "steps.<n>.<tensor>": "operation/side/name ...". LOGITS stands for the
/// logits operation of the file's kind. The first place that exists stores it, the others link.
struct LayerTensor {
  std::string_view tensor;
  std::string_view places;
};

constexpr LayerTensor kTensors[] = {
    {"hidden_states", "layer/inputs/hidden_states qkv_a_proj/inputs/hidden_states "
                      "index_k_proj/inputs/hidden_states index_w_proj/inputs/hidden_states "
                      "gate_proj/inputs/hidden_states"},
    {"query_lens", "layer/inputs/query_lens"},
    {"seq_lens", "layer/inputs/seq_lens"},
    {"qkv_a", "qkv_a_proj/outputs/qkv_a q_norm/inputs/qkv_a kv_norm/inputs/qkv_a"},
    {"kv_a", "qkv_a_proj/outputs/qkv_a kv_norm/inputs/qkv_a"},
    {"q", "q_b_proj/outputs/q absorb_q/inputs/q"},
    {"kv_c", "kv_norm/outputs/kv_c mla_cache_write/inputs/kv_c"},
    {"k_pe", "mla_cache_write/inputs/k_pe"},
    {"index_q_input", "q_norm/outputs/index_q_input q_b_proj/inputs/index_q_input "
                      "index_q_proj/inputs/index_q_input"},
    {"index_q", "index_q_proj/outputs/index_q index_query_quant/inputs/index_q"},
    {"index_k_raw", "index_k_proj/outputs/index_k_raw index_key_norm/inputs/index_k_raw"},
    {"index_weights", "index_w_proj/outputs/index_weights index_weights_fold/inputs/index_weights"},
    {"index_q_fp8", "index_query_quant/outputs/index_q_fp8 LOGITS/inputs/index_q_fp8"},
    {"index_q_packed", "index_query_quant/outputs/index_q_packed LOGITS/inputs/index_q_packed"},
    {"index_q_scale", "index_query_quant/outputs/index_q_scale"},
    {"index_weights_folded",
     "index_weights_fold/outputs/index_weights_folded LOGITS/inputs/index_weights_folded"},
    {"index_k", "index_key_norm/outputs/index_k index_cache_write/inputs/index_k"},
    {"slot_mapping", "index_cache_write/inputs/slot_mapping mla_cache_write/inputs/slot_mapping"},
    {"index_cache_before", "index_cache_write/inputs/index_cache"},
    {"index_cache_after", "index_cache_write/outputs/index_cache LOGITS/inputs/index_cache"},
    {"block_table", "LOGITS/inputs/block_table topk_slots/inputs/block_table"},
    {"index_logits", "LOGITS/outputs/logits topk/inputs/logits"},
    {"topk_indices", "topk/outputs/topk_indices topk_slots/inputs/topk_indices"},
    {"mla_cache_before", "mla_cache_write/inputs/mla_cache"},
    {"mla_cache_after", "mla_cache_write/outputs/mla_cache sparse_attention/inputs/mla_cache"},
    {"topk_slots", "topk_slots/outputs/slots sparse_attention/inputs/slots"},
    {"mla_query", "absorb_q/outputs/mla_query sparse_attention/inputs/mla_query"},
    {"attn_latent", "sparse_attention/outputs/latent absorb_v/inputs/latent"},
    {"attn_lse", "sparse_attention/outputs/lse"},
    {"attn_value", "absorb_v/outputs/attn_value output_gate/inputs/attn_value"},
    {"gate", "gate_proj/outputs/gate output_gate/inputs/gate"},
    {"attn_gated", "output_gate/outputs/attn_gated o_proj/inputs/attn_gated"},
    {"output", "o_proj/outputs/output layer/outputs/output"},
};

/// What of it is otherwise on a rank of context parallelism: its own selection and attention, as
/// the layer's sink names them, and the merges with what the other ranks offer.
constexpr LayerTensor kRankTensors[] = {
    {"index_logits", ""},
    {"ranks.0.index_logits", "LOGITS/outputs/logits topk/inputs/logits"},
    {"ranks.0.topk_indices", "topk/outputs/topk_indices"},
    {"ranks.0.dcp_scores", "topk/outputs/dcp_scores"},
    {"rank_scores", "dcp_topk_merge/inputs/rank_scores"},
    {"rank_indices", "dcp_topk_merge/inputs/rank_indices"},
    {"topk_indices", "dcp_topk_merge/outputs/topk_indices topk_slots/inputs/topk_indices"},
    {"topk_slots", ""},
    {"ranks.0.topk_slots", "topk_slots/outputs/slots"},
    {"ranks.0.compact_slots", "topk_slots/outputs/compact_slots sparse_attention/inputs/slots"},
    {"ranks.0.counts", "topk_slots/outputs/counts"},
    {"ranks.0.attn_latent", "sparse_attention/outputs/latent"},
    {"ranks.0.attn_lse", "sparse_attention/outputs/lse"},
    {"rank_latent", "dcp_attention_merge/inputs/rank_latent"},
    {"rank_lse", "dcp_attention_merge/inputs/rank_lse"},
    {"attn_latent", "dcp_attention_merge/outputs/latent absorb_v/inputs/latent"},
    {"attn_lse", "dcp_attention_merge/outputs/lse"},
};

/// A weight "weights.<name>" and the input of the operation that takes it. Where a layer has one of
/// two, the other is not in the file.
struct LayerWeight {
  std::string_view operation;
  std::string_view input;
  std::string_view weight;
};

constexpr LayerWeight kWeights[] = {
    {"qkv_a_proj", "weight", "fused_qkv_a_proj"},
    {"qkv_a_proj", "weight", "kv_a_proj_with_mqa"},
    {"q_norm", "norm_weight", "q_a_layernorm"},
    {"q_b_proj", "weight", "q_b_proj"},
    {"q_b_proj", "weight", "q_proj"},
    {"kv_norm", "norm_weight", "kv_a_layernorm"},
    {"index_q_proj", "weight", "wq_index"},
    {"index_k_proj", "weight", "wk_index"},
    {"index_w_proj", "weight", "wv_index"},
    {"absorb_q", "weight", "kv_b_proj"},
    {"absorb_v", "weight", "kv_b_proj"},
    {"gate_proj", "weight", "g_proj"},
    {"o_proj", "weight", "o_proj"},
};

bool has_attribute(const Operation& operation, std::string_view key) {
  return operation.output_attributes.find(key) != std::string_view::npos;
}

/// Operations that this layer does not have, so that tensors do not land there.
bool has_operation(std::string_view operation, const LayerKind& kind) {
  if (operation == "q_norm") return kind.q_lora;
  if (operation == "output_gate" || operation == "gate_proj") return kind.gate;
  if (operation == "index_weights_fold") return !kind.mxfp4;
  return true;
}

/// All tensors of the operation are in the file. It need not hold those of a dense one.
bool is_whole(const std::vector<Placement>& placements, const Operation& operation) {
  const auto has = [&](Side side, std::string_view names) { // "a|b": one of them
    return std::any_of(placements.begin(), placements.end(), [&](const Placement& placement) {
      return placement.operation == operation.name && placement.side == side &&
             ("|" + std::string(names) + "|").find("|" + placement.name + "|") != std::string::npos;
    });
  };
  const auto has_all = [&](Side side, std::string_view list) {
    while (!list.empty()) {
      const std::string_view names = list.substr(0, list.find(' '));
      list.remove_prefix(std::min(names.size() + 1, list.size()));
      if (!has(side, names)) return false;
    }
    return true;
  };
  return has_all(Side::inputs, operation.inputs) && has_all(Side::outputs, operation.outputs);
}

bool is_dense(std::string_view operation) {
  return operation == "output_gate" ||
         std::any_of(std::begin(kWeights), std::end(kWeights),
                     [&](const LayerWeight& weight) { return weight.operation == operation; });
}

void place_step(Draft& draft, const std::string& prefix, std::int64_t step, const LayerKind& kind) {
  const std::vector<Placement> placements =
      layer_placements([&](const std::string& tensor) { return draft.has(tensor); }, prefix, kind);
  for (const Placement& placement : placements) {
    const Operation* known = find_operation(placement.operation);
    if (known && is_dense(known->name) && !is_whole(placements, *known)) continue;
    Attributes attributes;
    if (known && placement.side == Side::outputs) {
      // Computed in float64 and rounded at the end, from scales as they are stored.
      if (has_attribute(*known, "accumulation")) attributes["accumulation"] = "exact";
      if (has_attribute(*known, "mla_scale_read")) attributes["mla_scale_read"] = "fp32";
    }
    draft.place({step, placement.operation}, placement.side, placement.name, placement.tensor,
                attributes);
  }
}

/// One int32 per new token, from query_lens, seq_lens and the token's place in its request.
template <class Value>
Tensor per_token(const Tensor& query_lens, std::int64_t tokens, const Value& value) {
  Tensor out(Dtype::int32, {tokens});
  std::int64_t t = 0;
  for (std::int64_t b = 0; b < query_lens.elements(); ++b)
    for (std::int64_t i = 0; i < query_lens.as<std::int32_t>()[b]; ++i)
      out.as<std::int32_t>()[t++] = static_cast<std::int32_t>(value(b, i));
  return out;
}

/// Adds the keys that the table names in the pool as inputs of `logits`, nothing where the contract
/// does not fit the pool: the checks that follow say so.
Status gather_fp8(Draft& draft, const OperationId& logits, const Tensor& pool, const Tensor& table,
                  const std::vector<std::int32_t>& cu_seq_lens) {
  const auto pages = parse_index_pages(draft.contract);
  if (!pages || !reference::check_index_pages(*pages, pool.shape[1])) return {};
  const std::int64_t keys = cu_seq_lens.back();
  const bool fnuz = pages->index_fp8_encoding == Fp8Encoding::e4m3fnuz;
  Tensor k_fp8(fnuz ? Dtype::float8_e4m3fnuz : Dtype::float8_e4m3fn,
               {keys, reference::kIndexHeadDim});
  Tensor k_scale(Dtype::float32, {keys});
  DSAKIT_TRY(reference::index_cache_gather(
      *pages, {pool.as<std::uint8_t>(), pool.shape[0], pool.shape[1]},
      {table.as<std::int32_t>(), table.shape[0], table.shape[1]}, cu_seq_lens, {}, keys,
      k_fp8.as<std::uint8_t>(), k_scale.as<float>()));
  draft.add(logits, Side::inputs, "k_fp8", std::move(k_fp8), {{"reconstructed", "1"}});
  draft.add(logits, Side::inputs, "k_scale", std::move(k_scale), {{"reconstructed", "1"}});
  return {};
}

Status gather_mxfp4(Draft& draft, const OperationId& logits, const Tensor& pool,
                    const Tensor& table, const std::vector<std::int32_t>& cu_seq_lens) {
  const auto pages = parse_mxfp4_pages(draft.contract);
  if (!pages || !reference::check_mxfp4_pages(*pages, pool.shape[1])) return {};
  const std::int64_t keys = cu_seq_lens.back();
  Tensor k_packed(Dtype::float4_e2m1fn_x2, {keys, reference::kMxfp4Bytes});
  Tensor k_scale(Dtype::float8_e8m0fnu, {keys, reference::kMxfp4Groups});
  DSAKIT_TRY(reference::index_cache_gather_mxfp4(
      *pages, {pool.as<std::uint8_t>(), pool.shape[0], pool.shape[1]},
      {table.as<std::int32_t>(), table.shape[0], table.shape[1]}, cu_seq_lens, {}, keys,
      k_packed.as<std::uint8_t>(), k_scale.as<std::uint8_t>()));
  draft.add(logits, Side::inputs, "k_packed", std::move(k_packed), {{"reconstructed", "1"}});
  draft.add(logits, Side::inputs, "k_scale", std::move(k_scale), {{"reconstructed", "1"}});
  return {};
}

/// The keys of a layer's prefill, out of the cache's pages: the file holds the cache alone. Tensors
/// of another form are left to the checks that follow.
Status add_keys(Draft& draft, const std::string& prefix, const OperationId& logits,
                const std::vector<std::int64_t>& begin, const LayerKind& kind) {
  const auto page_size = parse_page_size(draft.contract);
  const DraftTensor* cache = draft.find(object_path(logits, Side::inputs, "index_cache"));
  const DraftTensor* table = draft.find(object_path(logits, Side::inputs, "block_table"));
  if (!page_size || !cache || !table) return {};
  const auto requests = static_cast<std::int64_t>(begin.size()) - 1;
  if (cache->info.dtype != Dtype::uint8 || cache->info.shape.size() != 2 ||
      table->info.dtype != Dtype::int32 || table->info.shape.size() != 2 ||
      table->info.shape[0] != requests)
    return {};
  const std::int64_t columns = table->info.shape[1];
  std::vector<std::int32_t> cu_seq_lens(1, 0);
  for (std::size_t b = 0; b + 1 < begin.size(); ++b) {
    if (begin[b + 1] - begin[b] > columns * *page_size)
      return bad_input(draft.file().path() + ": " + prefix + "seq_lens: [" + std::to_string(b) +
                       "]: found " + std::to_string(begin[b + 1] - begin[b]) +
                       ", want at most the " + std::to_string(columns * *page_size) +
                       " tokens of a row of block_table");
    cu_seq_lens.push_back(static_cast<std::int32_t>(begin[b + 1]));
  }
  auto pool = draft.read(*cache);
  if (!pool) return pool.status();
  auto block_table = draft.read(*table);
  if (!block_table) return block_table.status();
  return kind.mxfp4 ? gather_mxfp4(draft, logits, *pool, *block_table, cu_seq_lens)
                    : gather_fp8(draft, logits, *pool, *block_table, cu_seq_lens);
}

/// Row lengths, requests and windows of the logits (spec 2.7, 2.9).
Status add_rows(Draft& draft, const std::string& prefix, std::int64_t step, const LayerKind& kind) {
  for (const char* name : {"query_lens", "seq_lens"})
    if (!draft.has(prefix + name))
      return bad_input(draft.file().path() + ": " + prefix + name + " is missing");
  auto query_lens = draft.file().read(prefix + "query_lens");
  auto seq_lens = draft.file().read(prefix + "seq_lens");
  for (const auto* tensor : {&query_lens, &seq_lens})
    if (!*tensor) return tensor->status();
  if (query_lens->dtype != Dtype::int32 || seq_lens->dtype != Dtype::int32 ||
      query_lens->shape.size() != 1 || seq_lens->shape != query_lens->shape)
    return bad_input(draft.file().path() + ": " + prefix +
                     "query_lens, seq_lens: found other forms, want int32 of one shape [requests]");

  const auto* query = query_lens->as<std::int32_t>();
  const auto* total = seq_lens->as<std::int32_t>();
  const std::int64_t requests = query_lens->elements();
  const std::string slots = prefix + "slot_mapping";
  const std::int64_t want =
      draft.has(slots) ? element_count(draft.file().tensors().at(slots).shape) : 0;
  std::int64_t tokens = 0;
  for (std::int64_t b = 0; b < requests; ++b) {
    if (query[b] < 0 || query[b] > total[b])
      return bad_input(draft.file().path() + ": " + prefix + "query_lens: [" + std::to_string(b) +
                       "]: found " + std::to_string(query[b]) + ", want 0 to " +
                       std::to_string(total[b]));
    tokens += query[b];
  }
  if (tokens != want)
    return bad_input(draft.file().path() + ": " + prefix + "query_lens: found " +
                     std::to_string(tokens) + " tokens, want the " + std::to_string(want) +
                     " of slot_mapping");

  const OperationId logits{step, kind.logits};
  const auto row_len = [&](std::int64_t b, std::int64_t i) { return total[b] - query[b] + i + 1; };
  Tensor row_lens = per_token(*query_lens, tokens, row_len);
  Tensor row_request =
      per_token(*query_lens, tokens, [](std::int64_t b, std::int64_t) { return b; });
  if (kind.logits == "index_logits_prefill") {
    std::vector<std::int64_t> begin(1, 0); // of each request among the gathered keys
    for (std::int64_t b = 0; b < requests; ++b)
      begin.push_back(begin.back() + total[b]);
    if (begin.back() > std::numeric_limits<std::int32_t>::max())
      return bad_input(draft.file().path() + ": " + prefix + "seq_lens: found " +
                       std::to_string(begin.back()) + " keys together, want at most 2147483647");
    const auto at = [&](std::int64_t b) { return begin[static_cast<std::size_t>(b)]; };
    Tensor ks = per_token(*query_lens, tokens, [&](std::int64_t b, std::int64_t) { return at(b); });
    draft.add(logits, Side::inputs, "column_origin", ks); // columns count from the request's key 0
    draft.add(logits, Side::inputs, "ks", std::move(ks));
    DSAKIT_TRY(add_keys(draft, prefix, logits, begin, kind));
    draft.add(logits, Side::inputs, "ke",
              per_token(*query_lens, tokens,
                        [&](std::int64_t b, std::int64_t i) { return at(b) + row_len(b, i); }));
  }
  draft.add(logits, Side::inputs, "row_lens", row_lens);
  draft.add(logits, Side::inputs, "row_request", row_request);
  draft.add({step, "topk"}, Side::inputs, "row_lens", row_lens);
  draft.add({step, "topk_slots"}, Side::inputs, "row_lens", std::move(row_lens));
  draft.add({step, "topk_slots"}, Side::inputs, "row_request", std::move(row_request));
  return {};
}

} // namespace

std::vector<Placement> layer_placements(const std::function<bool(const std::string&)>& has,
                                        const std::string& prefix, const LayerKind& kind) {
  std::vector<Placement> placements;
  const auto add = [&](const std::string& tensor, std::string_view operation, Side side,
                       std::string_view name) {
    if (has_operation(operation, kind) && has(tensor))
      placements.push_back({tensor, operation == "LOGITS" ? kind.logits : std::string(operation),
                            side, std::string(name)});
  };
  const auto of_rank = [](const LayerTensor& known) {
    return std::any_of(std::begin(kRankTensors), std::end(kRankTensors),
                       [&](const LayerTensor& own) { return own.tensor == known.tensor; });
  };
  std::vector<LayerTensor> tensors;
  for (const LayerTensor& known : kTensors)
    if (!kind.dcp || !of_rank(known)) tensors.push_back(known);
  if (kind.dcp) tensors.insert(tensors.end(), std::begin(kRankTensors), std::end(kRankTensors));
  for (const LayerTensor& known : tensors) {
    std::string_view places = known.places;
    while (!places.empty()) {
      const std::string_view place = places.substr(0, places.find(' '));
      places.remove_prefix(std::min(place.size() + 1, places.size()));
      const bool is_input = place.find("/inputs/") != std::string_view::npos;
      add(prefix + std::string(known.tensor), place.substr(0, place.find('/')),
          is_input ? Side::inputs : Side::outputs, place.substr(place.rfind('/') + 1));
    }
  }
  if (!kind.gate) add(prefix + "attn_value", "o_proj", Side::inputs, "attn_value");
  for (const LayerWeight& weight : kWeights)
    add("weights." + std::string(weight.weight), weight.operation, Side::inputs, weight.input);
  add("weights.k_index_norm.weight", "index_key_norm", Side::inputs, "norm_weight");
  add("weights.k_index_norm.bias", "index_key_norm", Side::inputs, "norm_bias");
  if (kind.mxfp4) { // scores take the raw weights and the query's own scales (spec 3.3)
    add(prefix + "index_weights", "LOGITS", Side::inputs, "index_weights");
    add(prefix + "index_q_scale", "LOGITS", Side::inputs, "index_q_scale");
  } else {
    add(prefix + "index_q_scale", "index_weights_fold", Side::inputs, "index_q_scale");
  }
  return placements;
}

ContractValues layer_contract(const LayerKind& kind, const std::string& fp8_encoding,
                              const std::string& page_size) {
  ContractValues contract = {{"activation_dtype", "bf16"},
                             {"dcp_interleave", "1"},
                             {"dcp_world", "1"},
                             {"empty_row", "zero"},
                             {"gate_rounding", "two"},
                             {"hadamard", "none"},
                             {"index_fp8_encoding", fp8_encoding},
                             {"index_k_floor", "1e-4"},
                             {"index_k_norm", kind.index_k_norm},
                             {"index_page_layout", "block_flat"},
                             {"index_q_floor", "1e-10"},
                             {"lse_base", "e"},
                             {"mla_fp8_encoding", fp8_encoding},
                             {"mla_record", "fp8_ds_mla"},
                             {"page_size", page_size},
                             {"qmax", fp8_encoding == "e4m3fnuz" ? "224" : "448"},
                             {"rmsnorm_rounding", "two"},
                             {"scale_kind", "ue8m0"},
                             {"tie_rule", "smaller_index"},
                             {"topk_order", "rank"},
                             {"weight_fold", "bf16_intermediate"}};
  if (kind.mxfp4) {
    contract["index_page_layout"] = "flat";
    for (const char* of_fp8 :
         {"index_fp8_encoding", "index_k_floor", "index_q_floor", "scale_kind", "weight_fold"})
      contract.erase(of_fp8);
  }
  return contract;
}

Result<bool> place_layer_file(Draft& draft) {
  const std::string kind_text = draft.metadata("kind");
  if (!draft.file().metadata().count("config") || (kind_text != "decode" && kind_text != "prefill"))
    return false;
  auto config = parse_json(draft.file().path() + ": metadata config", draft.metadata("config"), 1);
  if (!config) return config.status();
  if (!config->is_object())
    return bad_input(draft.file().path() + ": metadata config: found no JSON object, want one");
  for (const auto& [key, value] : config->items())
    draft.config[key] = value.is_string() ? value.get<std::string>() : value.dump();
  for (const char* key :
       {"fp8_encoding", "page_size", "use_fp4", "output_gate", "q_lora_rank", "index_k_norm_type"})
    if (!draft.config.count(key))
      return bad_input(draft.file().path() + ": metadata config: found no " + std::string(key));
  draft.config["softmax_scale"] = draft.metadata("softmax_scale");

  const LayerKind kind{"index_logits_" + kind_text, draft.config["use_fp4"] == "true",
                       draft.config["q_lora_rank"] != "null", draft.config["output_gate"] == "true",
                       draft.config["index_k_norm_type"]};
  draft.contract = layer_contract(kind, draft.config["fp8_encoding"], draft.config["page_size"]);

  std::set<std::int64_t> steps;
  for (const auto& [tensor, entry] : draft.file().tensors()) {
    constexpr std::string_view kSteps = "steps.", kWeights = "weights.";
    if (tensor.starts_with(kWeights)) draft.weight(tensor.substr(kWeights.size()), tensor);
    if (!tensor.starts_with(kSteps)) continue;
    const auto dot = tensor.find('.', kSteps.size());
    const auto step =
        parse_step(std::string_view(tensor).substr(kSteps.size(), dot - kSteps.size()));
    if (!step || dot == std::string::npos)
      return bad_input(draft.file().path() + ": " + in_quotes(tensor) +
                       ": found no step number, want steps.<n>.<tensor>");
    steps.insert(*step);
    if (kind.mxfp4 && tensor.ends_with(".index_q_packed"))
      draft.retype(tensor, Dtype::float4_e2m1fn_x2);
    if (kind.mxfp4 && tensor.ends_with(".index_q_scale"))
      draft.retype(tensor, Dtype::float8_e8m0fnu);
  }
  for (std::int64_t step : steps) {
    const std::string prefix = "steps." + std::to_string(step) + ".";
    place_step(draft, prefix, step, kind);
    DSAKIT_TRY(add_rows(draft, prefix, step, kind));
  }
  for (const std::string& tensor : draft.unplaced())
    draft.output({0, "layer"}, tensor, tensor);
  for (const char* key : {"case", "kind", "seed", "index_cache_layout", "mla_cache"})
    if (draft.file().metadata().count(key)) draft.provenance[key] = draft.metadata(key);
  return true;
}

} // namespace dsakit::harness
