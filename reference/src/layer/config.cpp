#include <array>
#include <string>

#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/layer_config.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "found.hpp"

namespace dsakit::reference {
namespace {

Status check_sizes(const LayerConfig& config) {
  const std::pair<const char*, std::int64_t> positive[] = {
      {"tensor_parallel_size", config.parallel.tensor_parallel_size},
      {"decode_context_parallel_size", config.parallel.decode_context_parallel_size},
      {"cp_kv_cache_interleave_size", config.parallel.cp_kv_cache_interleave_size},
      {"hidden_size", config.hidden_size},
      {"num_attention_heads", config.num_attention_heads},
      {"q_lora_rank", config.q_lora_rank.value_or(1)},
      {"qk_nope_head_dim", config.head.nope},
      {"v_head_dim", config.head.value},
      {"max_model_len", config.max_model_len},
      {"max_logits_bytes", config.max_logits_bytes}};
  for (const auto& [name, value] : positive)
    if (value < 1) return bad_input(found(name, value, "at least 1"));
  if (!(config.rms_norm_eps > 0))
    return bad_input(found("rms_norm_eps", std::to_string(config.rms_norm_eps), "above 0"));
  return {};
}

Status check_indexer(const LayerConfig& config, const TopkBuffer& topk) {
  const DsaConfig& dsa = *config.dsa;
  const std::int64_t heads = dsa.index_num_heads;
  if (config.use_fp4() && dsa.index_head_dim != kIndexHeadDim)
    return bad_input(found("index_head_dim", dsa.index_head_dim, "128 for an mxfp4 indexer"));
  if (config.use_fp4() && heads != 16 && heads != 32 && heads != 64)
    return bad_input(found("index_num_heads", heads, "16, 32 or 64 for an mxfp4 indexer"));
  if (dsa.index_k_norm_type != "layernorm" && dsa.index_k_norm_type != "rmsnorm")
    return bad_input(
        found("index_k_norm_type", "'" + dsa.index_k_norm_type + "'", "layernorm or rmsnorm"));
  if (config.indexer_kv_dtype != "fp8" && config.indexer_kv_dtype != "mxfp4")
    return bad_input(
        found("indexer_kv_dtype", "'" + config.indexer_kv_dtype + "'", "fp8 or mxfp4"));
  if (dsa.index_head_dim != kIndexHeadDim)
    return unsupported(found("index_head_dim", dsa.index_head_dim, "128, the quantiser's group"));
  if (heads < 1) return bad_input(found("index_num_heads", heads, "at least 1"));
  if (config.parallel.decode_context_parallel_size > 1 && config.decode_rows() < 1)
    return bad_input(found("rows of dcp_scores", config.decode_rows(),
                           "at least 1: max_num_seqs * (1 + num_speculative_tokens) or "
                           "max_cudagraph_capture_size"));
  if (dsa.index_topk < 1) return bad_input(found("index_topk", dsa.index_topk, "at least 1"));
  if (topk.columns != dsa.index_topk)
    return bad_input(found("topk_indices_buffer columns", topk.columns,
                           "index_topk = " + std::to_string(dsa.index_topk)));
  return {};
}

Status check_cache(const LayerConfig& config) {
  if (config.cache_dtype != "fp8_ds_mla")
    return unsupported(found("cache_dtype", "'" + config.cache_dtype + "'",
                             "fp8_ds_mla, which every fp8* resolves to"));
  if (config.head.latent != kMlaLatent)
    return unsupported(found("kv_lora_rank", config.head.latent, "512 for fp8_ds_mla"));
  if (config.head.pe != kMlaPe)
    return unsupported(found("qk_rope_head_dim", config.head.pe, "64 for fp8_ds_mla"));
  return {};
}

} // namespace

double LayerConfig::softmax_scale() const {
  const double mscale =
      rope.rope_type == "default" ? 1 : yarn_mscale(rope.factor, rope.mscale_all_dim);
  return reference::softmax_scale(qk_head_dim(), mscale);
}

Result<std::vector<std::string>> check_layer(const LayerConfig& config, const TopkBuffer& topk) {
  if (!config.dsa) return unsupported(found("dsa_config", "none", "one: this is a DSA layer"));
  if (const auto ranks = config.parallel.prefill_context_parallel_size; ranks > 1)
    return unsupported(found("prefill_context_parallel_size", ranks, "1"));
  DSAKIT_TRY(check_sizes(config));
  std::vector<std::string> notes;
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t padded = config.local_heads() * config.parallel.tensor_parallel_size;
  if (padded != heads)
    notes.push_back("num_attention_heads: found " + std::to_string(heads) + ", padded to " +
                    std::to_string(padded) + " for tensor_parallel_size " +
                    std::to_string(config.parallel.tensor_parallel_size));
  if (!config.mla_use_nope)
    return unsupported(found("mla_use_nope", "false",
                             "true: the layer has no rotary embedding, and would leave q_pe and "
                             "k_pe unrotated"));
  if (const auto dims = config.dsa->index_rope_dim; dims != 0)
    return unsupported(found("index_rope_dim", dims, "0: the indexer has no rotary embedding"));
  if (!topk.data)
    return bad_input(found("topk_indices_buffer", "none", "the model's buffer that layers share"));
  if (const auto freq = config.dsa->index_topk_freq.value_or(1); freq != 1)
    return unsupported(found("index_topk_freq", freq, "1: layers share no indices"));
  DSAKIT_TRY(check_indexer(config, topk));
  DSAKIT_TRY(check_cache(config));
  if (config.reduce_results && config.parallel.tensor_parallel_size > 1)
    return unsupported(found("reduce_results", "true",
                             "false for a rank alone: sum_partials adds what the ranks return"));
  return notes;
}

Result<LayerContract> parse_layer_contract(const ContractValues& values,
                                           MlaScaleRead mla_scale_read) {
  auto layout = parse_index_page_layout(values);
  if (!layout) return layout.status();
  auto page_size = parse_page_size(values);
  if (!page_size) return page_size.status();
  auto mla = parse_mla_quant(values);
  if (!mla) return mla.status();
  auto lse_base = parse_lse_base(values);
  if (!lse_base) return lse_base.status();
  auto dtype = parse_activation_dtype(values);
  if (!dtype) return dtype.status();
  auto rmsnorm = parse_rmsnorm_rounding(values);
  if (!rmsnorm) return rmsnorm.status();
  auto gate = parse_gate_rounding(values);
  if (!gate) return gate.status();
  auto order = parse_topk_order(values);
  if (!order) return order.status();
  const auto with = [&](std::variant<Fp8Indexer, Mxfp4Indexer> indexer) {
    return LayerContract{indexer, *mla,     mla_scale_read, *lse_base, *page_size,
                         *dtype,  *rmsnorm, *gate,          *order};
  };
  if (*layout == IndexPageLayout::flat || *layout == IndexPageLayout::preshuffle64) {
    auto pages = parse_mxfp4_pages(values);
    if (!pages) return pages.status();
    auto quant = parse_mxfp4_quant(values);
    if (!quant) return quant.status();
    return with(Mxfp4Indexer{*pages, *quant});
  }
  auto key = parse_index_key_quant(values);
  if (!key) return key.status();
  auto query = parse_index_query_quant(values);
  if (!query) return query.status();
  auto fold = parse_weight_fold(values);
  if (!fold) return fold.status();
  return with(Fp8Indexer{*key, *query, *fold});
}

} // namespace dsakit::reference
