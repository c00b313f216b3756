#include "dsakit/harness/record.hpp"

#include <algorithm>
#include <cstdio>

#include "../import/layer_places.hpp"
#include "dsakit/harness/model_config.hpp"
#include "dsakit/harness/output.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "layer_weights.hpp"
#include "layer_writer.hpp"
#include "rank_tensors.hpp"
#include "synthetic_step.hpp"

namespace dsakit::harness {
namespace {

constexpr const char* kEncoding = "e4m3fn";
constexpr const char* kPageSize = "64";

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// The keys of a prefill that rank 0 holds, gathered, and the window of each row.
Status put_prefill_keys(LayerWriter& writer, const std::string& operation,
                        const reference::LayerContract& contract, SyntheticStep& step) {
  const reference::LayerStep view = step.view();
  std::vector<std::int32_t> cu_seq_lens = {0};
  for (std::int64_t b = 0; b < step.own_seq_lens.elements(); ++b)
    cu_seq_lens.push_back(cu_seq_lens.back() + step.own_seq_lens.as<std::int32_t>()[b]);
  const std::int64_t keys = cu_seq_lens.back();
  const reference::IndexCache<const std::uint8_t> cache{
      view.index_cache.data, view.index_cache.pages, view.index_cache.page_stride};
  Tensor k, k_scale;
  const auto* fp8 = std::get_if<reference::Fp8Indexer>(&contract.indexer);
  if (fp8) {
    k = Tensor(Dtype::float8_e4m3fn, {keys, reference::kIndexHeadDim});
    k_scale = Tensor(Dtype::float32, {keys});
    DSAKIT_TRY(reference::index_cache_gather(fp8->key.pages, cache, view.index_block_table,
                                             cu_seq_lens, {}, keys, k.as<std::uint8_t>(),
                                             k_scale.as<float>()));
  } else {
    k = Tensor(Dtype::float4_e2m1fn_x2, {keys, reference::kMxfp4Bytes});
    k_scale = Tensor(Dtype::float8_e8m0fnu, {keys, reference::kMxfp4Groups});
    DSAKIT_TRY(reference::index_cache_gather_mxfp4(
        std::get<reference::Mxfp4Indexer>(contract.indexer).pages, cache, view.index_block_table,
        cu_seq_lens, {}, keys, k.as<std::uint8_t>(), k_scale.as<std::uint8_t>()));
  }
  DSAKIT_TRY(writer.input({operation}, fp8 ? "k_fp8" : "k_packed", k));
  DSAKIT_TRY(writer.input({operation}, "k_scale", k_scale));
  Tensor ks(Dtype::int32, step.own_row_lens.shape), ke = ks;
  for (std::int64_t row = 0; row < ks.elements(); ++row) {
    const auto request = static_cast<std::size_t>(step.row_request.as<std::int32_t>()[row]);
    ks.as<std::int32_t>()[row] = cu_seq_lens[request];
    ke.as<std::int32_t>()[row] = cu_seq_lens[request] + step.own_row_lens.as<std::int32_t>()[row];
  }
  DSAKIT_TRY(writer.input({operation}, "ks", ks));
  DSAKIT_TRY(writer.input({operation}, "column_origin", ks));
  return writer.input({operation}, "ke", ke);
}

class Recorder {
public:
  Recorder(const RecordOptions& options, const Progress& progress, reference::LayerConfig config)
      : options_(options), progress_(progress), config_(std::move(config)),
        kind_{"",
              config_.use_fp4(),
              config_.q_lora_rank.has_value(),
              config_.mla_use_output_gate,
              config_.dsa ? config_.dsa->index_k_norm_type : "",
              config_.parallel.decode_context_parallel_size > 1} {}

  Result<std::vector<std::string>> run() {
    auto groups = parse_requests(options_.requests);
    if (!groups) return groups.status();
    for (const RequestGroup& group : *groups)
      if (group.context + group.added > config_.max_model_len)
        return bad_input(
            "--requests: found a request of " + std::to_string(group.context + group.added) +
            " tokens, want at most the model's " + std::to_string(config_.max_model_len));
    const auto distribution = parse_distribution(options_.distribution);
    if (!distribution)
      return bad_input("--distribution: found '" + options_.distribution + "', want " +
                       distribution_names());
    std::int32_t cell = 0; // the real buffer belongs to a step
    auto notes =
        reference::check_layer(config_, {&cell, 1, config_.dsa ? config_.dsa->index_topk : 0});
    if (!notes) return notes.status();
    auto contract = reference::parse_layer_contract(contract_values(), MlaScaleRead::fp32);
    if (!contract) return contract.status();
    DSAKIT_TRY(check_not_input(options_.output, options_.config));
    auto writer = RecordingWriter::create(options_.output, {options_.deflate});
    if (!writer) return writer.status();
    DSAKIT_TRY(writer->contract(contract_values()));
    DSAKIT_TRY(writer->config(config_attributes()));
    DSAKIT_TRY(writer->provenance({{"producer", "dsakit reference"},
                                   {"command", options_.command},
                                   {"seed", std::to_string(options_.seed)}}));
    report(0, "weights");
    auto weights = rank_weights();
    if (!weights) return weights.status();
    DSAKIT_TRY(write_weights(*writer, *weights));
    for (std::size_t i = 0; i < groups->size(); ++i)
      DSAKIT_TRY(
          write_step(*writer, *contract, *weights, (*groups)[i], *distribution, i, groups->size()));
    DSAKIT_TRY(writer->commit());
    report(1, "done");
    return notes;
  }

private:
  ContractValues contract_values() const {
    ContractValues values = layer_contract(kind_, kEncoding, kPageSize);
    values["dcp_world"] = std::to_string(config_.parallel.decode_context_parallel_size);
    values["dcp_interleave"] = std::to_string(config_.parallel.cp_kv_cache_interleave_size);
    return values;
  }

  void report(double done, const std::string& what) const {
    if (progress_) progress_(done, what);
  }

  Attributes config_attributes() const {
    const reference::DsaConfig& dsa = *config_.dsa;
    return {{"hidden_size", std::to_string(config_.hidden_size)},
            {"num_attention_heads", std::to_string(config_.num_attention_heads)},
            {"num_heads", std::to_string(config_.local_heads())},
            {"q_lora_rank", kind_.q_lora ? std::to_string(*config_.q_lora_rank) : "null"},
            {"kv_lora_rank", std::to_string(config_.head.latent)},
            {"qk_nope_head_dim", std::to_string(config_.head.nope)},
            {"qk_rope_head_dim", std::to_string(config_.head.pe)},
            {"v_head_dim", std::to_string(config_.head.value)},
            {"rms_norm_eps", number(config_.rms_norm_eps)},
            {"softmax_scale", number(config_.softmax_scale())},
            {"output_gate", kind_.gate ? "true" : "false"},
            {"index_num_heads", std::to_string(dsa.index_num_heads)},
            {"index_head_dim", std::to_string(dsa.index_head_dim)},
            {"index_topk", std::to_string(dsa.index_topk)},
            {"index_k_norm_type", dsa.index_k_norm_type},
            {"tensor_parallel_size", std::to_string(config_.parallel.tensor_parallel_size)},
            {"tensor_parallel_rank", "0"}};
  }

  Result<reference::LayerWeights> rank_weights() const {
    reference::LayerConfig whole = config_;
    whole.parallel.tensor_parallel_size = 1;
    auto weights = options_.weights.empty()
                       ? random_layer_weights(whole, options_.seed)
                       : read_layer_weights(whole, options_.weights, options_.layer);
    if (!weights || config_.parallel.tensor_parallel_size == 1) return weights;
    return reference::slice_weights(config_, *weights, 0);
  }

  static Status write_weights(RecordingWriter& writer, const reference::LayerWeights& weights) {
    for (const auto& [name, weight] : weights.projections)
      DSAKIT_TRY(writer.add(weight_path(name), {weight.values, {"outputs", "inputs"}, {}}));
    for (const auto& [name, weight] : weights.projections)
      if (weight.format != WeightFormat::bf16)
        DSAKIT_TRY(writer.add(weight_path(scale_of(name)),
                              {weight.scales,
                               weight.format == WeightFormat::fp8_channel
                                   ? std::vector<std::string>{"outputs"}
                                   : std::vector<std::string>{"output_blocks", "input_blocks"},
                               {}}));
    for (const auto& [name, values] : weights.norms) {
      Tensor tensor(Dtype::float32, {std::ssize(values)});
      std::copy(values.begin(), values.end(), tensor.as<float>());
      DSAKIT_TRY(writer.add(weight_path(name), {std::move(tensor), {"dim"}, {}}));
    }
    return {};
  }

  /// What each rank sees; the hidden states, which are alike, are kept once.
  Result<std::vector<SyntheticStep>> make_steps(const reference::LayerContract& contract,
                                                const RequestGroup& group, std::uint32_t number,
                                                Distribution distribution) const {
    std::vector<SyntheticStep> steps;
    const std::int64_t world = config_.parallel.decode_context_parallel_size;
    const std::int64_t interleave = config_.parallel.cp_kv_cache_interleave_size;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      auto step = make_step(config_, contract, group, options_.seed, number, distribution,
                            {world, interleave, rank});
      if (!step) return step.status();
      if (rank > 0) step->hidden_states = Tensor();
      steps.push_back(std::move(*step));
    }
    return steps;
  }

  Status write_step(RecordingWriter& recording, const reference::LayerContract& contract,
                    const reference::LayerWeights& weights, const RequestGroup& group,
                    Distribution distribution, std::size_t number, std::size_t count) {
    auto say = [&, done = 0](const std::string& what) mutable {
      report((static_cast<double>(number) + std::min(++done, 29) / 30.0) /
                 static_cast<double>(count),
             "step " + std::to_string(number) + ": " + what);
    };
    kind_.logits = group.prefill ? "index_logits_prefill" : "index_logits_decode";
    LayerWriter writer(recording, kind_, static_cast<std::int64_t>(number));
    say("caches");
    auto steps = make_steps(contract, group, static_cast<std::uint32_t>(number), distribution);
    if (!steps) return steps.status();
    SyntheticStep* step = steps->data(); // rank 0's, which is recorded
    for (const auto& [name, tensor] : {std::pair{"hidden_states", &step->hidden_states},
                                       {"query_lens", &step->query_lens},
                                       {"seq_lens", &step->seq_lens},
                                       {"slot_mapping", &step->slot_mapping},
                                       {"block_table", &step->block_table},
                                       {"index_cache_before", &step->index_cache},
                                       {"mla_cache_before", &step->mla_cache}})
      DSAKIT_TRY(writer.put(name, *tensor));
    if (!kind_.q_lora) DSAKIT_TRY(writer.put_same("index_q_input", "hidden_states"));
    DSAKIT_TRY(writer.link_weights(weights));
    std::vector<std::string> takers = {kind_.logits, "topk"};
    if (kind_.dcp)
      DSAKIT_TRY(writer.input({"topk_slots"}, "row_lens", step->row_lens));
    else
      takers.emplace_back("topk_slots");
    DSAKIT_TRY(writer.input(takers, "row_lens", step->own_row_lens));
    DSAKIT_TRY(writer.input({kind_.logits, "topk_slots"}, "row_request", step->row_request));

    // Prefill rows are never decode rows, and the other way round, however many are new.
    reference::LayerConfig config = config_;
    config.num_speculative_tokens = group.prefill ? -1 : group.added - 1;
    const std::int64_t tokens = step->hidden_states.shape[0];
    Tensor buffer(Dtype::int32, {tokens, config.dsa->index_topk});
    auto layer = reference::KimiK3DSAAttention::create(
        config, contract, weights, {buffer.as<std::int32_t>(), tokens, config.dsa->index_topk});
    if (!layer) return layer.status();
    Pieces pieces(tokens);
    Offers offers;
    const auto sink = [&](std::string_view name, std::int64_t first, const Tensor& rows) {
      const std::string tensor(name);
      say(tensor);
      const Tensor* whole = pieces.add(tensor, first, rows);
      if (!whole) return Status{};
      const bool of_rank = tensor.starts_with("ranks.");
      if (of_rank) offers.take(tensor, *whole);
      return of_rank && !tensor.starts_with("ranks.0.") ? Status{} : writer.put(tensor, *whole);
    };
    std::vector<reference::LayerStep> views;
    for (SyntheticStep& of_rank : *steps) {
      views.push_back(of_rank.view());
      views.back().hidden_states = views[0].hidden_states;
    }
    auto result = layer->forward(views, sink);
    if (!result) return result.status();
    for (const auto& [name, stack] : offers.stacks())
      DSAKIT_TRY(writer.put(name, stack));
    DSAKIT_TRY(writer.put("index_cache_after", step->index_cache));
    DSAKIT_TRY(writer.put("mla_cache_after", step->mla_cache));
    return group.prefill ? put_prefill_keys(writer, kind_.logits, contract, *step) : Status{};
  }

  const RecordOptions& options_;
  const Progress& progress_;
  reference::LayerConfig config_;
  LayerKind kind_;
};

} // namespace

Result<std::vector<std::string>> record(const RecordOptions& options, const Progress& progress) {
  auto config = read_model_config(options.config);
  if (!config) return config.status();
  config->indexer_kv_dtype = options.indexer_kv_dtype;
  config->parallel.tensor_parallel_size = options.tensor_parallel_size;
  config->reduce_results = options.tensor_parallel_size == 1;
  config->parallel.decode_context_parallel_size = options.decode_context_parallel_size;
  config->parallel.cp_kv_cache_interleave_size = options.cp_kv_cache_interleave_size;
  return Recorder(options, progress, *config).run();
}

} // namespace dsakit::harness
