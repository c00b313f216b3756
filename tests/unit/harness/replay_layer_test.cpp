// Replay of the operations that tiny_layer() holds: what passes, what fails, and where.
#include <cmath>
#include <cstring>

#include "dsakit/harness/compare_recordings.hpp"
#include "dsakit/harness/operations.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_layer;
using testing::TinyRecording;

class ReplayLayer : public testing::ReplayTest {};

TEST_F(ReplayLayer, ASoundRecordingPassesOnEveryComparisonOfEveryOperation) {
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950}) {
    ReplayOptions options;
    options.host.arch = arch;
    const Report report = replay(tiny_layer(), options);
    EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
    EXPECT_EQ(report.lines.size(), 30u) << "3 comparisons of each of 10 outputs";
    EXPECT_EQ(report.summary().operations, 8);
    for (const ReportLine& line : report.lines)
      EXPECT_GT(line.elements, 0);
    EXPECT_TRUE(report.warnings.empty()) << "a built-in rule that nothing needed";
  }
}

TEST_F(ReplayLayer, AFlippedBitOfAnExactOutputFailsAtItsElement) {
  const TinyRecording sound = tiny_layer();
  for (const auto& [operation, output] :
       {std::pair("index_query_quant", "index_q_fp8"),
        std::pair("index_query_quant", "index_q_scale"),
        std::pair("index_weights_fold", "index_weights_folded"),
        std::pair("index_key_norm", "index_k"), std::pair("topk", "topk_indices"),
        std::pair("mla_cache_write", "mla_cache"), std::pair("topk_slots", "slots")}) {
    TinyRecording flipped = sound;
    Tensor& tensor = flipped.output(operation, output);
    const std::int64_t element = tensor.elements() / 2;
    tensor.bytes[static_cast<std::size_t>(element) * size_of(tensor.dtype)] ^= std::byte{1};
    const Report report = replay(flipped);
    const ReportLine* line = find(report, operation, output, "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::fail) << output;
    EXPECT_EQ(line->gate, "exact");
    EXPECT_EQ(line->mismatches, 1);
    EXPECT_EQ(line->first_at, coordinates(tensor.shape, element)) << output;
    EXPECT_EQ(find(report, operation, output, "kernel", "reference")->verdict, Verdict::pass);
  }
}

TEST_F(ReplayLayer, AnOutputBeyondItsBoundFails) {
  for (const auto& [operation, output] :
       {std::pair("index_logits_prefill", "logits"), std::pair("sparse_attention", "latent"),
        std::pair("sparse_attention", "lse")}) {
    TinyRecording recording = tiny_layer();
    const auto bound = find_adapter(operation)->bound({{0, operation},
                                                       [&] {
                                                         ContractValues contract =
                                                             recording.contract;
                                                         contract["mla_scale_read"] = "fp32";
                                                         return contract;
                                                       }(),
                                                       recording.operations.at(operation),
                                                       recording.config},
                                                      output, Accumulation::fp32);
    ASSERT_TRUE(bound) << bound.status().what();
    Tensor& tensor = recording.output(operation, output);
    const double moved = element(tensor, 0) + 3 * bound->at(0);
    if (tensor.dtype == Dtype::bfloat16)
      tensor.as<std::uint16_t>()[0] = reference::float_to_bf16(static_cast<float>(moved));
    else
      tensor.as<float>()[0] = static_cast<float>(moved);
    const Report report = replay(recording);
    const ReportLine* line = find(report, operation, output, "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::fail) << output;
    EXPECT_EQ(line->mismatches, 1);
    EXPECT_EQ(line->first_at, coordinates(tensor.shape, 0));
  }
}

TEST_F(ReplayLayer, NothingOutsideAWindowIsCompared) {
  TinyRecording recording = tiny_layer();
  Tensor& logits = recording.output("index_logits_prefill", "logits"); // 1, 2 and 3 of 4 columns
  for (const int beyond : {1, 3, 6, 11})
    logits.as<float>()[beyond] = std::nanf("");
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(find(report, "index_logits_prefill", "logits", "reference", "recorded")->elements, 6);
}

/// Row 1: 5 2 2 9 2 2, the best three are 9 (3), 5 (0) and any 2.
class ReplayTopkSet : public ReplayLayer {
protected:
  /// Verdict of another producer's row 1.
  Verdict with(std::vector<std::int32_t> row, std::int64_t r = 1) {
    TinyRecording recording = tiny_layer();
    std::erase_if(recording.operations, [](const auto& item) { return item.first != "topk"; });
    recording.contract["tie_rule"] = recording.contract["topk_order"] = "unspecified";
    auto& outputs = recording.operations.at("topk").outputs;
    outputs["topk_indices.other"] = outputs.extract("topk_indices").mapped();
    RecordedTensor& other = outputs.at("topk_indices.other");
    other.attributes["output"] = "topk_indices";
    std::copy(row.begin(), row.end(), other.tensor.as<std::int32_t>() + r * 3);
    const Report report = replay(recording);
    EXPECT_EQ(find(report, "topk", "topk_indices", "kernel", "reference")->gate, "exact");
    const ReportLine* line = find(report, "topk", "topk_indices.other", "reference", "recorded");
    EXPECT_EQ(line->gate, "topk_set");
    return line->verdict;
  }
};

TEST_F(ReplayTopkSet, AnyOrderAndAnyTie) {
  for (const auto& row : {std::vector{3, 0, 1}, std::vector{5, 0, 3}, std::vector{0, 4, 3}})
    EXPECT_EQ(with(row), Verdict::pass);
  EXPECT_EQ(with({1, 0, -1}, 0), Verdict::pass) << "a row of two";
}

TEST_F(ReplayTopkSet, WrongSets) {
  EXPECT_EQ(with({3, 0, 0}), Verdict::fail) << "twice";
  EXPECT_EQ(with({3, 0, -1}), Verdict::fail) << "too few";
  EXPECT_EQ(with({3, 1, 2}), Verdict::fail) << "5 is missing, two of its place tie";
  EXPECT_EQ(with({3, 0, 6}), Verdict::fail) << "outside the row";
  EXPECT_EQ(with({3, 0, -2}), Verdict::fail);
  EXPECT_EQ(with({3, 0, 1 << 30}), Verdict::fail);
  EXPECT_EQ(with({1, 3, 2}, 2), Verdict::fail) << "0 scores more than 1";
  EXPECT_EQ(with({1, 0, 2}, 0), Verdict::fail) << "beyond a row of two";
}

TEST_F(ReplayLayer, AProducerIsHeldToItsOwnReadingOfTheScales) {
  TinyRecording recording = tiny_layer();
  RecordedOperation& attention = recording.operations.at("sparse_attention");
  RecordedOperation other = attention;
  testing::tiny::attend(other, MlaScaleRead::bf16);
  for (const char* name : {"latent", "lse"}) {
    RecordedTensor& tensor = attention.outputs[std::string(name) + ".other"] =
        other.outputs.at(name);
    tensor.attributes = {{"output", name}, {"accumulation", "fp32"}, {"mla_scale_read", "bf16"}};
  }
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(report.files[0].contract.at("mla_scale_read:lse"), "fp32");
  EXPECT_EQ(report.files[0].contract.at("mla_scale_read:lse.other"), "bf16");

  ReplayOptions options;
  options.overrides = {*parse_override("mla_scale_read:lse.other=fp32")};
  const Report overridden = replay(recording, options);
  EXPECT_EQ(find(overridden, "sparse_attention", "lse.other", "reference", "recorded")->verdict,
            Verdict::fail);
  EXPECT_EQ(find(overridden, "sparse_attention", "lse", "reference", "recorded")->verdict,
            Verdict::pass);
  EXPECT_EQ(overridden.files[0].contract.at("mla_scale_read:lse.other"), "fp32");
  EXPECT_EQ(overridden.files[0].contract_recorded,
            (ContractValues{{"mla_scale_read:lse.other", "bf16"}}));
}

TEST_F(ReplayLayer, AnOverrideThatChangesNothingReplacesNothing) {
  ReplayOptions options;
  options.overrides = {*parse_override("accumulation=fp32"), *parse_override("page_size=2"),
                       *parse_override("mla_scale_read:latent=fp32")};
  const Report report = replay(tiny_layer(), options);
  EXPECT_EQ(report.verdict(), Verdict::pass);
  EXPECT_TRUE(report.files[0].contract_recorded.empty());
}

TEST_F(ReplayLayer, TheOtherRoundingOfAnRmsNormFails) {
  TinyRecording recording = tiny_layer();
  recording.contract["index_k_norm"] = "rmsnorm";
  testing::tiny::norm_keys(recording.operations.at("index_key_norm"), recording.contract);
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass);
  ReplayOptions options;
  options.overrides = {*parse_override("rmsnorm_rounding=one")};
  const Report report = replay(recording, options);
  EXPECT_EQ(find(report, "index_key_norm", "index_k", "reference", "recorded")->verdict,
            Verdict::fail);
}

/// Slots between pages need not be those of a page.
TEST_F(ReplayLayer, SlotsAreCountedByTheBlockStride) {
  TinyRecording recording = tiny_layer();
  RecordedTensor& slots = recording.operations.at("topk_slots").outputs.at("slots");
  slots.attributes["block_stride"] = "5";
  EXPECT_EQ(replay(recording).verdict(), Verdict::fail);
  auto* slot = slots.tensor.as<std::int32_t>();
  for (std::int64_t i = 0; i < slots.tensor.elements(); ++i)
    if (slot[i] >= 0) slot[i] = slot[i] / 2 * 5 + slot[i] % 2;
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
}

TEST_F(ReplayLayer, TwoRecordingsAreComparedUnderOneReadingOfTheScales) {
  const auto compared = [&](const TinyRecording& got, const TinyRecording& want) {
    got.write(path("got.h5"));
    want.write(path("want.h5"));
    Rules rules = Rules::built_in();
    CompareOptions options;
    options.got = path("got.h5");
    options.want = path("want.h5");
    return compare_recordings(options, rules);
  };
  const TinyRecording sound = tiny_layer();
  const auto same = compared(sound, sound);
  ASSERT_TRUE(same) << same.status().what();
  EXPECT_EQ(same->verdict(), Verdict::pass) << to_text(*same, {});
  EXPECT_EQ(same->lines.size(), 10u);

  TinyRecording moved = sound;
  moved.output("sparse_attention", "lse").as<float>()[3] += 1;
  const auto wrong = compared(moved, sound);
  ASSERT_TRUE(wrong) << wrong.status().what();
  EXPECT_EQ(find(*wrong, "sparse_attention", "lse", "recorded", "recorded")->mismatches, 1);

  TinyRecording read_otherwise = sound;
  read_otherwise.operations.at("sparse_attention").outputs.at("lse").attributes["mla_scale_read"] =
      "bf16";
  const auto refused = compared(read_otherwise, sound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status().what(), "/steps/0/sparse_attention/outputs/lse mla_scale_read: found "
                                     "bf16 and fp32, want the same");
}

/// One name in two operations, with two values: each says where it belongs.
TEST_F(ReplayLayer, KeysOfTensorsOfOneNameAreToldApart) {
  TinyRecording recording = tiny_layer();
  TinyRecording decode = testing::tiny_recording();
  decode.operations.at("index_logits_decode").outputs.at("logits").attributes["accumulation"] =
      "sm90_wgmma_fp8";
  recording.operations.merge(decode.operations);
  const ContractValues contract = replay(recording).files[0].contract;
  EXPECT_EQ(contract.count("accumulation:logits"), 0u);
  EXPECT_EQ(contract.at("steps/0/index_logits_prefill/accumulation:logits"), "fp32");
  EXPECT_EQ(contract.at("steps/0/index_logits_decode/accumulation:logits"), "sm90_wgmma_fp8");
  EXPECT_EQ(contract.at("accumulation:latent"), "fp32");
}

/// The gate of our kernel is derived; the recorded GPU tensors it nevertheless gives to the bit.
TEST_F(ReplayLayer, TheKeyNormKernelGivesTheBytesOfTheRecordedGpuKernels) {
  ReplayOptions options;
  options.paths = {std::string(DSAKIT_SOURCE) + "/golden/data/kernel_norms.h5"};
  const auto report = run(options);
  ASSERT_TRUE(report) << report.status().what();
  int compared = 0;
  for (const ReportLine& line : report->lines)
    if (line.subject == "kernel" &&
        (line.tensor == "index_k.cuda" || line.tensor == "index_k.aiter")) {
      EXPECT_EQ(line.worst_abs, 0.0) << line.tensor << " of step " << line.step;
      ++compared;
    }
  EXPECT_EQ(compared, 3);
}

} // namespace
} // namespace dsakit::harness
