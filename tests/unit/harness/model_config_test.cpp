#include "dsakit/harness/model_config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

using testing::TempFolder;
using testing::write_file;

const nlohmann::json kGood = {{"hidden_size", 256},
                              {"num_attention_heads", 6},
                              {"q_lora_rank", nullptr},
                              {"kv_lora_rank", 512},
                              {"qk_nope_head_dim", 128},
                              {"qk_rope_head_dim", 64},
                              {"v_head_dim", 128},
                              {"rms_norm_eps", 1e-6},
                              {"mla_use_nope", true},
                              {"max_position_embeddings", 8192},
                              {"dsa_config",
                               {{"index_num_heads", 16},
                                {"index_head_dim", 128},
                                {"index_topk", 64},
                                {"index_topk_freq", 1}}}};

class ModelConfig : public ::testing::Test {
protected:
  Result<reference::LayerConfig> read(const std::string& text) {
    write_file(path_, text);
    return read_model_config(path_);
  }
  std::string refusal(const nlohmann::json& json) {
    const std::string what = read(json.dump()).status().what();
    EXPECT_TRUE(what.starts_with(path_ + ": ")) << what;
    return what.substr(std::min(what.size(), path_.size() + 2));
  }

  TempFolder folder_;
  std::string path_ = folder_ / "config.json";
};

std::int32_t cell = 0;

Status buildable(const std::string& preset) {
  auto config = read_model_config(preset);
  EXPECT_TRUE(config) << config.status().what();
  return reference::check_layer(*config, {&cell, 1, 2048}).status();
}

TEST_F(ModelConfig, PresetsAreWhatTheModelsSay) {
  EXPECT_EQ(model_presets(), (std::vector<std::string>{"kimi-k3.1", "kimi-k3", "deepseek-v3.2"}));
  EXPECT_TRUE(buildable("kimi-k3.1"));
  EXPECT_EQ(buildable("kimi-k3").what(), "dsa_config: found none, want one: this is a DSA layer");
  EXPECT_EQ(buildable("kimi-k3").code(), Code::unsupported) << "a sound model of another kind";
  const Status deepseek = buildable("deepseek-v3.2");
  EXPECT_EQ(deepseek.code(), Code::unsupported);
  EXPECT_NE(deepseek.what().find("no rotary embedding"), std::string::npos) << deepseek.what();
  auto k31 = read_model_config("kimi-k3.1");
  ASSERT_TRUE(k31);
  EXPECT_EQ(k31->softmax_scale(), 0.07216878364870322);
  EXPECT_EQ(k31->cache_dtype, "fp8_ds_mla");
  EXPECT_EQ(k31->dsa->index_num_heads, 32);
  EXPECT_EQ(k31->q_lora_rank, 1536);
}

TEST_F(ModelConfig, ReadsTheModelsOwnKeys) {
  auto config = read(kGood.dump());
  ASSERT_TRUE(config) << config.status().what();
  EXPECT_EQ(config->hidden_size, 256);
  EXPECT_FALSE(config->q_lora_rank);
  EXPECT_FALSE(config->mla_use_output_gate);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->max_model_len, 8192);
  EXPECT_EQ(config->dsa->index_k_norm_type, "rmsnorm"); // where it says none
  EXPECT_EQ(config->rope.rope_type, "default");

  const nlohmann::json nested = {{"model_type", "kimi_vl"}, {"text_config", kGood}};
  ASSERT_TRUE(config = read(nested.dump()));
  EXPECT_EQ(config->num_attention_heads, 6);
}

TEST_F(ModelConfig, YarnNeedsItsFactor) {
  nlohmann::json json = kGood;
  for (const char* object : {"rope_parameters", "rope_scaling"})
    for (const char* type : {"rope_type", "type"}) {
      json = kGood;
      json[object] = {{type, "yarn"}, {"factor", 40}, {"mscale_all_dim", 1.0}};
      auto config = read(json.dump());
      ASSERT_TRUE(config) << config.status().what();
      EXPECT_EQ(config->softmax_scale(), 0.1352337788608801);
    }
  json["rope_scaling"].erase("factor");
  EXPECT_EQ(refusal(json), "rope_scaling: factor: found none, want a number");
  json["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_TRUE(read(json.dump()));
}

TEST_F(ModelConfig, RefusalsNameFileAndKey) {
  for (const char* key : {"hidden_size", "num_attention_heads", "kv_lora_rank", "rms_norm_eps",
                          "max_position_embeddings"}) {
    nlohmann::json json = kGood;
    json.erase(key);
    EXPECT_TRUE(refusal(json).starts_with(std::string(key) + ": found none, want ")) << key;
  }
  nlohmann::json json = kGood;
  json["hidden_size"] = "256";
  EXPECT_EQ(refusal(json), "hidden_size: found \"256\", want a whole number");
  json = kGood;
  json["mla_use_nope"] = 1;
  EXPECT_EQ(refusal(json), "mla_use_nope: found 1, want true or false");
  json = kGood;
  json["dsa_config"].erase("index_topk");
  EXPECT_EQ(refusal(json), "dsa_config: index_topk: found none, want a whole number");
  for (const char* key : {"index_num_heads", "index_head_dim", "index_topk"})
    for (const int value : {0, -5}) {
      json = kGood;
      json["dsa_config"][key] = value;
      EXPECT_EQ(refusal(json), std::string("dsa_config: ") + key + ": found " +
                                   std::to_string(value) + ", want at least 1");
    }
  json = kGood;
  json["num_attention_heads"] = -96;
  EXPECT_EQ(refusal(json), "num_attention_heads: found -96, want at least 1");
  json = kGood;
  json["q_lora_rank"] = 0;
  EXPECT_EQ(refusal(json), "q_lora_rank: found 0, want at least 1");
  json = kGood;
  json["rms_norm_eps"] = -1e-6;
  EXPECT_EQ(refusal(json), "rms_norm_eps: found -1e-06, want at least 0");
  EXPECT_EQ(refusal(nlohmann::json::array()), "found no JSON object, want one");
  EXPECT_FALSE(read("{"));
  const std::string missing = read_model_config(folder_ / "none.json").status().what();
  EXPECT_NE(
      missing.find(
          "none.json: cannot be opened: No such file or directory; want a model's config.json "
          "of at most 16 MiB, or a preset: kimi-k3.1, kimi-k3, deepseek-v3.2"),
      std::string::npos)
      << missing;
}

TEST_F(ModelConfig, CacheDtypesResolveBeforeConstruction) {
  for (const char* fp8 : {"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"})
    EXPECT_EQ(resolve_cache_dtype(fp8), "fp8_ds_mla");
  EXPECT_EQ(resolve_cache_dtype("auto"), "auto");
  EXPECT_EQ(resolve_cache_dtype("bfloat16"), "bfloat16");
}

TEST_F(ModelConfig, EveryWeightHasItsNamesInACheckpoint) {
  auto config = read_model_config("kimi-k3.1");
  ASSERT_TRUE(config);
  for (const auto& weight : reference::weight_shapes(*config))
    EXPECT_FALSE(checkpoint_names(weight.name).empty()) << weight.name;
  EXPECT_EQ(checkpoint_names("fused_qkv_a_proj"),
            (std::vector<std::string>{"self_attn.q_a_proj.weight",
                                      "self_attn.kv_a_proj_with_mqa.weight"}));
  EXPECT_EQ(checkpoint_names("wv_index"),
            std::vector<std::string>{"self_attn.indexer.weights_proj.weight"});
}

} // namespace
} // namespace dsakit::harness
