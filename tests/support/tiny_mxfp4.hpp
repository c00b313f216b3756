// A small recording of the MXFP4 indexer, made by the reference, to be changed and written.
#pragma once

#include <random>

#include "dsakit/harness/operations.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {

/// 5 rows of 3 heads quantised; 5 keys written into 2 pages of 64 tokens; 2 requests of 2 and 3
/// keys gathered and scored by 5 rows. Outputs are the reference's.
inline TinyRecording tiny_mxfp4(const char* layout = "flat", const char* hadamard = "none") {
  using namespace tiny;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto bf16 = [&](Shape shape) {
    const auto elements = element_count(shape);
    return tensor(Dtype::bfloat16, std::move(shape), draw<std::uint16_t>(elements, [&] {
                    return reference::float_to_bf16(normal(random));
                  }));
  };
  const auto to_fill = [](Dtype dtype, Shape shape) {
    return tensor<std::uint8_t>(dtype, std::move(shape), {});
  };
  constexpr Dtype kFp4 = Dtype::float4_e2m1fn_x2, kE8m0 = Dtype::float8_e8m0fnu;
  constexpr std::int64_t kBytes = 64 * 68;

  TinyRecording r;
  r.contract = {{"activation_dtype", "bf16"},
                {"hadamard", hadamard},
                {"index_page_layout", layout},
                {"page_size", "64"}};
  const auto fill = [&](const std::string& operation) {
    auto& recorded = r.operations.at(operation);
    const auto expected = harness::find_adapter(operation)->reference(
        {{0, operation}, r.contract, recorded, r.config});
    ASSERT_TRUE(expected) << expected.status().what();
    for (const harness::Expected& output : *expected)
      recorded.outputs.at(output.output).tensor = output.value.tensor;
  };

  auto& quant = r.operations["index_query_quant"];
  quant.inputs["index_q"] = bf16({5, 3, 128});
  quant.outputs["index_q_packed"] = to_fill(kFp4, {5, 3, 64});
  quant.outputs["index_q_scale"] = to_fill(kE8m0, {5, 3, 4});
  fill("index_query_quant");

  auto& write = r.operations["index_cache_write"];
  const std::vector<std::int64_t> slots = {66, 0, -1, 127, 2};
  const std::vector<std::int64_t> rest = {67, 1, 3, 126, 65}; // written before
  write.inputs["index_k"] = bf16({5, 128});
  write.inputs["slot_mapping"] = tensor(Dtype::int64, {5}, rest);
  write.inputs["index_cache"] = to_fill(Dtype::uint8, {2, kBytes});
  write.outputs["index_cache"] = to_fill(Dtype::uint8, {2, kBytes});
  fill("index_cache_write");
  write.inputs["index_cache"] = write.outputs["index_cache"];
  write.inputs["index_k"] = bf16({6, 128}); // one row past the slots
  write.inputs["slot_mapping"] = tensor(Dtype::int64, {5}, slots);
  fill("index_cache_write");

  auto& gather = r.operations["index_cache_gather"];
  gather.inputs["index_cache"] = write.outputs["index_cache"];
  gather.inputs["block_table"] =
      tensor(Dtype::int32, {2, 2}, std::vector<std::int32_t>{1, -1, 0, 1});
  gather.inputs["cu_seq_lens"] = tensor(Dtype::int32, {3}, std::vector<std::int32_t>{0, 2, 5});
  gather.outputs["k_packed"] = to_fill(kFp4, {5, 64});
  gather.outputs["k_scale"] = to_fill(kE8m0, {5, 4});
  fill("index_cache_gather");

  const auto score = [&](harness::RecordedOperation& operation, std::int64_t columns) {
    operation.inputs["index_q_packed"] = quant.outputs["index_q_packed"];
    operation.inputs["index_q_scale"] = quant.outputs["index_q_scale"];
    operation.inputs["index_weights"] = bf16({5, 3});
    operation.outputs["logits"] = to_fill(Dtype::float32, {5, columns});
    operation.outputs["logits"].attributes["accumulation"] = "fp32";
  };
  auto& prefill = r.operations["index_logits_prefill"];
  score(prefill, 5);
  prefill.inputs["k_packed"] = gather.outputs["k_packed"];
  prefill.inputs["k_scale"] = gather.outputs["k_scale"];
  prefill.inputs["ks"] = tensor(Dtype::int32, {5}, std::vector<std::int32_t>{0, 0, 2, 2, 2});
  prefill.inputs["ke"] = tensor(Dtype::int32, {5}, std::vector<std::int32_t>{1, 2, 3, 4, 5});
  fill("index_logits_prefill");

  auto& decode = r.operations["index_logits_decode"];
  score(decode, 4);
  decode.inputs["index_cache"] = write.outputs["index_cache"];
  decode.inputs["block_table"] =
      tensor(Dtype::int32, {2, 2}, std::vector<std::int32_t>{1, 0, 0, -1});
  decode.inputs["row_lens"] = tensor(Dtype::int32, {5}, std::vector<std::int32_t>{4, 1, 0, 2, 3});
  decode.inputs["row_request"] =
      tensor(Dtype::int32, {5}, std::vector<std::int32_t>{0, 1, 1, 0, 1});
  fill("index_logits_decode");
  return r;
}

} // namespace dsakit::testing
