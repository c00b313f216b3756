#include "dsakit/reference/layer.hpp"

#include <algorithm>

#include "../activation.hpp"
#include "check_step.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "dsakit/reference/topk.hpp"
#include "indexer.hpp"
#include "projections.hpp"

namespace dsakit::reference {
namespace {

/// The first projections: what the caches and the indexer take, and q.
struct Inputs {
  Tensor q;    ///< [tokens, heads * 192]
  Tensor q_c;  ///< [tokens, q_lora_rank] normed; empty without q_lora_rank
  Tensor kv_c; ///< [tokens, 512] normed
  Tensor k_pe; ///< [tokens, 64]
};

/// What attention gives: latents and lse of all heads.
struct Attended {
  Tensor latent; ///< [tokens, heads, 512]
  Tensor lse;    ///< [tokens, heads]
};

/// One step, with the caches of every rank of context parallelism.
class Forward {
public:
  Forward(const LayerConfig& config, const LayerContract& contract, const LayerWeights& weights,
          std::span<const LayerStep> steps, const LayerSink& sink)
      : config_(config), contract_(contract), steps_(steps), step_(steps[0]), sink_(sink),
        rows_(rows_of(step_)), ranks_(rows_of_ranks(config, rows_, step_.seq_lens)),
        projections_{weights, contract.activation_dtype, step_.tokens} {}

  Result<LayerResult> run(IndexFormat& format, const TopkBuffer& buffer) {
    auto in = inputs();
    if (!in) return in.status();
    const Tensor& q_c = in->q_c;
    auto topk =
        run_indexer({config_, contract_, projections_.weights, steps_, rows_, ranks_,
                     config_.q_lora_rank ? q_c.as<std::uint16_t>() : step_.hidden_states, buffer},
                    format, sink_);
    if (!topk) return topk.status();
    for (const LayerStep& rank : steps_)
      DSAKIT_TRY(mla_cache_write(contract_.mla, in->kv_c.as<std::uint16_t>(),
                                 in->k_pe.as<std::uint16_t>(), step_.tokens, rank.mla_slot_mapping,
                                 rank.mla_cache));
    auto value = attend(in->q, *topk);
    if (!value) return value.status();
    if (config_.mla_use_output_gate) DSAKIT_TRY(gate(*value));
    auto output = projections_.apply("o_proj", value->as<std::uint16_t>());
    if (!output) return output.status();
    for (std::int64_t row = 0; row < step_.tokens; ++row)
      if (rows_.row_lens[static_cast<std::size_t>(row)] == 0)
        std::fill_n(output->as<std::uint16_t>() + row * config_.hidden_size, config_.hidden_size,
                    std::uint16_t{0});
    DSAKIT_TRY(report(sink_, "output", *output));
    return LayerResult{std::move(*output), *topk};
  }

private:
  Tensor activations(Shape shape) const {
    return {dtype_of(contract_.activation_dtype), std::move(shape)};
  }

  /// Columns [first, first + width) of x.
  Tensor columns(const Tensor& x, std::int64_t first, std::int64_t width) const {
    Tensor part = activations({step_.tokens, width});
    take_columns(x.as<std::uint16_t>(), step_.tokens, x.shape[1], first, width,
                 part.as<std::uint16_t>());
    return part;
  }

  Result<Tensor> rms_norm(const std::string& weight, const Tensor& x) const {
    const Norm norm{IndexKNorm::rmsnorm,
                    contract_.rmsnorm_rounding,
                    contract_.activation_dtype,
                    static_cast<float>(config_.rms_norm_eps),
                    projections_.weights.norms.at(weight).data(),
                    nullptr,
                    x.shape[1]};
    Tensor y = activations(x.shape);
    DSAKIT_TRY(apply_norm(norm, x.as<std::uint16_t>(), step_.tokens, y.as<std::uint16_t>()));
    return y;
  }

  Result<Inputs> inputs() const {
    const std::int64_t q_lora = config_.q_lora_rank.value_or(0);
    auto a =
        projections_.apply(q_lora ? "fused_qkv_a_proj" : "kv_a_proj_with_mqa", step_.hidden_states);
    if (!a) return a.status();
    DSAKIT_TRY(report(sink_, q_lora ? "qkv_a" : "kv_a", *a));
    Inputs in;
    if (q_lora) {
      auto q_c = rms_norm("q_a_layernorm", columns(*a, 0, q_lora));
      if (!q_c) return q_c.status();
      in.q_c = std::move(*q_c);
      DSAKIT_TRY(report(sink_, "index_q_input", in.q_c));
    }
    auto q = projections_.apply(q_lora ? "q_b_proj" : "q_proj",
                                q_lora ? in.q_c.as<std::uint16_t>() : step_.hidden_states);
    if (!q) return q.status();
    in.q = std::move(*q);
    in.q.shape = {step_.tokens, config_.local_heads(), config_.qk_head_dim()};
    DSAKIT_TRY(report(sink_, "q", in.q));
    auto kv_c = rms_norm("kv_a_layernorm", columns(*a, q_lora, config_.head.latent));
    if (!kv_c) return kv_c.status();
    in.kv_c = std::move(*kv_c);
    DSAKIT_TRY(report(sink_, "kv_c", in.kv_c));
    in.k_pe = columns(*a, q_lora + config_.head.latent, config_.head.pe);
    DSAKIT_TRY(report(sink_, "k_pe", in.k_pe));
    return in;
  }

  /// attn_value [tokens, heads * 128]
  Result<Tensor> attend(const Tensor& q, const TopkBuffer& topk) const {
    const std::int64_t tokens = step_.tokens, heads = config_.local_heads();
    Absorption absorption{
        q.as<std::uint16_t>(),     tokens, heads, config_.head, projections_.weight("kv_b_proj"),
        contract_.activation_dtype};
    Tensor query = activations({tokens, heads, config_.head.latent + config_.head.pe});
    DSAKIT_TRY(absorb_q(absorption, query.as<std::uint16_t>()));
    DSAKIT_TRY(report(sink_, "mla_query", query));

    std::vector<Attended> of_ranks;
    for (std::size_t rank = 0; rank < steps_.size(); ++rank) {
      auto attended = attend_rank(rank, query, topk);
      if (!attended) return attended.status();
      of_ranks.push_back(std::move(*attended));
    }
    auto attended = merge(of_ranks);
    if (!attended) return attended.status();

    absorption.x = attended->latent.as<std::uint16_t>();
    Tensor value = activations({tokens, heads * config_.head.value});
    DSAKIT_TRY(absorb_v(absorption, value.as<std::uint16_t>()));
    DSAKIT_TRY(report(sink_, "attn_value", value));
    return value;
  }

  /// To what the rank holds of the selection.
  Result<Attended> attend_rank(std::size_t rank, const Tensor& query,
                               const TopkBuffer& topk) const {
    const std::int64_t tokens = step_.tokens, heads = config_.local_heads();
    const DcpRank& dcp = ranks_[rank].dcp;
    const auto say = [&](const std::string& name, const Tensor& tensor) {
      return report(sink_, rank_tensor(dcp, name), tensor);
    };
    Tensor slots(Dtype::int32, {tokens, topk.columns});
    DSAKIT_TRY(topk_slots(topk.data, tokens, topk.columns, steps_[rank].mla_block_table,
                          rows_.row_request.data(), contract_.page_size, contract_.page_size,
                          slots.as<std::int32_t>(), dcp));
    DSAKIT_TRY(say("topk_slots", slots));
    if (dcp.world > 1) {
      Tensor compact(Dtype::int32, slots.shape), counts(Dtype::int32, {tokens});
      compact_slots(slots.as<std::int32_t>(), tokens, topk.columns, compact.as<std::int32_t>(),
                    counts.as<std::int32_t>());
      DSAKIT_TRY(say("compact_slots", compact));
      DSAKIT_TRY(say("counts", counts));
      slots = std::move(compact);
    }
    Attended out{activations({tokens, heads, config_.head.latent}),
                 Tensor(Dtype::float32, {tokens, heads})};
    const MlaCache<std::uint8_t>& cache = steps_[rank].mla_cache;
    DSAKIT_TRY(sparse_attention(
        {query.as<std::uint16_t>(),
         {cache.data, cache.pages, cache.page_size, cache.page_stride, cache.record_stride},
         slots.as<std::int32_t>(),
         tokens,
         heads,
         topk.columns,
         config_.softmax_scale(),
         contract_.mla.mla_fp8_encoding,
         contract_.mla_scale_read,
         contract_.lse_base,
         contract_.activation_dtype},
        out.latent.as<std::uint16_t>(), out.lse.as<float>()));
    DSAKIT_TRY(say("attn_latent", out.latent));
    DSAKIT_TRY(say("attn_lse", out.lse));
    return out;
  }

  /// One attention of the ranks'.
  Result<Attended> merge(std::vector<Attended>& ranks) const {
    if (ranks.size() == 1) return std::move(ranks[0]);
    const auto stack = [&](Tensor Attended::* part) {
      Tensor all((ranks[0].*part).dtype, {0});
      for (const Attended& rank : ranks)
        all.bytes.insert(all.bytes.end(), (rank.*part).bytes.begin(), (rank.*part).bytes.end());
      return all;
    };
    const Tensor latents = stack(&Attended::latent), lses = stack(&Attended::lse);
    Attended out = ranks[0];
    const Shape& shape = out.latent.shape;
    DSAKIT_TRY(
        dcp_attention_merge({latents.bytes.data(), latents.dtype, lses.as<float>(),
                             std::ssize(ranks), shape[0], shape[1], shape[2], contract_.lse_base},
                            out.latent.as<std::uint16_t>(), out.lse.as<float>()));
    DSAKIT_TRY(report(sink_, "attn_latent", out.latent));
    DSAKIT_TRY(report(sink_, "attn_lse", out.lse));
    return out;
  }

  Status gate(Tensor& value) const {
    auto gate = projections_.apply("g_proj", step_.hidden_states);
    if (!gate) return gate.status();
    DSAKIT_TRY(report(sink_, "gate", *gate));
    DSAKIT_TRY(output_gate({value.as<std::uint16_t>(), gate->as<std::uint16_t>(), value.elements(),
                            contract_.gate_rounding, contract_.activation_dtype},
                           value.as<std::uint16_t>()));
    return report(sink_, "attn_gated", value);
  }

  const LayerConfig& config_;
  const LayerContract& contract_;
  std::span<const LayerStep> steps_;
  const LayerStep& step_; ///< the first rank's: what all have alike
  const LayerSink& sink_;
  StepRows rows_;
  std::vector<RankRows> ranks_;
  Projections projections_;
};

} // namespace

Result<KimiK3DSAAttention> KimiK3DSAAttention::create(const LayerConfig& config,
                                                      const LayerContract& contract,
                                                      const LayerWeights& weights,
                                                      const TopkBuffer& topk) {
  auto notes = check_layer(config, topk);
  if (!notes) return notes.status();
  if (std::holds_alternative<Mxfp4Indexer>(contract.indexer) != config.use_fp4())
    return bad_input("index_page_layout: found one of " +
                     std::string(config.use_fp4() ? "an fp8" : "an mxfp4") +
                     " indexer, want one for indexer_kv_dtype " + config.indexer_kv_dtype);
  if (config.parallel.decode_context_parallel_size > 1 &&
      contract.activation_dtype != ActivationDtype::bf16)
    return unsupported("activation_dtype: found fp16 with decode_context_parallel_size " +
                       std::to_string(config.parallel.decode_context_parallel_size) +
                       ", want bf16: ranks merge latents of bf16");
  DSAKIT_TRY(check_weights(config, weights));
  return KimiK3DSAAttention(config, contract, weights, topk, std::move(*notes));
}

LayerWorkspace KimiK3DSAAttention::workspace() const {
  const std::int64_t keys = config_.max_total_seq_len(), rows = config_.decode_rows();
  const auto bytes = static_cast<std::int64_t>(sizeof(float));
  const bool offers = config_.parallel.decode_context_parallel_size > 1;
  return {keys,
          config_.max_model_len,
          keys * make_index_format(contract_)->key_bytes(),
          std::max(config_.max_logits_bytes, rows * config_.max_model_len * bytes),
          rows,
          offers ? rows * config_.dsa->index_topk * bytes : 0};
}

Result<LayerResult> KimiK3DSAAttention::forward(const LayerStep& step,
                                                const LayerSink& sink) const {
  return forward(std::span(&step, 1), sink);
}

Result<LayerResult> KimiK3DSAAttention::forward(std::span<const LayerStep> ranks,
                                                const LayerSink& sink) const {
  const std::int64_t world = config_.parallel.decode_context_parallel_size;
  if (std::ssize(ranks) != world)
    return bad_input("ranks: found " + std::to_string(ranks.size()) + ", want " +
                     std::to_string(world) + ", decode_context_parallel_size");
  const bool dummy = std::all_of(ranks.begin(), ranks.end(), [](const LayerStep& rank) {
    return rank.index_cache.pages == 0 && rank.mla_cache.pages == 0;
  });
  if (ranks[0].tokens == 0 || dummy)
    return LayerResult{
        Tensor(dtype_of(contract_.activation_dtype), {ranks[0].tokens, config_.hidden_size}),
        topk_};
  const auto format = make_index_format(contract_);
  DSAKIT_TRY(check_steps(config_, contract_, *format, topk_, ranks));
  return Forward(config_, contract_, *weights_, ranks, sink).run(*format, topk_);
}

Result<Tensor> sum_partials(std::span<const Tensor> partials, ActivationDtype dtype) {
  if (partials.empty()) return bad_input("partials: found none, want one a rank");
  Tensor sum = partials[0];
  for (const Tensor& partial : partials)
    if (partial.shape != sum.shape)
      return bad_input("partial: found " + to_string(partial.shape) + ", want " +
                       to_string(sum.shape));
  for (std::int64_t i = 0; i < sum.elements(); ++i) {
    float total = 0;
    for (const Tensor& partial : partials)
      total += activation_to_float(dtype, partial.as<std::uint16_t>()[i]);
    sum.as<std::uint16_t>()[i] = float_to_activation(dtype, total);
  }
  return sum;
}

} // namespace dsakit::reference
