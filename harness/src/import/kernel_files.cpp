#include "sources.hpp"

#include <algorithm>
#include <cstdio>

#include "../recording/text.hpp"
#include "json.hpp"

namespace dsakit::harness {
namespace {

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

/// "name: value; name: value". A part without ": " is left out.
std::map<std::string, std::string> parse_pairs(std::string_view text) {
  std::map<std::string, std::string> pairs;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find("; "));
    if (const auto colon = part.find(": "); colon != std::string_view::npos)
      pairs[trimmed(part.substr(0, colon))] = trimmed(part.substr(colon + 2));
    text.remove_prefix(std::min(part.size() + 2, text.size()));
  }
  return pairs;
}

/// The same, or a JSON object of texts.
Result<std::map<std::string, std::string>> parse_accumulations(const Draft& draft) {
  const std::string text = draft.metadata("accumulation");
  if (!text.starts_with('{')) return parse_pairs(text);
  auto json = parse_json(draft.file().path() + ": metadata accumulation", text, 1);
  if (!json) return json.status();
  std::map<std::string, std::string> pairs;
  for (const auto& [tensor, value] : json->items())
    pairs[tensor] = value.is_string() ? value.get<std::string>() : value.dump();
  return pairs;
}

/// "logits" and "logits_<producer>" as outputs, each with its accumulation.
Status place_logits(Draft& draft, const OperationId& id) {
  auto accumulations = parse_accumulations(draft);
  if (!accumulations) return accumulations.status();
  const auto producers = parse_pairs(draft.metadata("producers"));
  for (const std::string& tensor : draft.unplaced()) {
    constexpr std::string_view kLogits = "logits", kPrefix = "logits_";
    if (tensor != kLogits && !tensor.starts_with(kPrefix)) continue;
    Attributes attributes;
    std::string name(kLogits);
    if (tensor != kLogits) {
      name += "." + tensor.substr(kPrefix.size());
      attributes["output"] = kLogits;
    }
    if (const auto found = producers.find(tensor); found != producers.end())
      attributes["producer"] = found->second;
    if (const auto found = accumulations->find(tensor); found != accumulations->end())
      attributes["accumulation"] = found->second;
    draft.output(id, name, tensor, attributes);
  }
  return {};
}

/// "block-flat (NORMAL)" and "mfma_preshuffle (SHUFFLE 16x16)".
Status read_layout(Draft& draft) {
  const std::string text = draft.metadata("layout");
  if (text.starts_with("block-flat"))
    draft.contract["index_page_layout"] = "block_flat";
  else if (text.starts_with("mfma_preshuffle"))
    draft.contract["index_page_layout"] = "mfma_preshuffle";
  else
    return bad_input(draft.file().path() + ": metadata layout: found " + in_quotes(text) +
                     ", want block-flat or mfma_preshuffle");
  return {};
}

void read_pages(Draft& draft) {
  draft.contract["index_fp8_encoding"] = draft.metadata("fp8_encoding");
  draft.contract["page_size"] = draft.metadata("page_size");
}

std::string qmax(const Draft& draft) {
  return draft.metadata("fp8_encoding") == "e4m3fnuz" ? "224" : "448";
}

/// What vLLM's indexer writers do, whether the file says so or not (spec 2.4).
void follow_vllm_writer(Draft& draft) {
  draft.contract["activation_dtype"] = "bf16";
  draft.contract["scale_kind"] = "ue8m0";
  draft.contract["index_k_floor"] = "1e-4";
  draft.contract["qmax"] = qmax(draft);
}

void place_cache_write(Draft& draft, std::int64_t step, std::string_view cache,
                       const Attributes& attributes = {}) {
  const OperationId write{step, "index_cache_write"};
  draft.input(write, "index_k", "index_k");
  draft.input(write, "slot_mapping", "slot_mapping");
  draft.output(write, "index_cache", cache, attributes);
}

Status place_index_writers(Draft& draft) {
  DSAKIT_TRY(read_layout(draft));
  read_pages(draft);
  follow_vllm_writer(draft);
  place_cache_write(draft, 0, "index_cache");
  if (draft.has("index_cache_bs16")) {
    draft.step_contracts[1]["page_size"] = "16";
    place_cache_write(draft, 1, "index_cache_bs16");
  }
  if (draft.has("index_cache_packed")) // pages of several layers in one block row
    place_cache_write(draft, 2, "index_cache_packed", {{"page_offset", "8448"}});

  const OperationId gather{0, "index_cache_gather"};
  draft.input(gather, "index_cache", "index_cache");
  draft.input(gather, "block_table", "gather_block_table");
  draft.input(gather, "cu_seq_lens", "gather_cu_seq_lens");
  draft.input(gather, "row_request", "gather_token_to_seq");
  draft.output(gather, "k_fp8", "gathered_k");
  draft.output(gather, "k_scale", "gathered_scale");

  if (draft.has("mla_cache")) {
    draft.contract["mla_fp8_encoding"] = draft.metadata("fp8_encoding");
    draft.contract["mla_record"] = "fp8_ds_mla";
    const OperationId mla{0, "mla_cache_write"};
    draft.input(mla, "kv_c", "kv_c");
    draft.input(mla, "k_pe", "k_pe");
    draft.input(mla, "slot_mapping", "slot_mapping");
    draft.output(mla, "mla_cache", "mla_cache");
  }
  return {};
}

Status place_mxfp4_writers(Draft& draft) {
  read_pages(draft);
  follow_vllm_writer(draft);
  draft.contract["index_page_layout"] = "block_flat";
  draft.step_contracts[1]["index_page_layout"] = "mfma_preshuffle";
  draft.step_contracts[2] = {{"index_page_layout", "flat"}, {"hadamard", "none"}};
  place_cache_write(draft, 0, "index_cache_fp8_normal");
  place_cache_write(draft, 1, "index_cache_fp8_shuffle");
  place_cache_write(draft, 2, "index_cache_fp4");
  return {};
}

Status place_decode_logits(Draft& draft) {
  DSAKIT_TRY(read_layout(draft));
  read_pages(draft);
  const OperationId id{0, "index_logits_decode"};
  draft.input(id, "index_q_fp8", "q_fp8");
  draft.input(id, "index_cache", "index_cache");
  draft.input(id, "index_weights_folded", "weights");
  draft.input(id, "block_table", "block_table");
  draft.input(id, "row_lens", "row_lens");
  draft.input(id, "context_lens", "context_lens");
  return place_logits(draft, id);
}

Status place_prefill_logits(Draft& draft) {
  draft.contract["index_fp8_encoding"] = draft.metadata("fp8_encoding");
  const OperationId id{0, "index_logits_prefill"};
  draft.input(id, "index_q_fp8", "q_fp8");
  draft.input(id, "k_fp8", "k_fp8");
  draft.input(id, "k_scale", "k_scale");
  draft.input(id, "index_weights_folded", "weights");
  draft.input(id, "ks", "cu_seqlen_ks");
  draft.input(id, "ke", "cu_seqlen_ke");
  return place_logits(draft, id);
}

Status place_query_quant(Draft& draft) {
  draft.contract = {{"activation_dtype", "bf16"},
                    {"index_fp8_encoding", draft.metadata("fp8_encoding")},
                    {"index_q_floor", "1e-10"},
                    {"qmax", qmax(draft)},
                    {"scale_kind", "ue8m0"}};
  const OperationId ue8m0{0, "index_query_quant"};
  draft.input(ue8m0, "index_q", "x");
  draft.output(ue8m0, "index_q_fp8", "q_fp8");
  draft.output(ue8m0, "index_q_scale", "q_scale");
  draft.output(ue8m0, "index_q_fp8.division", "q_fp8_division", {{"output", "index_q_fp8"}});
  draft.output(ue8m0, "index_q_scale.division", "q_scale_division", {{"output", "index_q_scale"}});

  // The rest is only recorded: unrounded scales, which that GPU divides approximately, and rows
  // with NaN and infinities, which its amax hides.
  const OperationId cast{0, "fp8_cast"};
  draft.input(cast, "x", "x");
  draft.input(cast, "x_nonfinite", "x_nonfinite");
  return {};
}

Status place_mxfp4_quant(Draft& draft) {
  draft.contract = {{"activation_dtype", "bf16"}, {"hadamard", "none"}};
  const OperationId id{0, "index_query_quant"};
  draft.input(id, "index_q", "x");
  draft.retype("packed", Dtype::float4_e2m1fn_x2);
  draft.retype("scale_e8m0", Dtype::float8_e8m0fnu);
  draft.output(id, "index_q_packed", "packed");
  draft.output(id, "index_q_scale", "scale_e8m0");
  return {};
}

Status place_fp8_cast(Draft& draft) {
  draft.input({0, "fp8_cast"}, "x", "x");
  for (const std::string& tensor : draft.unplaced())
    draft.retype(tensor,
                 tensor.starts_with("fnuz_") ? Dtype::float8_e4m3fnuz : Dtype::float8_e4m3fn);
  return {};
}

/// Steps 0 to 2 have every slot, by page size and block stride; the steps from 3 on those of one
/// rank: "dcp<world>_il<interleave>_rank<rank>_<inplace|slots|counts>".
Status place_index_convert(Draft& draft) {
  struct Step {
    const char* page_size;
    const char* block_stride;
  };
  constexpr Step kSteps[] = {{"64", "64"}, {"64", "80"}, {"16", "64"}};
  std::int64_t step = 0;
  const auto inputs = [&](const OperationId& id) {
    draft.input(id, "topk_indices", "token_indices");
    draft.input(id, "block_table", "block_table");
    draft.input(id, "row_request", "req_id");
  };
  for (const auto& [page_size, block_stride] : kSteps) {
    const OperationId id{step, "topk_slots"};
    const std::string geometry = std::string("bs") + page_size + "_stride" + block_stride;
    draft.step_contracts[step++]["page_size"] = page_size;
    inputs(id);
    draft.output(id, "slots", "slots_" + geometry, {{"block_stride", block_stride}});
    draft.output(id, "counts", "counts_" + geometry);
  }
  for (const std::string& tensor : draft.unplaced()) {
    char world[10], interleave[10], rank[10];
    int prefix = 0, end = 0;
    std::sscanf(tensor.c_str(), "dcp%9[0-9]_il%9[0-9]_rank%9[0-9]_%ninplace%n", world, interleave,
                rank, &prefix, &end);
    if (end == 0 || end != std::ssize(tensor)) continue;
    const std::string of_rank = tensor.substr(0, static_cast<std::size_t>(prefix));
    const OperationId id{step, "topk_slots"};
    draft.step_contracts[step++] = {
        {"page_size", "64"}, {"dcp_world", world}, {"dcp_interleave", interleave}};
    inputs(id);
    draft.output(id, "slots", tensor, {{"dcp_rank", rank}});
    draft.output(id, "compact_slots", of_rank + "slots");
    draft.output(id, "counts", of_rank + "counts");
  }
  return {};
}

Status place_topk(Draft& draft) {
  const OperationId id{0, "topk"};
  draft.contract = {{"tie_rule", "unspecified"}, {"topk_order", "unspecified"}};
  draft.config["index_topk"] = draft.metadata("k");
  draft.input(id, "logits", "logits");
  draft.input(id, "row_lens", "row_lens");
  Attributes attributes = {{"output", "topk_indices"}};
  const auto producers = parse_pairs(draft.metadata("producers"));
  if (const auto found = producers.find("topk"); found != producers.end())
    attributes["producer"] = found->second;
  draft.output(id, "topk_indices.vllm", "topk", attributes);
  return {};
}

Status place_attention(Draft& draft) {
  const bool bf16 = draft.has("kv_cache");
  draft.contract["mla_record"] = bf16 ? "bf16_576" : "fp8_ds_mla";
  draft.contract["page_size"] = draft.metadata("page_size");
  if (!bf16) {
    draft.contract["mla_fp8_encoding"] = draft.metadata("fp8_encoding");
    draft.contract["lse_base"] = draft.metadata("lse_base");
  }
  draft.config["softmax_scale"] = draft.metadata("softmax_scale");
  const OperationId id{0, "sparse_attention"};
  draft.input(id, "mla_query", "q");
  draft.input(id, "mla_cache", bf16 ? "kv_cache" : "mla_cache");
  draft.input(id, "slots", "slots");
  Attributes attributes = {{"accumulation", "fp32"}};
  if (!bf16) attributes["mla_scale_read"] = draft.metadata("mla_scale_read");
  draft.output(id, "latent", "out", attributes);
  draft.output(id, "lse", "lse", attributes);
  return {};
}

/// The ranks' outputs after correction; their sum over the ranks is not in the file. Step 0 in
/// bf16, the others in fp32, step 2 to base 2.
Status place_attention_merge(Draft& draft) {
  struct Step {
    const char* latent;
    const char* lse;
    const char* corrected;
    const char* base;
  };
  constexpr Step kSteps[] = {{"out", "lse", "corrected_bf16", "e"},
                             {"out_fp32", "lse", "corrected_fp32", "e"},
                             {"out_fp32", "lse_base2", "corrected_fp32_base2", "2"}};
  const Attributes attributes = {{"accumulation", "fp32"}};
  for (std::int64_t step = 0; step < std::ssize(kSteps); ++step) {
    const auto& [latent, lse, corrected, base] = kSteps[step];
    const OperationId id{step, "dcp_attention_merge"};
    draft.step_contracts[step]["lse_base"] = base;
    draft.input(id, "rank_latent", latent);
    draft.input(id, "rank_lse", "lses");
    draft.output(id, "lse", lse, attributes);
    draft.output(id, "corrected", corrected, attributes);
  }
  return {};
}

/// "<prefix>_<producer>" as outputs "<output>.<producer>".
void place_variants(Draft& draft, const OperationId& id, std::string_view output,
                    std::string_view prefix, const Attributes& attributes) {
  for (const std::string& tensor : draft.unplaced())
    if (tensor.starts_with(prefix)) {
      Attributes all = attributes;
      all["output"] = output;
      draft.output(id, std::string(output) + "." + tensor.substr(prefix.size()), tensor, all);
    }
}

/// Step 1 has the producers that round twice, step 2 aiter's norms and K3's gate, which round once.
void place_rms_norm(Draft& draft, const std::string& operation, const std::string& prefix,
                    std::string_view input, const std::string& output) {
  for (const std::int64_t step : {1, 2}) {
    draft.input({step, operation}, input, prefix + "x");
    draft.input({step, operation}, "norm_weight", prefix + "weight");
  }
  draft.output({2, operation}, output + ".aiter", prefix + "out_aiter", {{"output", output}});
  place_variants(draft, {1, operation}, output, prefix + "out_", {});
}

Status place_norms(Draft& draft) {
  draft.contract = {{"activation_dtype", "bf16"},
                    {"gate_rounding", "two"},
                    {"index_k_norm", "layernorm"},
                    {"rmsnorm_rounding", "two"}};
  draft.step_contracts[1]["index_k_norm"] = "rmsnorm";
  draft.step_contracts[2] = {
      {"gate_rounding", "one"}, {"index_k_norm", "rmsnorm"}, {"rmsnorm_rounding", "one"}};
  draft.config["rms_norm_eps"] = draft.metadata("eps");
  const OperationId layer_norm{0, "index_key_norm"};
  draft.input(layer_norm, "index_k_raw", "ln_x");
  draft.input(layer_norm, "norm_weight", "ln_weight_fp32");
  draft.input(layer_norm, "norm_bias", "ln_bias_fp32");
  place_variants(draft, layer_norm, "index_k", "ln_out_", {});

  place_rms_norm(draft, "index_key_norm", "rms128_", "index_k_raw", "index_k");
  place_rms_norm(draft, "kv_norm", "rms512_", "kv_c_raw", "kv_c");
  place_rms_norm(draft, "q_norm", "rms1536_", "q_c_raw", "index_q_input");

  for (const std::int64_t step : {1, 2}) {
    draft.input({step, "output_gate"}, "attn_value", "gate_o");
    draft.input({step, "output_gate"}, "gate", "gate_g");
  }
  draft.output({2, "output_gate"}, "attn_gated.k3_triton", "gate_out_k3_triton",
               {{"output", "attn_gated"}});
  place_variants(draft, {1, "output_gate"}, "attn_gated", "gate_out_", {});
  return {};
}

struct KnownOp {
  std::string_view op;        ///< metadata `op`
  std::string_view operation; ///< only recorded: where tensors go that have no place of their own
  Status (*place)(Draft&);
};

constexpr KnownOp kKnownOps[] = {
    {"indexer_k_quant_and_cache, concat_and_cache_ds_mla, cp_gather_indexer_k_quant_cache", "layer",
     place_index_writers},
    {"indexer_k_quant_and_cache, cp_gather_indexer_k_quant_cache", "mla_cache_write",
     place_index_writers},
    {"indexer_k_quant_and_cache (MXFP4, FLAT page)", "layer", place_mxfp4_writers},
    {"indexer_logits_decode", "layer", place_decode_logits},
    {"indexer_logits_prefill", "layer", place_prefill_logits},
    {"indexer_quant_q", "fp8_cast", place_query_quant},
    {"mxfp4_quant", "layer", place_mxfp4_quant},
    {"fp8_cast", "fp8_cast", place_fp8_cast},
    {"convert_req_index_to_global_index, filter_and_convert_dcp_index, fetch_id_to_ragged", "layer",
     place_index_convert},
    {"top_k_per_row", "layer", place_topk},
    {"sparse_mla_decode", "layer", place_attention},
    {"sparse_mla_prefill", "layer", place_attention},
    {"dcp_lse_merge", "layer", place_attention_merge},
    {"layer_norm, rms_norm, sigmoid gate", "layer", place_norms},
};

} // namespace

Result<bool> place_kernel_file(Draft& draft) {
  const std::string op = draft.metadata("op");
  for (const KnownOp& known : kKnownOps) {
    if (known.op != op) continue;
    DSAKIT_TRY(known.place(draft));
    draft.rest({0, std::string(known.operation)});
    for (const auto& [key, value] : draft.file().metadata())
      if (key != "accumulation") draft.provenance[key] = value;
    return true;
  }
  return false;
}

} // namespace dsakit::harness
