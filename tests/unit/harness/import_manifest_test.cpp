// Any .safetensors file becomes a recording with a manifest; contracts are filled, never overruled.
#include "dsakit/harness/import.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "dsakit/harness/export.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/safetensors.hpp"
#include "support/safetensors_writer.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

constexpr const char* kManifest = R"({
  "contract": {"index_fp8_encoding": "e4m3fn", "index_page_layout": "block_flat", "page_size": 2},
  "operations": [
    {"operation": "index_cache_write", "inputs": {"index_k": "k", "slot_mapping": "slots"},
     "outputs": {"index_cache": "cache"}},
    {"operation": "index_logits_decode",
     "inputs": {"index_q_fp8": "q", "index_cache": "cache", "index_weights_folded": "w",
                "block_table": "table", "row_lens": "lens"},
     "outputs": {"logits.mine": {"tensor": "out", "output": "logits", "producer": "mine"}}}
  ]
})";

class ImportManifest : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string output_ = folder_ / "x.h5";

  /// What a PyTorch user has: rows as [B, next_n], cache as [pages, tokens, bytes], fp8 as uint8.
  static SafetensorsFile dump() {
    const TinyRecording tiny = tiny_recording();
    const auto& write = tiny.operations.at("index_cache_write");
    SafetensorsFile file;
    const auto copy = [](const RecordedTensor& recorded) {
      std::vector<std::uint8_t> bytes(recorded.tensor.bytes.size());
      std::memcpy(bytes.data(), recorded.tensor.bytes.data(), bytes.size());
      return bytes;
    };
    file.add("k", "BF16", {6, 128}, copy(write.inputs.at("index_k")));
    file.add("slots", "I64", {5}, copy(write.inputs.at("slot_mapping")));
    file.add("cache", "U8", {4, 2, 132}, copy(write.outputs.at("index_cache")));
    file.add("q", "U8", {2, 2, 3, 128}, std::vector<std::uint8_t>(2 * 2 * 3 * 128, 0x38));
    file.add("w", "F32", {2, 2, 3}, std::vector<float>(12, 0.5F));
    file.add<std::int32_t>("table", "I32", {2, 2}, {1, 3, 2, 0});
    file.add<std::int32_t>("lens", "I32", {2, 2}, {1, 2, 3, 4});
    file.add("out", "F32", {2, 2, 5}, std::vector<float>(20, 1));
    file.add<float>("unrelated", "F32", {1}, {0});
    return file;
  }

  static ContractValues full_contract() {
    return {{"activation_dtype", "bf16"},
            {"scale_kind", "ue8m0"},
            {"index_k_floor", "1e-4"},
            {"qmax", "448"},
            {"accumulation:logits", "fp32"}};
  }

  Result<ImportSummary> import(const std::string& manifest, const ContractValues& contract,
                               const std::string& preset = "") {
    dump().write(folder_ / "x.safetensors");
    write_file(folder_ / "m.json", manifest);
    ImportOptions options;
    options.input = folder_ / "x.safetensors";
    options.output = output_;
    options.contract = contract;
    options.contract_preset = preset;
    options.manifest = folder_ / "m.json";
    options.command = "dsakit import --manifest";
    return import_safetensors(options);
  }

  /// The message without the folder, after which there is no output.
  std::string refusal(const std::string& manifest, const ContractValues& contract = full_contract(),
                      const std::string& preset = "") {
    std::filesystem::remove(output_);
    auto summary = import(manifest, contract, preset);
    if (summary) return "";
    EXPECT_EQ(summary.status().code(), Code::bad_input);
    EXPECT_FALSE(std::filesystem::exists(output_));
    std::string what = summary.status().what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    for (auto at = what.find(folder_ / ""); at != std::string::npos; at = what.find(folder_ / ""))
      what.erase(at, (folder_ / "").size());
    return what;
  }

  static std::string changed(const std::string& from, const std::string& to) {
    std::string manifest = kManifest;
    const auto at = manifest.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return manifest.replace(at, from.size(), to);
  }
};

// A misspelt key is kept and has no effect.
TEST_F(ImportManifest, KeysThatNothingReadsAreSaid) {
  const auto sound = import(kManifest, full_contract());
  ASSERT_TRUE(sound) << sound.status().what();
  EXPECT_TRUE(sound->unknown.empty());
  const auto odd = import(
      changed("\"operations\"", R"("config": {"index_topk": 3, "indextopk": 3}, "operations")"),
      full_contract());
  ASSERT_TRUE(odd) << odd.status().what();
  EXPECT_EQ(odd->unknown, std::vector<std::string>{"config: indextopk"});
}

TEST_F(ImportManifest, DumpBecomesARecordingOfCanonicalShapes) {
  auto summary = import(kManifest, full_contract());
  ASSERT_TRUE(summary) << summary.status().what();
  EXPECT_EQ(summary->left_out, std::vector<std::string>{"unrelated"});
  EXPECT_TRUE(summary->assumed.empty());
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->contract().at("page_size"), "2");
  EXPECT_EQ(reader->contract().at("qmax"), "448");
  EXPECT_EQ(reader->provenance().at("command"), "dsakit import --manifest");
  auto decode = reader->read({0, "index_logits_decode"}, reader->contract());
  ASSERT_TRUE(decode) << decode.status().what();
  const Tensor& q = decode->inputs.at("index_q_fp8").tensor;
  EXPECT_EQ(q.dtype, Dtype::float8_e4m3fn);
  EXPECT_EQ(q.shape, (Shape{4, 3, 128}));
  EXPECT_EQ(decode->inputs.at("index_cache").tensor.shape, (Shape{4, 264}));
  EXPECT_EQ(decode->inputs.at("row_lens").tensor.shape, (Shape{4}));
  const Tensor& row_request = decode->inputs.at("row_request").tensor;
  ASSERT_EQ(row_request.shape, (Shape{4}));
  for (std::int64_t r = 0; r < 4; ++r)
    EXPECT_EQ(row_request.as<std::int32_t>()[r], r / 2);
  const RecordedTensor& logits = decode->outputs.at("logits.mine");
  EXPECT_EQ(logits.tensor.shape, (Shape{4, 5}));
  EXPECT_EQ(logits.attributes,
            (Attributes{{"accumulation", "fp32"}, {"output", "logits"}, {"producer", "mine"}}));
}

/// Slots 6, 0, 3, 2 of pages of 2 tokens are written; 1, 4, 5, 7 are not.
TEST_F(ImportManifest, CacheBeforeTheWriteIsReconstructed) {
  ASSERT_TRUE(import(kManifest, full_contract()));
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  auto write = reader->read({0, "index_cache_write"}, reader->contract());
  ASSERT_TRUE(write) << write.status().what();
  const RecordedTensor& before = write->inputs.at("index_cache");
  const Tensor& after = write->outputs.at("index_cache").tensor;
  EXPECT_EQ(before.attributes, (Attributes{{"reconstructed", "1"}}));
  for (std::int64_t slot = 0; slot < 8; ++slot) {
    const bool written = slot == 6 || slot == 0 || slot == 3 || slot == 2;
    const auto byte_of = [&](std::int64_t i) {
      const std::int64_t token = slot % 2, page = slot / 2 * 264;
      return static_cast<std::size_t>(page +
                                      (i < 128 ? token * 128 + i : 256 + token * 4 + i - 128));
    };
    for (std::int64_t i = 0; i < 132; ++i)
      EXPECT_EQ(before.tensor.bytes[byte_of(i)],
                written ? std::byte{0xA5} : after.bytes[byte_of(i)])
          << "slot " << slot << " byte " << i;
  }
}

/// Pages 1, 2 (one past the pool) and -1; row 6 belongs to no request.
TEST_F(ImportManifest, GatheredRowsBeforeTheGatherAreReconstructed) {
  SafetensorsFile file;
  file.add("cache", "U8", {2, 264}, std::vector<std::uint8_t>(2 * 264, 9));
  file.add<std::int32_t>("table", "I32", {1, 3}, {1, 2, -1});
  file.add<std::int32_t>("cu", "I32", {2}, {0, 6});
  std::vector<std::uint8_t> keys(7 * 128);
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = static_cast<std::uint8_t>(i / 128 + 1);
  file.add("k", "U8", {7, 128}, keys);
  file.add<float>("scale", "F32", {7}, {1, 2, 0, 0, 0, 0, 3});
  file.write(folder_ / "x.safetensors");
  write_file(folder_ / "m.json", R"({
    "contract": {"index_fp8_encoding": "e4m3fn", "index_page_layout": "block_flat", "page_size": 2},
    "operations": [{"operation": "index_cache_gather",
      "inputs": {"index_cache": "cache", "block_table": "table", "cu_seq_lens": "cu"},
      "outputs": {"k_fp8": "k", "k_scale": "scale"}}]})");
  ImportOptions options;
  options.input = folder_ / "x.safetensors";
  options.output = output_;
  options.manifest = folder_ / "m.json";
  auto summary = import_safetensors(options);
  ASSERT_TRUE(summary) << summary.status().what();
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  auto gather = reader->read({0, "index_cache_gather"}, reader->contract());
  ASSERT_TRUE(gather) << gather.status().what();
  const RecordedTensor& before = gather->inputs.at("k_fp8");
  EXPECT_EQ(before.attributes, (Attributes{{"reconstructed", "1"}}));
  const float scales[] = {7, 7, 7, 7, 7, 7, 3};
  for (std::int64_t j = 0; j < 7; ++j) {
    const std::uint8_t want = j < 2 ? 0x5A : static_cast<std::uint8_t>(j + 1);
    for (std::int64_t d = 0; d < 128; ++d)
      EXPECT_EQ(before.tensor.as<std::uint8_t>()[j * 128 + d], want) << j;
    EXPECT_EQ(gather->inputs.at("k_scale").tensor.as<float>()[j], scales[j]) << j;
  }
}

TEST_F(ImportManifest, MissingKeyIsNamedAndThePresetFillsIt) {
  EXPECT_EQ(refusal(kManifest, {}), "x.safetensors: /contract (step 0): found no key "
                                    "activation_dtype, want it for index_cache_write");
  auto summary = import(kManifest, {{"accumulation:logits", "fp32"}}, "kimi-k3.1");
  ASSERT_TRUE(summary) << summary.status().what();
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->contract().at("index_k_floor"), "1e-4");
  EXPECT_EQ(reader->contract().at("qmax"), "448");
  EXPECT_EQ(reader->contract().at("page_size"), "2"); // said by the manifest
  const std::string assumed = reader->provenance().at("assumed");
  EXPECT_NE(assumed.find("index_k_floor"), std::string::npos);
  EXPECT_NE(assumed.find("qmax"), std::string::npos);
  EXPECT_EQ(assumed.find("page_size"), std::string::npos);
  EXPECT_EQ(std::count(summary->assumed.begin(), summary->assumed.end(), "qmax"), 1);
}

TEST_F(ImportManifest, PresetDoesNotGuessTheEncoding) {
  EXPECT_EQ(refusal(changed(R"("index_fp8_encoding": "e4m3fn", )", ""),
                    {{"accumulation:logits", "fp32"}}, "kimi-k3.1"),
            "x.safetensors: /contract (step 0): found no key index_fp8_encoding, want it for "
            "index_cache_write");
  EXPECT_EQ(refusal(kManifest, full_contract(), "kimi-k4"),
            "--contract-preset: found 'kimi-k4', want kimi-k3.1");
}

TEST_F(ImportManifest, AccumulationIsNeverAssumed) {
  ContractValues contract = full_contract();
  contract.erase("accumulation:logits");
  EXPECT_EQ(refusal(kManifest, contract, "kimi-k3.1"),
            "x.safetensors: /steps/0/index_logits_decode/outputs/logits.mine: found no attribute "
            "accumulation, want exact | fp32 | sm90_wgmma_fp8");
}

TEST_F(ImportManifest, GivenContractMayNotOverruleAndMustBeKnown) {
  const auto with = [&](const std::string& key, const std::string& value) {
    ContractValues contract = full_contract();
    contract[key] = value;
    return refusal(kManifest, contract);
  };
  EXPECT_EQ(with("page_size", "2"), "");
  EXPECT_EQ(with("page_size", "16"), "x.safetensors: contract key page_size: found '2', want '16' "
                                     "as --contract says");
  EXPECT_EQ(with("pagesize", "2").find("contract key 'pagesize' is unknown, want one of "), 0u);
  EXPECT_EQ(with("scale_kind", "ue8m1"),
            "contract key scale_kind: found 'ue8m1', want ue8m0 | fp32");
  EXPECT_EQ(with("index_q_floor", "-1"),
            "contract key index_q_floor: found '-1', want a number > 0");
  EXPECT_EQ(with("accumulation", "fp32"),
            "--contract accumulation: found no tensor, want accumulation:<output>");
  EXPECT_EQ(with("accumulation:lse", "fp32"),
            "x.safetensors: --contract accumulation:lse: found no such output");
  EXPECT_EQ(with("scale_kind:logits", "fp32"),
            "--contract scale_kind:logits: found a tensor, want the key alone");
  EXPECT_EQ(with("accumulation:logits.mine", "exact"),
            "x.safetensors: /steps/0/index_logits_decode/outputs/logits.mine: found accumulation "
            "'fp32', want 'exact' as --contract says");
}

TEST_F(ImportManifest, ManifestThatIsWrong) {
  EXPECT_EQ(refusal(""), "m.json: found no valid JSON, want some");
  EXPECT_EQ(refusal("[]"), "m.json: found no JSON object, want one");
  EXPECT_EQ(refusal("{}"),
            "m.json: operations: found no list, want one with at least one operation");
  EXPECT_EQ(refusal(changed("\"contract\"", "\"contracts\"")),
            "m.json: found key 'contracts', want one of contract, config, operations");
  EXPECT_EQ(refusal(changed("\"page_size\": 2", "\"page_size\": [2]")),
            "m.json: contract: 'page_size': found '[2]', want a text or a number");
  EXPECT_EQ(refusal(changed("\"page_size\": 2", "\"page_size\": 0")),
            "x.safetensors: contract key page_size: found '0', want a number > 0");
  EXPECT_EQ(refusal(changed("\"index_cache_write\"", "\"index_write\"")),
            "m.json: operations: found operation '\"index_write\"', want one that is known");
  EXPECT_EQ(refusal(changed("\"outputs\"", "\"output\"")),
            "m.json: operations: found key 'output', want one of operation, step, contract, "
            "inputs, outputs");
  EXPECT_EQ(refusal(changed("{\"operation\": \"index_cache_write\",",
                            "{\"operation\": \"index_cache_write\", \"step\": -1,")),
            "m.json: operations: found step '-1', want a number >= 0");
  EXPECT_EQ(refusal(changed("\"slots\"", "\"slot\"")),
            "m.json: index_cache_write: 'slot_mapping': found tensor 'slot', want one of "
            "x.safetensors");
  EXPECT_EQ(refusal(changed("\"slots\"", "7")),
            "m.json: index_cache_write: 'slot_mapping': found '7', want the tensor's name in the "
            "file");
  EXPECT_EQ(refusal(changed("\"slot_mapping\"", "\"a/b\"")),
            "m.json: index_cache_write: 'a/b': found a name that cannot be used, want a "
            "name of 1 to 255 bytes without '/' and control characters, not '.' or '..'");
  for (const std::string key : {"axes", "acumulation"})
    EXPECT_EQ(refusal(changed("\"producer\"", "\"" + key + "\"")),
              "m.json: index_logits_decode: 'logits.mine': found key '" + key +
                  "', want one of tensor, output, producer, accumulation, mla_scale_read, "
                  "block_stride, dcp_rank, page_offset");
  EXPECT_EQ(refusal(changed("\"slot_mapping\": \"slots\"", "\"index_k\": \"k\"")),
            "m.json: found the key 'index_k' twice, want it once");
  std::string deep = "{\"operations\":";
  EXPECT_EQ(refusal(deep + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
            "m.json: found JSON nested deeper than 5, want less");
}

TEST_F(ImportManifest, BadTensorsAreRefusedBeforeAnythingIsWritten) {
  EXPECT_EQ(
      refusal(changed("\"slots\"", "\"lens\"")),
      "x.safetensors: /steps/0/index_cache_write/inputs/slot_mapping: found dtype int32, want "
      "int64");
  EXPECT_EQ(refusal(changed("\"w\"", "\"unrelated\"")),
            "x.safetensors: /steps/0/index_logits_decode/inputs/index_weights_folded: found shape "
            "[1], want [4 (rows of index_q_fp8), 3 (heads of index_q_fp8)]");
  EXPECT_EQ(
      refusal(changed("\"page_size\": 2", "\"page_size\": 1")),
      "x.safetensors: /steps/0/index_cache_write/inputs/slot_mapping: [0]: found slot 6, want "
      "-1 to 3");
}

TEST_F(ImportManifest, UnknownFileNeedsAManifest) {
  dump().write(folder_ / "x.safetensors");
  ImportOptions options;
  options.input = folder_ / "x.safetensors";
  options.output = output_;
  EXPECT_EQ(import_safetensors(options).status().what(),
            options.input + ": found no metadata of a known producer (op = ''), want --manifest");
}

TEST_F(ImportManifest, StepsMayDiffer) {
  const std::string manifest = R"({
    "contract": {"index_fp8_encoding": "e4m3fn", "index_page_layout": "block_flat", "page_size": 2},
    "operations": [
      {"operation": "index_cache_write", "inputs": {"index_k": "k", "slot_mapping": "slots"},
       "outputs": {"index_cache": "cache"}},
      {"operation": "layer", "step": 3, "contract": {"topk_order": "ascending"},
       "inputs": {"logits": "out"}, "outputs": {}}]})";
  ContractValues contract = full_contract();
  contract.erase("accumulation:logits");
  auto summary = import(manifest, contract);
  ASSERT_TRUE(summary) << summary.status().what();
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->contract(3).at("topk_order"), "ascending");
  EXPECT_EQ(reader->contract(0).count("topk_order"), 0u);
}

/// mla_scale_read is filled output by output, or by the preset; never overruled.
TEST_F(ImportManifest, ReadingOfScalesIsFilledForOutputs) {
  const TinyRecording tiny = tiny_layer();
  const RecordedOperation& attention = tiny.operations.at("sparse_attention");
  SafetensorsFile file;
  const auto add = [&](const char* name, const char* dtype, const RecordedTensor& recorded) {
    std::vector<std::uint8_t> bytes(recorded.tensor.bytes.size());
    std::memcpy(bytes.data(), recorded.tensor.bytes.data(), bytes.size());
    file.add(name, dtype, recorded.tensor.shape, bytes);
  };
  add("q", "BF16", attention.inputs.at("mla_query"));
  add("cache", "U8", attention.inputs.at("mla_cache"));
  add("slots", "I32", attention.inputs.at("slots"));
  add("out", "BF16", attention.outputs.at("latent"));
  add("lse", "F32", attention.outputs.at("lse"));
  file.write(folder_ / "a.safetensors");
  write_file(folder_ / "m.json", R"({
    "contract": {"mla_fp8_encoding": "e4m3fn", "mla_record": "fp8_ds_mla", "lse_base": "e",
                 "page_size": 2},
    "config": {"softmax_scale": 0.0721},
    "operations": [{"operation": "sparse_attention",
      "inputs": {"mla_query": "q", "mla_cache": "cache", "slots": "slots"},
      "outputs": {"latent": {"tensor": "out", "mla_scale_read": "fp32"}, "lse": "lse"}}]})");
  const auto with = [&](ContractValues contract, const std::string& preset = "") {
    contract.insert({{"accumulation:latent", "fp32"}, {"accumulation:lse", "fp32"}});
    ImportOptions options;
    options.input = folder_ / "a.safetensors";
    options.output = output_;
    options.manifest = folder_ / "m.json";
    options.contract = contract;
    options.contract_preset = preset;
    return import_safetensors(options);
  };
  const std::string where = (folder_ / "a.safetensors") + ": ";
  EXPECT_EQ(with({}).status().what(), where + "/steps/0/sparse_attention/outputs/lse: found no "
                                              "attribute mla_scale_read, want fp32 | bf16");
  EXPECT_EQ(with({{"mla_scale_read:latent", "bf16"}}).status().what(),
            where + "/steps/0/sparse_attention/outputs/latent: found mla_scale_read 'fp32', want "
                    "'bf16' as --contract says");
  EXPECT_EQ(with({{"mla_scale_read", "bf16"}}).status().what(),
            "--contract mla_scale_read: found no tensor, want mla_scale_read:<output>");
  const auto lse_reads = [&] {
    auto reader = RecordingReader::open(output_);
    EXPECT_TRUE(reader) << reader.status().what();
    return reader->tensors({0, "sparse_attention"}, Side::outputs)[1].attributes.at(
        "mla_scale_read");
  };
  ASSERT_TRUE(with({{"mla_scale_read:lse", "bf16"}}));
  EXPECT_EQ(lse_reads(), "bf16");
  const auto assumed = with({}, "kimi-k3.1");
  ASSERT_TRUE(assumed) << assumed.status().what();
  EXPECT_EQ(lse_reads(), "fp32");
  EXPECT_EQ(std::count(assumed->assumed.begin(), assumed->assumed.end(), "mla_scale_read"), 1);
}

TEST_F(ImportManifest, WhatBelongsToOutputsIsNoKeyOfTheContract) {
  for (const std::string key : {"accumulation", "mla_scale_read"}) {
    const std::string manifest =
        changed("\"contract\": {", "\"contract\": {\"" + key + "\": \"fp32\", ");
    auto summary = import(manifest, full_contract());
    ASSERT_FALSE(summary);
    EXPECT_EQ(summary.status().what(),
              (folder_ / "x.safetensors") + ": contract key " + key +
                  ": found it in the contract, want it as an attribute of each output");
  }
}

/// The logits are an input before they are an output: the attributes are those of both places.
TEST_F(ImportManifest, TensorInTwoPlacesIsStoredOnceWithTheAttributesOfBoth) {
  const std::string manifest =
      changed("{\"operation\": \"index_cache_write\"",
              R"({"operation": "layer", "inputs": {"logits": "out"}, "outputs": {}},
                 {"operation": "index_cache_write")");
  auto summary = import(manifest, full_contract());
  ASSERT_TRUE(summary) << summary.status().what();
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  const auto& layer = reader->tensors({0, "layer"}, Side::inputs);
  ASSERT_EQ(layer.size(), 1u);
  EXPECT_EQ(layer[0].stored_as, "/steps/0/layer/inputs/logits");
  EXPECT_EQ(layer[0].attributes.at("producer"), "mine");
}

/// The reference of one operation is judged as an exact one of another.
TEST_F(ImportManifest, PlacesThatDisagreeKeepTheirOwnAttributes) {
  const std::string decode = R"("operation": "index_logits_decode", "step": 1,
     "inputs": {"index_q_fp8": "q", "index_cache": "cache", "index_weights_folded": "w",
                "block_table": "table", "row_lens": "lens"},
     "outputs": {"logits": {"tensor": "out", "accumulation": "exact", "producer": "other"}}})";
  auto summary = import(changed("{\"operation\": \"index_cache_write\"",
                                "{" + decode + ", {\"operation\": \"index_cache_write\""),
                        full_contract());
  EXPECT_EQ(summary.status().what(), (folder_ / "x.safetensors") +
                                         ": /steps/1/index_logits_decode/outputs/logits: found "
                                         "accumulation 'exact', want 'fp32' as --contract says");
  ContractValues contract = full_contract();
  contract.erase("accumulation:logits");
  contract["accumulation:logits.mine"] = "fp32";
  summary = import(changed("{\"operation\": \"index_cache_write\"",
                           "{" + decode + ", {\"operation\": \"index_cache_write\""),
                   contract);
  ASSERT_TRUE(summary) << summary.status().what();
  auto reader = RecordingReader::open(output_);
  ASSERT_TRUE(reader) << reader.status().what();
  const auto& mine = reader->tensors({0, "index_logits_decode"}, Side::outputs);
  const auto& other = reader->tensors({1, "index_logits_decode"}, Side::outputs);
  ASSERT_EQ(mine.size(), 1u);
  ASSERT_EQ(other.size(), 1u);
  EXPECT_EQ(mine[0].attributes,
            (Attributes{{"accumulation", "fp32"}, {"output", "logits"}, {"producer", "mine"}}));
  EXPECT_EQ(other[0].attributes, (Attributes{{"accumulation", "exact"}, {"producer", "other"}}));
  EXPECT_EQ(reader->read(mine[0])->tensor.bytes, reader->read(other[0])->tensor.bytes);
}

TEST_F(ImportManifest, OutputThatIsAnInputIsRefused) {
  dump().write(folder_ / "x.safetensors");
  write_file(folder_ / "m.json", kManifest);
  std::filesystem::create_symlink("x.safetensors", folder_ / "link");
  const std::string before = read_file(folder_ / "x.safetensors");
  const auto onto = [&](const std::string& output, const std::string& input) {
    ImportOptions options;
    options.input = folder_ / "x.safetensors";
    options.manifest = folder_ / "m.json";
    options.output = folder_ / output;
    options.contract = full_contract();
    EXPECT_EQ(import_safetensors(options).status().what(), options.output + ": found the input " +
                                                               (folder_ / input) +
                                                               ", want another file to write");
  };
  onto("x.safetensors", "x.safetensors");
  onto("link", "x.safetensors");
  onto("m.json", "m.json");
  EXPECT_TRUE(read_file(folder_ / "x.safetensors") == before);
  EXPECT_EQ(read_file(folder_ / "m.json"), kManifest);

  ASSERT_TRUE(import(kManifest, full_contract()));
  const std::string recording = read_file(output_);
  EXPECT_EQ(export_safetensors(output_, output_).what(),
            output_ + ": found the input " + output_ + ", want another file to write");
  EXPECT_TRUE(read_file(output_) == recording);
}

TEST_F(ImportManifest, FolderAsManifest) {
  dump().write(folder_ / "x.safetensors");
  ImportOptions options;
  options.input = folder_ / "x.safetensors";
  options.output = output_;
  options.manifest = folder_ / "";
  EXPECT_EQ(import_safetensors(options).status().what(),
            options.manifest + ": found a directory, want a file");
}

TEST_F(ImportManifest, FileThatYieldsNoStepIsRefused) {
  EXPECT_EQ(refusal(R"({"operations": [{"operation": "topk", "inputs": {}, "outputs": {}}]})", {}),
            "x.safetensors: found no tensor of a step, want at least one");
}

/// What a file of a known producer is refused with.
class ImportProducer : public ::testing::Test {
protected:
  TempFolder folder_;

  Status import(const SafetensorsFile& file) {
    file.write(folder_ / "x.safetensors");
    ImportOptions options;
    options.input = folder_ / "x.safetensors";
    options.output = folder_ / "x.h5";
    return import_safetensors(options).status();
  }

  std::string refusal(const SafetensorsFile& file) {
    const Status status = import(file);
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "x.h5"));
    const std::string path = (folder_ / "x.safetensors") + ": ";
    EXPECT_EQ(status.what().find(path), 0u) << status.what();
    return status.what().substr(std::min(status.what().size(), path.size()));
  }
};

TEST_F(ImportProducer, DtypeOfAnotherSizeIsRefused) {
  SafetensorsFile file;
  file.metadata["op"] = "fp8_cast";
  file.add<float>("x", "F32", {2}, {1, 2});
  file.add<float>("fnuz_rne", "F32", {2}, {1, 2});
  EXPECT_EQ(refusal(file), "'fnuz_rne': found dtype float32, want float8_e4m3fnuz");
}

TEST_F(ImportProducer, NameThatNoReaderTakesIsRefused) {
  for (const std::string& name : {std::string("a/b"), std::string(".."), std::string(256, 'x'),
                                  std::string("a\0b", 3), std::string("a\nb")}) {
    SafetensorsFile file;
    file.metadata["op"] = "dcp_lse_merge";
    file.add<float>(name, "F32", {1}, {1});
    EXPECT_EQ(refusal(file).find("found object '/steps/0/layer/outputs/"), 0u);
  }
}

TEST_F(ImportProducer, OnlyLogitsWithAProducerAreVariants) {
  SafetensorsFile file;
  file.metadata = {{"op", "indexer_logits_prefill"},
                   {"fp8_encoding", "e4m3fn"},
                   {"accumulation", "logits_mine: fp32"}};
  file.add("q_fp8", "F8_E4M3", {1, 1, 128}, std::vector<std::uint8_t>(128));
  file.add("k_fp8", "F8_E4M3", {1, 128}, std::vector<std::uint8_t>(128));
  file.add<float>("k_scale", "F32", {1}, {1});
  file.add<float>("weights", "F32", {1, 1}, {1});
  file.add<std::int32_t>("cu_seqlen_ks", "I32", {1}, {0});
  file.add<std::int32_t>("cu_seqlen_ke", "I32", {1}, {1});
  file.add<float>("logits_mine", "F32", {1, 1}, {1});
  file.add<float>("logitsXmine", "F32", {1, 1}, {2});
  const Status status = import(file);
  ASSERT_TRUE(status) << status.what();
  auto reader = RecordingReader::open(folder_ / "x.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  const auto& outputs = reader->tensors({0, "index_logits_prefill"}, Side::outputs);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].name(), "logits.mine");
  const auto& rest = reader->tensors({0, "layer"}, Side::outputs);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].name(), "logitsXmine");
  EXPECT_EQ(rest[0].attributes.count("output"), 0u);
}

TEST_F(ImportManifest, SameInputGivesTheSameBytes) {
  ASSERT_TRUE(import(kManifest, full_contract()));
  const std::string first = read_file(output_);
  ASSERT_TRUE(import(kManifest, full_contract()));
  EXPECT_TRUE(read_file(output_) == first);
}

/// What two operations share is written twice: one of them alone may have been changed.
TEST_F(ImportManifest, AChangedLinkIsRefusedAndNotLost) {
  ASSERT_TRUE(import(kManifest, full_contract()));
  const std::string exported = folder_ / "e.safetensors";
  ASSERT_TRUE(export_safetensors(output_, exported));
  const auto header = SafetensorsReader::open(exported);
  ASSERT_TRUE(header);
  const std::string linked = "steps.0.index_logits_decode.inputs.index_cache";
  std::string bytes = read_file(exported);
  bytes[header->tensors().at(linked).offset + 5] ^= 1;
  write_file(exported, bytes);
  ImportOptions options;
  options.input = exported;
  options.output = folder_ / "again.h5";
  const Status status = import_safetensors(options).status();
  EXPECT_EQ(status.code(), Code::bad_input);
  EXPECT_NE(status.what().find("'" + linked + "': found same_as "), std::string::npos);
  EXPECT_NE(status.what().find("whose bytes differ from byte 5 on"), std::string::npos)
      << status.what();
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

/// Everything that export wrote about a recording may have been changed by hand.
TEST_F(ImportManifest, ChangedExportIsRefused) {
  ASSERT_TRUE(import(kManifest, full_contract()));
  const std::string exported = folder_ / "e.safetensors";
  ASSERT_TRUE(export_safetensors(output_, exported));
  const std::string good = read_file(exported);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_EQ(from.size(), to.size());
    std::string bytes = good;
    const auto at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_file(exported, bytes.replace(at, from.size(), to));
    ImportOptions options;
    options.input = exported;
    options.output = folder_ / "again.h5";
    const Status status = import_safetensors(options).status();
    EXPECT_TRUE(status || status.code() == Code::bad_input);
    return status.what().substr(std::min(status.what().size(), exported.size() + 2));
  };
  EXPECT_EQ(with("page_size", "page_size"), "");
  EXPECT_TRUE(read_file(folder_ / "again.h5") == read_file(output_));
  const std::string where = "metadata dsakit-recording: ";
  EXPECT_EQ(with(R"(\"contract\")", R"(\"kontract\")"),
            where + "found no object contract, want one");
  EXPECT_EQ(with(R"(\"object\":\"/steps/0/index_cache_write)",
                 R"(\"object\":\"/steps/0/index_cache_wrote)"),
            where + "'steps.0.index_cache_write.inputs.index_cache': found object "
                    "'/steps/0/index_cache_wrote/inputs/index_cache', want a free place");
  EXPECT_EQ(with(R"(\"dtype\":\"bfloat16\")", R"(\"dtype\":\"bfloat17\")"),
            where +
                "'steps.0.index_cache_write.inputs.index_k': found dtype 'bfloat17', want one of "
                "2 bytes");
  EXPECT_EQ(with(R"(\"same_as\":\"/steps/0/index_cache_write/outputs)",
                 R"(\"same_as\":\"/steps/9/index_cache_write/outputs)"),
            where + "'steps.0.index_logits_decode.inputs.index_cache': found same_as "
                    "'/steps/9/index_cache_write/outputs/index_cache', want an object that is "
                    "stored");
  EXPECT_EQ(with(R"(\"page_size\":\"2\")", R"(\"page_size\":\"9\")"),
            "/steps/0/index_cache_write/inputs/index_cache: found rows of 264 bytes, want at least "
            "1188 from byte 0 (page_size 9)");
}

} // namespace
} // namespace dsakit::testing
