#include "dsakit/harness/model_config.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "../import/json.hpp"
#include "../recording/ordinary_file.hpp"
#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

using Json = nlohmann::json;

/// Kimi K3.1 beyond dsa_config is Kimi K3's (spec 0.4: inferred).
constexpr std::pair<const char*, const char*> kPresets[] = {{"kimi-k3.1", R"({
      "hidden_size": 7168, "num_attention_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
      "mla_use_nope": true, "mla_use_output_gate": true, "max_position_embeddings": 1048576,
      "dsa_config": {"index_num_heads": 32, "index_head_dim": 128, "index_topk": 2048,
                     "index_rope_dim": 0, "index_k_norm_type": "layernorm"}})"},
                                                            {"kimi-k3", R"({
      "hidden_size": 7168, "num_attention_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
      "mla_use_nope": true, "mla_use_output_gate": true, "max_position_embeddings": 1048576})"},
                                                            {"deepseek-v3.2", R"({
      "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
      "max_position_embeddings": 163840, "index_n_heads": 64, "index_head_dim": 128,
      "index_topk": 2048,
      "rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}})"}};

/// Reads keys of one object; the first that is missing or of another type stays as `status`.
class Keys {
public:
  Keys(std::string where, const Json& object) : where_(std::move(where)), object_(object) {}

  Status status;

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  std::int64_t integer(const char* key) {
    return read<std::int64_t>(key, "a whole number", &Json::is_number_integer);
  }
  /// A whole number of at least 1.
  std::int64_t extent(const char* key) {
    const std::int64_t value = integer(key);
    if (value < 1) fail(key, "at least 1");
    return value;
  }
  double magnitude(const char* key) {
    const double value = number(key);
    if (value < 0) fail(key, "at least 0");
    return value;
  }
  double number(const char* key) { return read<double>(key, "a number", &Json::is_number); }
  std::string text(const char* key) { return read<std::string>(key, "a string", &Json::is_string); }
  bool flag(const char* key) { // absent is false
    return has(key) && read<bool>(key, "true or false", &Json::is_boolean);
  }
  std::optional<std::int64_t> optional_extent(const char* key) {
    if (!has(key)) return std::nullopt;
    return extent(key);
  }
  Keys inner(const char* key) const { return {where_ + ": " + key, object_.at(key)}; }
  bool has_object(const char* key) {
    if (!has(key)) return false;
    if (!object_.at(key).is_object()) fail(key, "an object");
    return object_.at(key).is_object();
  }

private:
  template <class Value>
  Value read(const char* key, const char* want, bool (Json::*is)() const noexcept) {
    if (has(key) && (object_.at(key).*is)()) return object_.at(key).get<Value>();
    fail(key, want);
    return {};
  }
  void fail(const char* key, const char* want) {
    if (!status) return;
    status =
        bad_input(where_ + ": " + key + ": found " +
                  (object_.contains(key) ? object_.at(key).dump() : "none") + ", want " + want);
  }

  std::string where_;
  const Json& object_;
};

Result<reference::RopeParameters> read_rope(Keys& keys) {
  reference::RopeParameters rope{"default", 1, 0};
  const char* object = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has_object(object)) return keys.status ? Result(rope) : keys.status;
  Keys inner = keys.inner(object);
  for (const char* key : {"type", "rope_type"})
    if (inner.has(key)) rope.rope_type = inner.text(key);
  if (rope.rope_type == "default") return inner.status ? Result(rope) : inner.status;
  rope.factor = inner.magnitude("factor"); // an error where it is absent
  if (inner.has("mscale_all_dim")) rope.mscale_all_dim = inner.number("mscale_all_dim");
  if (!inner.status) return inner.status;
  return rope;
}

/// dsa_config, or DeepSeek's flat keys, whose indexer rotates qk_rope_head_dim elements.
Result<std::optional<reference::DsaConfig>> read_dsa(Keys& keys, std::int64_t rope_head_dim) {
  std::optional<reference::DsaConfig> dsa;
  if (keys.has_object("dsa_config")) {
    Keys inner = keys.inner("dsa_config");
    dsa = {inner.extent("index_num_heads"),
           inner.extent("index_head_dim"),
           inner.extent("index_topk"),
           inner.has("index_rope_dim") ? inner.integer("index_rope_dim") : 0,
           inner.optional_extent("index_topk_freq"),
           inner.has("index_k_norm_type") ? inner.text("index_k_norm_type") : "rmsnorm"};
    if (!inner.status) return inner.status;
  } else if (keys.has("index_topk")) {
    dsa = {keys.extent("index_n_heads"),
           keys.extent("index_head_dim"),
           keys.extent("index_topk"),
           rope_head_dim,
           std::nullopt,
           "layernorm"};
  }
  if (!keys.status) return keys.status;
  return dsa;
}

Result<reference::LayerConfig> layer_of(const std::string& where, const Json& json) {
  if (!json.is_object()) return bad_input(where + ": found no JSON object, want one");
  Keys keys(where, json);
  reference::LayerConfig config{};
  config.hidden_size = keys.extent("hidden_size");
  config.num_attention_heads = keys.extent("num_attention_heads");
  config.q_lora_rank = keys.optional_extent("q_lora_rank");
  config.head = {keys.extent("qk_nope_head_dim"), keys.extent("qk_rope_head_dim"),
                 keys.extent("v_head_dim"), keys.extent("kv_lora_rank")};
  config.rms_norm_eps = keys.magnitude("rms_norm_eps");
  config.mla_use_nope = keys.flag("mla_use_nope");
  config.mla_use_output_gate = keys.flag("mla_use_output_gate");
  auto rope = read_rope(keys);
  if (!rope) return rope.status();
  config.rope = *rope;
  auto dsa = read_dsa(keys, config.head.pe);
  if (!dsa) return dsa.status();
  config.dsa = *dsa;
  config.parallel = {1, 1, 1};
  config.reduce_results = true;
  config.cache_dtype = resolve_cache_dtype("fp8");
  config.indexer_kv_dtype = "fp8";
  config.max_model_len = keys.extent("max_position_embeddings");
  config.max_num_seqs = 256;
  config.num_speculative_tokens = 0;
  config.max_cudagraph_capture_size = 512;
  config.max_logits_bytes = std::int64_t{512} << 20;
  config.native_decode = false;
  if (!keys.status) return keys.status;
  return config;
}

} // namespace

std::vector<std::string> model_presets() {
  std::vector<std::string> names;
  for (const auto& [name, json] : kPresets)
    names.emplace_back(name);
  return names;
}

std::string resolve_cache_dtype(std::string_view cache_dtype) {
  return cache_dtype.starts_with("fp8") ? "fp8_ds_mla" : std::string(cache_dtype);
}

Result<reference::LayerConfig> read_model_config(const std::string& preset_or_path) {
  constexpr std::uint64_t kLargest = 16 << 20;
  for (const auto& [name, json] : kPresets)
    if (preset_or_path == name) return layer_of(name, Json::parse(json));
  std::string want = "want a model's config.json of at most 16 MiB, or a preset: ";
  for (const std::string& name : model_presets())
    want += (want.ends_with(' ') ? "" : ", ") + name;
  const auto size = size_of_ordinary_file(preset_or_path);
  if (!size) return bad_input(size.status().what() + "; " + want);
  if (*size > kLargest)
    return bad_input(preset_or_path + ": found " + std::to_string(*size) + " bytes, " + want);
  const auto text = read_text_file(preset_or_path);
  DSAKIT_TRY(text);
  auto json = parse_json(preset_or_path, *text, 32);
  if (!json) return json.status();
  const bool nested = json->is_object() && json->contains("text_config");
  return layer_of(preset_or_path, nested ? json->at("text_config") : *json);
}

std::vector<std::string> checkpoint_names(std::string_view weight) {
  static const std::map<std::string_view, std::vector<std::string>> kNames = {
      {"fused_qkv_a_proj", {"q_a_proj.weight", "kv_a_proj_with_mqa.weight"}},
      {"kv_a_proj_with_mqa", {"kv_a_proj_with_mqa.weight"}},
      {"q_a_layernorm", {"q_a_layernorm.weight"}},
      {"q_b_proj", {"q_b_proj.weight"}},
      {"q_proj", {"q_proj.weight"}},
      {"kv_a_layernorm", {"kv_a_layernorm.weight"}},
      {"kv_b_proj", {"kv_b_proj.weight"}},
      {"g_proj", {"g_proj.weight"}},
      {"o_proj", {"o_proj.weight"}},
      {"wq_index", {"indexer.wq_b.weight"}},
      {"wk_index", {"indexer.wk.weight"}},
      {"wv_index", {"indexer.weights_proj.weight"}},
      {"k_index_norm.weight", {"indexer.k_norm.weight"}},
      {"k_index_norm.bias", {"indexer.k_norm.bias"}}};
  std::vector<std::string> names;
  for (const std::string& name : kNames.at(weight))
    names.push_back("self_attn." + name);
  return names;
}

} // namespace dsakit::harness
