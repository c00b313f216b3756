// A model's own config.json, and the names of its checkpoint's weights (spec 0.4).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/reference/layer_config.hpp"

namespace dsakit::harness {

/// A preset (kimi-k3.1, kimi-k3, deepseek-v3.2) or the path of a config.json; a `text_config`
/// inside stands for the whole. The engine's settings are one rank, an fp8 cache and indexer, and
/// max_model_len = max_position_embeddings. bad_input naming file and key where one is missing or
/// of another type, and for a rope_type other than default without factor. Whether the layer can be
/// built is reference::check_layer's to say.
Result<reference::LayerConfig> read_model_config(const std::string& preset_or_path);

/// Names of the presets, for help and messages.
std::vector<std::string> model_presets();

/// fp8, fp8_e4m3, ... resolve to fp8_ds_mla before the layer is built; anything else stays.
std::string resolve_cache_dtype(std::string_view cache_dtype);

/// The tensors of a checkpoint that make up one of our weights, in order of their rows:
/// "self_attn.indexer.wq_b.weight" for wq_index, two for fused_qkv_a_proj.
std::vector<std::string> checkpoint_names(std::string_view weight);

} // namespace dsakit::harness
