// Layers to run: random ones of any size, and those of the recordings.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/layer.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::testing {

inline constexpr std::int64_t kLayerPage = 64;

/// A small layer with q_lora_rank, LayerNorm and output gate.
inline reference::LayerConfig small_layer() {
  return {.hidden_size = 96,
          .num_attention_heads = 4,
          .q_lora_rank = 64,
          .head = {128, 64, 128, 512},
          .rms_norm_eps = 1e-5,
          .mla_use_nope = true,
          .mla_use_output_gate = true,
          .rope = {"default", 1, 0},
          .dsa = reference::DsaConfig{16, 128, 24, 0, 1, "layernorm"},
          .parallel = {1, 1, 1},
          .reduce_results = true,
          .cache_dtype = "fp8_ds_mla",
          .indexer_kv_dtype = "fp8",
          .max_model_len = 4096,
          .max_num_seqs = 8,
          .num_speculative_tokens = 1,
          .max_cudagraph_capture_size = 8,
          .max_logits_bytes = 512 << 20,
          .native_decode = false};
}

inline ContractValues layer_contract_values(bool mxfp4, const std::string& encoding = "e4m3fn",
                                            const std::string& dtype = "bf16") {
  return {{"activation_dtype", dtype},
          {"gate_rounding", "two"},
          {"hadamard", "none"},
          {"index_fp8_encoding", encoding},
          {"index_k_floor", "1e-4"},
          {"index_page_layout", mxfp4 ? "flat" : "block_flat"},
          {"index_q_floor", "1e-10"},
          {"lse_base", "e"},
          {"mla_fp8_encoding", encoding},
          {"page_size", std::to_string(kLayerPage)},
          {"qmax", encoding == "e4m3fn" ? "448" : "224"},
          {"rmsnorm_rounding", "two"},
          {"scale_kind", "ue8m0"},
          {"topk_order", "rank"},
          {"weight_fold", "bf16_intermediate"}};
}

inline reference::LayerContract layer_contract(const ContractValues& values) {
  return *reference::parse_layer_contract(values, MlaScaleRead::fp32);
}

inline std::uint16_t activation_bits(ActivationDtype dtype, float value) {
  return dtype == ActivationDtype::bf16 ? reference::float_to_bf16(value)
                                        : reference::float_to_fp16(value);
}

/// Normal weights of every name; projections keep the size of what they project.
inline reference::LayerWeights random_weights(const reference::LayerConfig& config,
                                              std::mt19937& random) {
  std::normal_distribution<float> normal;
  reference::LayerWeights weights;
  for (const auto& [name, shape] : reference::weight_shapes(config)) {
    if (shape.size() == 1) {
      for (std::int64_t i = 0; i < shape[0]; ++i)
        weights.norms[name].push_back((name == "k_index_norm.bias" ? 0 : 1) +
                                      0.2f * normal(random));
      continue;
    }
    Tensor values(Dtype::bfloat16, shape);
    const float scale = 1 / std::sqrt(static_cast<float>(shape[1]));
    for (std::int64_t i = 0; i < values.elements(); ++i)
      values.as<std::uint16_t>()[i] = reference::float_to_bf16(scale * normal(random));
    weights.projections[name] = {WeightFormat::bf16, Fp8Encoding::e4m3fn, std::move(values), {}};
  }
  return weights;
}

/// A bf16 weight quantised with the scale that its largest magnitude asks for.
inline reference::WeightTensor to_fp8(const reference::WeightTensor& bf16, WeightFormat format,
                                      Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  const Shape& shape = bf16.values.shape;
  const bool block = format == WeightFormat::fp8_block;
  const std::int64_t columns = block ? (shape[1] + 127) / 128 : 1;
  reference::WeightTensor fp8{
      format, encoding,
      Tensor(encoding == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn : Dtype::float8_e4m3fnuz,
             shape),
      block ? Tensor(Dtype::float32, {(shape[0] + 127) / 128, columns})
            : Tensor(Dtype::float32, {shape[0]})};
  const auto scale_of = [&](std::int64_t r, std::int64_t c) -> float& {
    return fp8.scales.as<float>()[block ? r / 128 * columns + c / 128 : r];
  };
  const auto value_of = [&](std::int64_t r, std::int64_t c) {
    return reference::bf16_to_float(bf16.values.as<std::uint16_t>()[r * shape[1] + c]);
  };
  for (std::int64_t r = 0; r < shape[0]; ++r)
    for (std::int64_t c = 0; c < shape[1]; ++c)
      scale_of(r, c) = std::max(scale_of(r, c), std::fabs(value_of(r, c)) / 200);
  for (std::int64_t r = 0; r < shape[0]; ++r)
    for (std::int64_t c = 0; c < shape[1]; ++c)
      fp8.values.as<std::uint8_t>()[r * shape[1] + c] =
          reference::encode_fp8_saturating(encoding, value_of(r, c) / scale_of(r, c));
  return fp8;
}

/// A step that owns what LayerStep views. Pages lie in random order; earlier tokens of the requests
/// are random records.
struct OwnedStep {
  std::vector<std::uint16_t> hidden_states;
  std::int64_t tokens = 0;
  std::vector<std::int32_t> query_lens, seq_lens;
  std::vector<std::int64_t> slot_mapping;
  std::vector<std::int32_t> block_table;
  std::int64_t columns = 0, pages = 0, index_stride = 0;
  std::vector<std::uint8_t> index_cache, mla_cache;

  reference::LayerStep view() {
    const reference::BlockTable table{block_table.data(), std::ssize(query_lens), columns};
    return {hidden_states.data(),
            tokens,
            query_lens,
            seq_lens,
            slot_mapping,
            slot_mapping,
            table,
            table,
            {index_cache.data(), pages, index_stride},
            {mla_cache.data(), pages, kLayerPage, kLayerPage * 656, 656}};
  }
};

/// `padding` rows of hidden states follow the new tokens.
inline OwnedStep random_step(const reference::LayerConfig& config,
                             const reference::LayerContract& contract,
                             std::vector<std::int32_t> query_lens,
                             std::vector<std::int32_t> seq_lens, std::int64_t padding,
                             std::mt19937& random) {
  std::normal_distribution<float> normal;
  OwnedStep step;
  step.tokens = std::accumulate(query_lens.begin(), query_lens.end(), padding);
  for (std::int64_t i = 0; i < step.tokens * config.hidden_size; ++i)
    step.hidden_states.push_back(activation_bits(contract.activation_dtype, normal(random)));
  for (std::int32_t len : seq_lens) {
    step.columns = std::max<std::int64_t>(step.columns, (len + kLayerPage - 1) / kLayerPage);
    step.pages += (len + kLayerPage - 1) / kLayerPage;
  }
  step.pages += 1; // one that nobody owns
  std::vector<std::int32_t> free(static_cast<std::size_t>(step.pages));
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), random);
  for (std::size_t b = 0; b < seq_lens.size(); ++b) {
    const std::size_t first = step.block_table.size();
    step.block_table.resize(first + static_cast<std::size_t>(step.columns), -1);
    for (std::int32_t p = 0; p * kLayerPage < seq_lens[b]; ++p, free.pop_back())
      step.block_table[first + static_cast<std::size_t>(p)] = free.back();
    for (std::int32_t i = 0; i < query_lens[b]; ++i) {
      const std::int64_t position = seq_lens[b] - query_lens[b] + i;
      step.slot_mapping.push_back(
          position < 0 ? -1
                       : step.block_table[first + static_cast<std::size_t>(position / kLayerPage)] *
                                 kLayerPage +
                             position % kLayerPage);
    }
  }
  step.slot_mapping.resize(static_cast<std::size_t>(step.tokens), -1);
  step.query_lens = std::move(query_lens);
  step.seq_lens = std::move(seq_lens);

  const std::int64_t slots = step.pages * kLayerPage;
  std::vector<std::int64_t> all(static_cast<std::size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  const auto latents = [&](std::int64_t width) {
    std::vector<std::uint16_t> bits;
    for (std::int64_t i = 0; i < slots * width; ++i)
      bits.push_back(activation_bits(contract.activation_dtype, normal(random)));
    return bits;
  };
  step.mla_cache.resize(static_cast<std::size_t>(slots * 656));
  EXPECT_TRUE(reference::mla_cache_write(
      contract.mla, latents(512).data(), latents(64).data(), slots, all,
      {step.mla_cache.data(), step.pages, kLayerPage, kLayerPage * 656, 656}));
  if (const auto* fp8 = std::get_if<reference::Fp8Indexer>(&contract.indexer)) {
    step.index_stride = kLayerPage * 132;
    step.index_cache.resize(static_cast<std::size_t>(slots * 132));
    EXPECT_TRUE(
        reference::index_cache_write(fp8->key, latents(128).data(), slots, all,
                                     {step.index_cache.data(), step.pages, step.index_stride}));
  } else {
    const auto& mxfp4 = std::get<reference::Mxfp4Indexer>(contract.indexer);
    step.index_stride = kLayerPage * 68;
    step.index_cache.resize(static_cast<std::size_t>(slots * 68));
    EXPECT_TRUE(reference::index_cache_write_mxfp4(
        mxfp4.pages, mxfp4.quant, latents(128).data(), slots, all,
        {step.index_cache.data(), step.pages, step.index_stride}));
  }
  return step;
}

using Intermediates = std::map<std::string, Tensor>;

/// What a step of one rank gave.
struct LayerRun {
  Tensor output;
  std::vector<std::int32_t> topk; ///< the whole buffer
  Intermediates tensors;          ///< index_logits as [tokens, longest request]
};

/// Runs the step on copies of its caches; `buffer` may be larger than the step.
inline LayerRun run_layer(const reference::LayerConfig& config,
                          const reference::LayerContract& contract,
                          const reference::LayerWeights& weights, OwnedStep& step,
                          std::int64_t buffer_rows = 0) {
  const std::int64_t k = config.dsa->index_topk;
  const std::int64_t rows = std::max(buffer_rows, step.tokens);
  LayerRun run;
  run.topk.assign(static_cast<std::size_t>(rows * k), 77);
  const reference::TopkBuffer buffer{run.topk.data(), rows, k};
  auto layer = reference::KimiK3DSAAttention::create(config, contract, weights, buffer);
  EXPECT_TRUE(layer) << layer.status().what();
  if (!layer) return run;
  const std::int32_t longest =
      step.seq_lens.empty() ? 0 : *std::max_element(step.seq_lens.begin(), step.seq_lens.end());
  Tensor logits(Dtype::float32, {step.tokens, longest});
  std::fill_n(logits.as<float>(), logits.elements(), -std::numeric_limits<float>::infinity());
  auto result = layer->forward(
      step.view(), [&](std::string_view name, std::int64_t first_row, const Tensor& rows_of) {
        if (name != "index_logits") {
          EXPECT_TRUE(run.tensors.emplace(name, rows_of).second) << name << " came twice";
          return Status{};
        }
        for (std::int64_t r = 0; r < rows_of.shape[0]; ++r)
          std::copy_n(rows_of.as<float>() + r * rows_of.shape[1], rows_of.shape[1],
                      logits.as<float>() + (first_row + r) * longest);
        return Status{};
      });
  EXPECT_TRUE(result) << result.status().what();
  if (!result) return run;
  EXPECT_EQ(result->topk.data, buffer.data);
  run.output = std::move(result->output);
  run.tensors["index_logits"] = std::move(logits);
  return run;
}

/// A layer recording with its one step.
struct RecordedLayerFile {
  explicit RecordedLayerFile(const std::string& name) : file(recording_path(name)) {
    const auto json = nlohmann::json::parse(file.metadata("config"));
    config = small_layer();
    config.hidden_size = json.at("hidden_size");
    config.num_attention_heads = json.at("num_heads");
    config.q_lora_rank.reset();
    if (!json.at("q_lora_rank").is_null()) config.q_lora_rank = json.at("q_lora_rank");
    config.mla_use_output_gate = json.at("output_gate");
    config.rope = {json.at("rope_type"), json.at("rope_factor"), json.at("mscale_all_dim")};
    config.dsa = reference::DsaConfig{json.at("index_num_heads"),  128, json.at("index_topk"), 0, 1,
                                      json.at("index_k_norm_type")};
    const bool mxfp4 = json.at("use_fp4");
    config.indexer_kv_dtype = mxfp4 ? "mxfp4" : "fp8";
    contract = layer_contract_values(mxfp4, json.at("fp8_encoding"));
    for (const auto& [weight, shape] : reference::weight_shapes(config)) {
      const Tensor values = file.read("weights." + weight);
      if (shape.size() == 2)
        weights.projections[weight] = {WeightFormat::bf16, Fp8Encoding::e4m3fn, values, {}};
      else
        for (std::int64_t i = 0; i < values.elements(); ++i)
          weights.norms[weight].push_back(
              values.dtype == Dtype::float32
                  ? values.as<float>()[i]
                  : reference::bf16_to_float(values.as<std::uint16_t>()[i]));
    }
    step.hidden_states = bits("hidden_states");
    step.tokens = file.extent("steps.0.hidden_states", 0);
    step.query_lens = file.values<std::int32_t>("steps.0.query_lens");
    step.seq_lens = file.values<std::int32_t>("steps.0.seq_lens");
    step.slot_mapping = file.values<std::int64_t>("steps.0.slot_mapping");
    step.block_table = file.values<std::int32_t>("steps.0.block_table");
    step.columns = file.extent("steps.0.block_table", 1);
    step.pages = file.extent("steps.0.index_cache_before", 0);
    step.index_stride = file.extent("steps.0.index_cache_before", 1);
    step.index_cache = file.values<std::uint8_t>("steps.0.index_cache_before");
    step.mla_cache = file.values<std::uint8_t>("steps.0.mla_cache_before");
  }

  std::vector<std::uint16_t> bits(const std::string& tensor) {
    return file.values<std::uint16_t>("steps.0." + tensor);
  }

  Safetensors file;
  reference::LayerConfig config;
  ContractValues contract;
  reference::LayerWeights weights;
  OwnedStep step;
};

} // namespace dsakit::testing
