// Files of an MXFP4 indexer become recordings: layers, and dumps with a manifest.
#include "dsakit/harness/import.hpp"

#include <gtest/gtest.h>

#include "dsakit/harness/recording.hpp"
#include "support/safetensors_writer.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

class ImportMxfp4 : public ::testing::Test {
protected:
  TempFolder folder_;

  RecordedOperation imported(const SafetensorsFile& file, const std::string& operation,
                             const std::string& manifest = "") {
    file.write(folder_ / "x.safetensors");
    ImportOptions options;
    options.input = folder_ / "x.safetensors";
    options.output = folder_ / "x.h5";
    if (!manifest.empty()) {
      write_file(folder_ / "m.json", manifest);
      options.manifest = folder_ / "m.json";
    }
    const Status status = import_safetensors(options).status();
    EXPECT_TRUE(status) << status.what();
    const auto reader = RecordingReader::open(options.output);
    EXPECT_TRUE(reader) << reader.status().what();
    if (!reader) return {};
    auto read = reader->read({0, operation}, reader->contract());
    EXPECT_TRUE(read) << read.status().what();
    return read ? std::move(*read) : RecordedOperation{};
  }

  static std::vector<std::uint8_t> ramp(std::size_t bytes) {
    std::vector<std::uint8_t> values(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      values[i] = static_cast<std::uint8_t>(i % 113);
    return values;
  }
};

/// Two requests with 3 and 1 earlier tokens, 2 and 3 new ones, pages of 4.
TEST_F(ImportMxfp4, KeysOfALayersPrefillAreGatheredFromItsPages) {
  SafetensorsFile file;
  file.metadata = {{"kind", "prefill"},
                   {"softmax_scale", "0.5"},
                   {"config", R"({"fp8_encoding": "e4m3fn", "page_size": 4, "use_fp4": true,
                                  "output_gate": false, "q_lora_rank": null, "rms_norm_eps": 1e-5,
                                  "index_k_norm_type": "layernorm"})"}};
  file.add<std::int32_t>("steps.0.query_lens", "I32", {2}, {2, 3});
  file.add<std::int32_t>("steps.0.seq_lens", "I32", {2}, {5, 4});
  file.add<std::int64_t>("steps.0.slot_mapping", "I64", {5}, {3, 4, 9, 10, 11});
  file.add("steps.0.index_k", "BF16", {5, 128}, std::vector<std::uint16_t>(5 * 128));
  file.add<std::int32_t>("steps.0.block_table", "I32", {2, 2}, {0, 1, 2, -1});
  const auto cache = ramp(3 * 4 * 68);
  file.add("steps.0.index_cache_before", "U8", {3, 4 * 68}, cache);
  file.add("steps.0.index_cache_after", "U8", {3, 4 * 68}, cache);
  file.add("steps.0.index_q", "BF16", {5, 1, 128}, std::vector<std::uint16_t>(5 * 128));
  file.add("steps.0.index_q_packed", "U8", {5, 1, 64}, std::vector<std::uint8_t>(5 * 64));
  file.add("steps.0.index_q_scale", "U8", {5, 1, 4}, std::vector<std::uint8_t>(5 * 4));
  file.add("steps.0.index_weights", "BF16", {5, 1}, std::vector<std::uint16_t>(5));
  file.add("steps.0.index_logits", "F32", {5, 6}, std::vector<float>(30));
  file.add("steps.0.topk_indices", "I32", {5, 2}, std::vector<std::int32_t>(10));
  file.add("steps.0.topk_slots", "I32", {5, 2}, std::vector<std::int32_t>(10));
  // What the layer's other operations must have.
  file.add("steps.0.index_k_raw", "BF16", {5, 128}, std::vector<std::uint16_t>(5 * 128));
  file.add("weights.k_index_norm.weight", "F32", {128}, std::vector<float>(128));
  file.add("weights.k_index_norm.bias", "F32", {128}, std::vector<float>(128));
  file.add("steps.0.kv_c", "BF16", {5, 512}, std::vector<std::uint16_t>(5 * 512));
  file.add("steps.0.k_pe", "BF16", {5, 64}, std::vector<std::uint16_t>(5 * 64));
  const std::vector<std::uint8_t> mla_cache(3 * 4 * 656);
  file.add("steps.0.mla_cache_before", "U8", {3, 4, 656}, mla_cache);
  file.add("steps.0.mla_cache_after", "U8", {3, 4, 656}, mla_cache);
  file.add("steps.0.mla_query", "BF16", {5, 1, 576}, std::vector<std::uint16_t>(5 * 576));
  file.add("steps.0.attn_latent", "BF16", {5, 1, 512}, std::vector<std::uint16_t>(5 * 512));
  file.add("steps.0.attn_lse", "F32", {5, 1}, std::vector<float>(5));

  const RecordedOperation logits = imported(file, "index_logits_prefill");
  const Tensor& packed = logits.inputs.at("k_packed").tensor;
  const Tensor& scale = logits.inputs.at("k_scale").tensor;
  ASSERT_EQ(packed.shape, (Shape{9, 64}));
  ASSERT_EQ(scale.shape, (Shape{9, 4}));
  EXPECT_EQ(packed.dtype, Dtype::float4_e2m1fn_x2);
  EXPECT_EQ(scale.dtype, Dtype::float8_e8m0fnu);
  EXPECT_EQ(logits.inputs.at("k_scale").attributes.at("reconstructed"), "1");
  const std::int64_t slots[] = {0, 1, 2, 3, 4, 8, 9, 10, 11};
  for (std::int64_t key = 0; key < 9; ++key) {
    const std::int64_t page = slots[key] / 4 * 4 * 68, token = slots[key] % 4;
    for (std::int64_t i = 0; i < 64; ++i)
      ASSERT_EQ(packed.as<std::uint8_t>()[key * 64 + i],
                cache[static_cast<std::size_t>(page + token * 64 + i)]);
    for (std::int64_t g = 0; g < 4; ++g)
      ASSERT_EQ(scale.as<std::uint8_t>()[key * 4 + g],
                cache[static_cast<std::size_t>(page + 4 * 64 + token * 4 + g)]);
  }
}

TEST_F(ImportMxfp4, BytesOfADumpAreCodesAndScalesAndLeadingAxesMerge) {
  SafetensorsFile file;
  file.add("q", "BF16", {2, 2, 3, 128}, std::vector<std::uint16_t>(2 * 2 * 3 * 128));
  file.add("packed", "U8", {2, 2, 3, 64}, std::vector<std::uint8_t>(2 * 2 * 3 * 64));
  file.add("scale", "U8", {2, 2, 3, 4}, std::vector<std::uint8_t>(2 * 2 * 3 * 4, 1));
  const RecordedOperation quant = imported(file, "index_query_quant", R"({
    "contract": {"activation_dtype": "bf16", "hadamard": "query_and_key"},
    "operations": [{"operation": "index_query_quant", "inputs": {"index_q": "q"},
                    "outputs": {"index_q_packed.mine": {"tensor": "packed", "output": "index_q_packed"},
                                "index_q_scale.mine": {"tensor": "scale", "output": "index_q_scale"}}}]})");
  EXPECT_EQ(quant.inputs.at("index_q").tensor.shape, (Shape{4, 3, 128}));
  const Tensor& packed = quant.outputs.at("index_q_packed.mine").tensor;
  EXPECT_EQ(packed.shape, (Shape{4, 3, 64}));
  EXPECT_EQ(packed.dtype, Dtype::float4_e2m1fn_x2);
  const Tensor& scale = quant.outputs.at("index_q_scale.mine").tensor;
  EXPECT_EQ(scale.shape, (Shape{4, 3, 4}));
  EXPECT_EQ(scale.dtype, Dtype::float8_e8m0fnu);
}

/// Rows 0 and 1 lie in page 1, row 2 in a page that is not there, row 3 belongs to no request.
TEST_F(ImportMxfp4, WhatAGatherWritesIsPoisonedBefore) {
  SafetensorsFile file;
  file.add("cache", "U8", {2, 2, 68}, ramp(2 * 2 * 68));
  file.add<std::int32_t>("table", "I32", {1, 2}, {1, -1});
  file.add<std::int32_t>("cu", "I32", {2}, {0, 3});
  file.add("k", "U8", {4, 64}, ramp(4 * 64));
  file.add("s", "U8", {4, 4}, std::vector<std::uint8_t>(16, 0));
  const RecordedOperation gather = imported(file, "index_cache_gather", R"({
    "contract": {"index_page_layout": "flat", "page_size": 2},
    "operations": [{"operation": "index_cache_gather",
                    "inputs": {"index_cache": "cache", "block_table": "table", "cu_seq_lens": "cu"},
                    "outputs": {"k_packed": "k", "k_scale": "s"}}]})");
  EXPECT_EQ(gather.inputs.at("index_cache").tensor.shape, (Shape{2, 136}));
  const auto* before = gather.inputs.at("k_packed").tensor.as<std::uint8_t>();
  const auto* scale = gather.inputs.at("k_scale").tensor.as<std::uint8_t>();
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t i = 0; i < 64; ++i)
      ASSERT_EQ(before[row * 64 + i], row < 2 ? 0x5A : (row * 64 + i) % 113) << row;
    for (std::int64_t g = 0; g < 4; ++g)
      ASSERT_EQ(scale[row * 4 + g], row < 3 ? 7 : 0) << row;
  }
}

TEST_F(ImportMxfp4, WrittenRecordsOfATiledPageArePoisonedBefore) {
  SafetensorsFile file;
  file.add("k", "BF16", {1, 128}, std::vector<std::uint16_t>(128));
  file.add<std::int64_t>("slots", "I64", {1}, {64 + 37});
  file.add("cache", "U8", {2, 64 * 68}, std::vector<std::uint8_t>(2 * 64 * 68, 0));
  const RecordedOperation write = imported(file, "index_cache_write", R"({
    "contract": {"activation_dtype": "bf16", "hadamard": "none", "index_page_layout": "preshuffle64",
                 "page_size": 64},
    "operations": [{"operation": "index_cache_write", "inputs": {"index_k": "k", "slot_mapping": "slots"},
                    "outputs": {"index_cache": "cache"}}]})");
  const Tensor& cache = write.inputs.at("index_cache").tensor;
  std::int64_t poisoned = 0;
  for (std::int64_t i = 0; i < cache.elements(); ++i) {
    const std::int64_t byte = i - 64 * 68;
    const bool code = byte >= 0 && byte < 4096 && byte % 1024 / 16 == 37;
    const bool scale = byte >= 4096 && (byte - 4096) % 64 == 5 * 4 + 2; // spec 3.2
    ASSERT_EQ(cache.as<std::uint8_t>()[i], code || scale ? 0xA5 : 0) << i;
    poisoned += code || scale;
  }
  EXPECT_EQ(poisoned, 68);
}

} // namespace
} // namespace dsakit::testing
