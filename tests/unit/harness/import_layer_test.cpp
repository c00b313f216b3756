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
  static SafetensorsFile layer(std::vector<std::int32_t> query_lens = {2, 3}) {
    SafetensorsFile file;
    file.metadata = {{"kind", "prefill"},
                     {"softmax_scale", "0.5"},
                     {"config", R"({"fp8_encoding": "e4m3fn", "page_size": 4, "use_fp4": false,
                                    "output_gate": false, "q_lora_rank": null})"}};
    const auto requests = static_cast<std::int64_t>(query_lens.size());
    file.add<std::int32_t>("steps.0.query_lens", "I32", {requests}, query_lens);
    file.add<std::int32_t>("steps.0.seq_lens", "I32", {2}, {5, 4});
    file.add<std::int64_t>("steps.0.slot_mapping", "I64", {5}, {3, 4, 9, 10, 11});
    file.add("steps.0.index_k", "BF16", {5, 128}, std::vector<std::uint16_t>(5 * 128));
    const std::vector<std::uint8_t> cache(3 * 4 * 132);
    file.add("steps.0.index_cache_before", "U8", {3, 4 * 132}, cache);
    file.add("steps.0.index_cache_after", "U8", {3, 4 * 132}, cache);
    file.add("steps.0.index_logits", "F32", {5, 6}, std::vector<float>(30));
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
}

TEST_F(ImportLayer, LengthsThatDisagree) {
  EXPECT_EQ(refusal(layer({2, 2})),
            "steps.0.query_lens: found 4 tokens, want the 5 of slot_mapping");
  EXPECT_EQ(refusal(layer({6, -1})), "steps.0.query_lens: [0]: found 6, want 0 to 5");
  EXPECT_EQ(refusal(layer({5, 1, -1})),
            "steps.0.query_lens, seq_lens: found other forms, want int32 of one shape [requests]");
}

TEST_F(ImportLayer, ConfigThatIsWrong) {
  SafetensorsFile file = layer();
  file.metadata["config"] = "{";
  EXPECT_EQ(refusal(file), "metadata config: found no valid JSON, want some");
  file.metadata["config"] = R"({"fp8_encoding": "e4m3fn"})";
  EXPECT_EQ(refusal(file), "metadata config: found no page_size");
  file.metadata["config"] = R"({"fp8_encoding": "e5m2", "page_size": 4, "use_fp4": false,
                                "output_gate": false, "q_lora_rank": null})";
  EXPECT_EQ(refusal(file), "contract key index_fp8_encoding: found 'e5m2', want e4m3fn | e4m3fnuz");
  file.metadata["kind"] = "training";
  EXPECT_EQ(refusal(file), "found no metadata of a known producer (op = ''), want --manifest");
}

} // namespace
} // namespace dsakit::testing
