// A small recording of the operations of decode context parallelism, made by the reference, to be
// changed and written.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {

namespace tiny_dcp_sizes {
inline constexpr std::int64_t kRanks = 2, kRows = 3, kK = 4, kHeads = 2, kDim = 5;
}

/// Scores of rank 1, candidates of two, the slots of rank 1, and two ranks' attention.
inline TinyRecording tiny_dcp() {
  using namespace tiny;
  using namespace tiny_dcp_sizes;
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  TinyRecording r;
  r.contract = {
      {"tie_rule", "smaller_index"}, {"topk_order", "rank"}, {"page_size", "2"}, {"dcp_world", "2"},
      {"dcp_interleave", "3"},       {"lse_base", "e"}};
  const auto ids = [](Shape shape, std::vector<std::int32_t> values) {
    values.resize(static_cast<std::size_t>(element_count(shape)));
    return tensor(Dtype::int32, std::move(shape), values);
  };
  auto& topk = r.operations["topk"];
  topk.inputs["logits"] =
      tensor(Dtype::float32, {kRows, 6},
             std::vector<float>{3, 1, 2, 5, 4, 9, 1, -0.0F, kNan, 0, 2, 7, 1, 2, 3, 4, 5, 6});
  topk.inputs["row_lens"] = ids({kRows}, {6, 5, 2});
  topk.outputs["topk_indices"] = ids({kRows, kK}, {});
  topk.outputs["topk_indices"].attributes["dcp_rank"] = "1";
  topk.outputs["dcp_scores"] = tensor<float>(Dtype::float32, {kRows, kK}, {});

  auto& merge = r.operations["dcp_topk_merge"];
  std::vector<float> scores;
  for (int i = 0; i < kRanks * kRows * kK; ++i)
    scores.push_back(static_cast<float>(i * 7 % 5));
  merge.inputs["rank_scores"] = tensor(Dtype::float32, {kRanks, kRows, kK}, scores);
  merge.inputs["rank_indices"] = ids({kRanks, kRows, kK}, {0, 1, 2, 6, 7, 0, -1, -1, 1, 2, 8, 6,
                                                           3, 4, 5, 9, 3, 4, -1, -1, 3, 4, 5, 9});
  merge.outputs["topk_indices"] = ids({kRows, kK}, {});

  auto& slots = r.operations["topk_slots"];
  slots.inputs["topk_indices"] = ids({kRows, kK}, {0, 3, 4, 9, 5, -1, 10, 11, 2, 1, 0, 6});
  slots.inputs["row_lens"] = ids({kRows}, {10, 12, 7});
  slots.inputs["block_table"] = ids({1, 3}, {4, 7, 1});
  slots.inputs["row_request"] = ids({kRows}, {});
  slots.outputs["slots"] = slots.outputs["compact_slots"] = ids({kRows, kK}, {});
  slots.outputs["slots"].attributes["dcp_rank"] = "1";
  slots.outputs["counts"] = ids({kRows}, {});

  auto& attention = r.operations["dcp_attention_merge"];
  std::vector<float> latents;
  for (int i = 0; i < kRanks * kRows * kHeads * kDim; ++i)
    latents.push_back(std::sin(static_cast<float>(i)));
  attention.inputs["rank_latent"] = tensor(Dtype::float32, {kRanks, kRows, kHeads, kDim}, latents);
  attention.inputs["rank_lse"] =
      tensor(Dtype::float32, {kRanks, kRows, kHeads},
             std::vector<float>{0, 1, -kInf, 2, 3, -1, 1, 0.5, 2, kNan, kInf, -3});
  attention.outputs["latent"] = tensor<std::uint16_t>(Dtype::bfloat16, {kRows, kHeads, kDim}, {});
  attention.outputs["lse"] = tensor<float>(Dtype::float32, {kRows, kHeads}, {});
  attention.outputs["corrected"] = attention.inputs["rank_latent"];
  for (auto& [name, output] : attention.outputs)
    output.attributes["accumulation"] = "exact";

  for (auto& [name, operation] : r.operations) {
    const auto expected =
        harness::find_adapter(name)->reference({{0, name}, r.contract, operation});
    EXPECT_TRUE(expected) << expected.status().what();
    for (const harness::Expected& output : *expected)
      operation.outputs.at(output.output).tensor = output.value.tensor;
  }
  return r;
}

} // namespace dsakit::testing
