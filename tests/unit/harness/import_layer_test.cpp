// Layer files that no shared recording covers: new tokens after earlier ones, and bad ones.
#include "dsakit/harness/import.hpp"

#include <gtest/gtest.h>

#include "dsakit/harness/recording.hpp"
#include "support/safetensors_writer.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

class ImportLayer : public ::testing::Test {
protected:
  TempFolder folder_;

  /// Two requests with 3 and 1 earlier tokens, 2 and 3 new ones, pages of 4.
  static SafetensorsFile layer(std::vector<std::int32_t> query_lens = {2, 3},
                               std::vector<std::int32_t> seq_lens = {5, 4}) {
    SafetensorsFile file;
    file.metadata = {{"kind", "prefill"},
                     {"softmax_scale", "0.5"},
                     {"config", R"({"fp8_encoding": "e4m3fn", "page_size": 4, "use_fp4": false,
                                    "output_gate": false, "q_lora_rank": null, "rms_norm_eps": 1e-5,
                                    "index_k_norm_type": "layernorm"})"}};
    const auto requests = static_cast<std::int64_t>(query_lens.size());
    file.add<std::int32_t>("steps.0.query_lens", "I32", {requests}, query_lens);
    file.add<std::int32_t>("steps.0.seq_lens", "I32", {2}, seq_lens);
    file.add<std::int64_t>("steps.0.slot_mapping", "I64", {5}, {3, 4, 9, 10, 11});
    file.add("steps.0.index_k", "BF16", {5, 128}, std::vector<std::uint16_t>(5 * 128));
    std::vector<std::uint8_t> cache(3 * 4 * 132);
    for (std::size_t i = 0; i < cache.size(); ++i)
      cache[i] = static_cast<std::uint8_t>(i % 113); // codes and scales that tell pages apart
    file.add("steps.0.index_cache_before", "U8", {3, 4 * 132}, cache);
    file.add("steps.0.index_cache_after", "U8", {3, 4 * 132}, cache);
    file.add("steps.0.index_logits", "F32", {5, 6}, std::vector<float>(30));
    file.add("steps.0.index_k_raw", "BF16", {5, 128}, std::vector<std::uint16_t>(5 * 128));
    file.add("weights.k_index_norm.weight", "F32", {128}, std::vector<float>(128));
    file.add("weights.k_index_norm.bias", "F32", {128}, std::vector<float>(128));
    file.add("steps.0.index_q", "BF16", {5, 1, 128}, std::vector<std::uint16_t>(5 * 128));
    file.add("steps.0.index_q_fp8", "F8_E4M3", {5, 1, 128}, std::vector<std::uint8_t>(5 * 128));
    file.add("steps.0.index_q_scale", "F32", {5, 1}, std::vector<float>(5));
    file.add("steps.0.index_weights", "BF16", {5, 1}, std::vector<std::uint16_t>(5));
    file.add("steps.0.index_weights_folded", "F32", {5, 1}, std::vector<float>(5));
    file.add<std::int32_t>("steps.0.block_table", "I32", {2, 2}, {0, 1, 2, -1});
    file.add("steps.0.topk_indices", "I32", {5, 2}, std::vector<std::int32_t>(10));
    file.add("steps.0.topk_slots", "I32", {5, 2}, std::vector<std::int32_t>(10));
    file.add("steps.0.kv_c", "BF16", {5, 512}, std::vector<std::uint16_t>(5 * 512));
    file.add("steps.0.k_pe", "BF16", {5, 64}, std::vector<std::uint16_t>(5 * 64));
    const std::vector<std::uint8_t> mla_cache(3 * 4 * 656);
    file.add("steps.0.mla_cache_before", "U8", {3, 4, 656}, mla_cache);
    file.add("steps.0.mla_cache_after", "U8", {3, 4, 656}, mla_cache);
    file.add("steps.0.mla_query", "BF16", {5, 1, 576}, std::vector<std::uint16_t>(5 * 576));
    file.add("steps.0.attn_latent", "BF16", {5, 1, 512}, std::vector<std::uint16_t>(5 * 512));
    file.add("steps.0.attn_lse", "F32", {5, 1}, std::vector<float>(5));
    return file;
  }

  Status import(const SafetensorsFile& file) {
    file.write(folder_ / "x.safetensors");
    ImportOptions options;
    options.input = folder_ / "x.safetensors";
    options.output = folder_ / "x.h5";
    return import_safetensors(options).status();
  }

  std::string refusal(const SafetensorsFile& file) {
    const std::string what = import(file).what();
    return what.substr(std::min(what.size(), (folder_ / "x.safetensors: ").size()));
  }
};

TEST_F(ImportLayer, WindowsCountEarlierTokensOfTheirOwnRequestOnly) {
  const Status imported = import(layer());
  ASSERT_TRUE(imported) << imported.what();
  auto reader = RecordingReader::open(folder_ / "x.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  auto prefill = reader->read({0, "index_logits_prefill"}, reader->contract());
  ASSERT_TRUE(prefill) << prefill.status().what();
  const auto values = [&](const char* name) {
    const Tensor& tensor = prefill->inputs.at(name).tensor;
    const auto* data = tensor.as<std::int32_t>();
    return std::vector<std::int32_t>(data, data + tensor.elements());
  };
  EXPECT_EQ(values("row_request"), (std::vector<std::int32_t>{0, 0, 1, 1, 1}));
  EXPECT_EQ(values("row_lens"), (std::vector<std::int32_t>{4, 5, 2, 3, 4}));
  EXPECT_EQ(values("ks"), (std::vector<std::int32_t>{0, 0, 5, 5, 5}));
  EXPECT_EQ(values("ke"), (std::vector<std::int32_t>{4, 5, 7, 8, 9}));
  EXPECT_EQ(values("column_origin"), values("ks"));
}

/// Keys 0 to 3 lie on page 0, key 4 on page 1, the second request's on page 2 of 4 tokens.
TEST_F(ImportLayer, KeysOfAPrefillAreThoseOfTheCache) {
  const Status imported = import(layer());
  ASSERT_TRUE(imported) << imported.what();
  auto reader = RecordingReader::open(folder_ / "x.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  auto prefill = reader->read({0, "index_logits_prefill"}, reader->contract());
  ASSERT_TRUE(prefill) << prefill.status().what();
  const RecordedTensor& keys = prefill->inputs.at("k_fp8");
  const RecordedTensor& scales = prefill->inputs.at("k_scale");
  EXPECT_EQ(keys.attributes.at("reconstructed"), "1");
  EXPECT_EQ(scales.attributes.at("reconstructed"), "1");
  ASSERT_EQ(keys.tensor.shape, (Shape{9, 128}));
  constexpr std::int64_t kPage[] = {0, 0, 0, 0, 1, 2, 2, 2, 2};
  constexpr std::int64_t kToken[] = {0, 1, 2, 3, 0, 0, 1, 2, 3};
  for (std::size_t n = 0; n < 9; ++n) {
    const std::int64_t page = kPage[n] * 4 * 132;
    for (std::int64_t d = 0; d < 128; ++d)
      ASSERT_EQ(keys.tensor.as<std::uint8_t>()[static_cast<std::int64_t>(n) * 128 + d],
                (page + kToken[n] * 128 + d) % 113)
          << n;
    for (std::int64_t byte = 0; byte < 4; ++byte)
      ASSERT_EQ(scales.tensor.as<std::uint8_t>()[static_cast<std::int64_t>(n) * 4 + byte],
                (page + 4 * 128 + kToken[n] * 4 + byte) % 113)
          << n;
  }
}

TEST_F(ImportLayer, OutputsSayHowTheyWereMade) {
  const Status imported = import(layer());
  ASSERT_TRUE(imported) << imported.what();
  auto reader = RecordingReader::open(folder_ / "x.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->contract().at("index_k_norm"), "layernorm");
  for (const TensorInfo& info : reader->tensors({0, "sparse_attention"}, Side::outputs)) {
    EXPECT_EQ(info.attributes.at("accumulation"), "exact");
    EXPECT_EQ(info.attributes.at("mla_scale_read"), "fp32");
  }
}

TEST_F(ImportLayer, MoreKeysThanTheTableOrAnIntegerHolds) {
  const auto with = [&](std::vector<std::int32_t> seq_lens) {
    return refusal(layer({2, 3}, std::move(seq_lens)));
  };
  EXPECT_EQ(with({9, 4}), "steps.0.seq_lens: [0]: found 9, want at most the 8 tokens of a row of "
                          "block_table");
  EXPECT_EQ(with({0x7FFFFFFF, 4}),
            "steps.0.seq_lens: found 2147483651 keys together, want at most 2147483647");
}

TEST_F(ImportLayer, LengthsThatDisagree) {
  EXPECT_EQ(refusal(layer({2, 2})),
            "steps.0.query_lens: found 4 tokens, want the 5 of slot_mapping");
  EXPECT_EQ(refusal(layer({6, -1})), "steps.0.query_lens: [0]: found 6, want 0 to 5");
  EXPECT_EQ(refusal(layer({5, 1, -1})),
            "steps.0.query_lens, seq_lens: found other forms, want int32 of one shape [requests]");
}

TEST_F(ImportLayer, TwoTensorsForOneObjectAreRefused) {
  SafetensorsFile file = layer();
  file.add("steps.0.output", "BF16", {5, 4}, std::vector<std::uint16_t>(20));
  file.add("output", "BF16", {5, 4}, std::vector<std::uint16_t>(20));
  EXPECT_EQ(refusal(file),
            "/steps/0/layer/outputs/output: found a second tensor 'output', want one");
}

TEST_F(ImportLayer, ConfigThatIsWrong) {
  SafetensorsFile file = layer();
  file.metadata["config"] = "{";
  EXPECT_EQ(refusal(file).find("metadata config: line 1, column 2 (byte 2): found no valid JSON"),
            0u);
  file.metadata["config"] = R"({"fp8_encoding": "e4m3fn"})";
  EXPECT_EQ(refusal(file), "metadata config: found no page_size");
  file.metadata["config"] = R"({"fp8_encoding": "e5m2", "page_size": 4, "use_fp4": false,
                                "output_gate": false, "q_lora_rank": null,
                                "index_k_norm_type": "layernorm"})";
  EXPECT_EQ(refusal(file), "contract key index_fp8_encoding: found 'e5m2', want e4m3fn | e4m3fnuz");
  file.metadata["kind"] = "training";
  EXPECT_EQ(refusal(file), "found no metadata of a known producer (op = ''), want --manifest");
}

} // namespace
} // namespace dsakit::testing
