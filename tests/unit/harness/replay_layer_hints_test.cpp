// The hints about attention, norms and selections, each planted.
#include <cmath>
#include <numbers>

#include "dsakit/harness/replay.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_layer;
using testing::TinyRecording;

class ReplayLayerHints : public testing::ReplayTest {};

constexpr const char* kRight = "the recorded values are right under ";

TEST_F(ReplayLayerHints, TheOtherReadingOfTheScales) {
  TinyRecording recording = tiny_layer();
  testing::tiny::attend(recording.operations.at("sparse_attention"), MlaScaleRead::bf16);
  EXPECT_EQ(hint(recording, "sparse_attention", "lse"),
            std::string(kRight) + "mla_scale_read=bf16: the contract field is mla_scale_read");
}

/// Kernels add in fp32 as production kernels do; the reference does not overflow.
TEST_F(ReplayLayerHints, TermsBeyondFp32AreToldPlainly) {
  TinyRecording attention = tiny_layer();
  Tensor& query = attention.input("sparse_attention", "mla_query");
  for (std::int64_t i = 0; i < query.elements(); ++i)
    query.as<std::uint16_t>()[i] = i % 3 ? 0x7F7F : 0xFF7F; // the largest bf16 of both signs
  TinyRecording logits = testing::tiny_recording();
  Tensor& weights = logits.input("index_logits_decode", "index_weights_folded");
  for (std::int64_t i = 0; i < weights.elements(); ++i)
    weights.as<float>()[i] = i % 2 ? 3e38f : -3e38f;
  for (const auto& [recording, operation, tensor] :
       {std::tuple(&attention, "sparse_attention", "latent"),
        {&attention, "sparse_attention", "lse"},
        {&logits, "index_logits_decode", "logits"}}) {
    const Report report = replay(*recording);
    const ReportLine* line = find(report, operation, tensor, "kernel", "reference");
    EXPECT_EQ(line->verdict, Verdict::fail) << tensor;
    EXPECT_EQ(line->hint,
              "the kernel's values are not finite where terms are so large that a sum in fp32 "
              "leaves its range, 3.4e38; exact sums do not (docs/comparison.md, Beyond fp32)")
        << tensor;
  }
}

TEST_F(ReplayLayerHints, AnAttentionInFp32IsNoExactOne) {
  TinyRecording recording = tiny_layer();
  for (const char* output : {"latent", "lse"})
    recording.operations.at("sparse_attention").outputs.at(output).attributes["accumulation"] =
        "exact";
  EXPECT_EQ(hint(recording, "sparse_attention", "latent"),
            "passes with accumulation=fp32: the contract field accumulation may be wrong for this "
            "producer");
}

TEST_F(ReplayLayerHints, TheOtherBaseOfTheLogarithm) {
  TinyRecording recording = tiny_layer();
  testing::tiny::attend(recording.operations.at("sparse_attention"), MlaScaleRead::fp32,
                        LseBase::two);
  EXPECT_EQ(hint(recording, "sparse_attention", "lse"),
            std::string(kRight) + "lse_base=2: the contract field is lse_base");
  // Off by more than any bound as well: only the ratio tells.
  Tensor& lse = recording.output("sparse_attention", "lse");
  for (std::int64_t i = 0; i < lse.elements(); ++i)
    lse.as<float>()[i] *= 1.0005f;
  EXPECT_EQ(hint(recording, "sparse_attention", "lse"),
            "the recorded values are logarithms to base 2, not e? The contract field is lse_base");
}

TEST_F(ReplayLayerHints, TheOtherEncodingOfTheMlaCache) {
  TinyRecording recording = tiny_layer();
  recording.contract["mla_fp8_encoding"] = "e4m3fnuz"; // the bytes are e4m3fn
  recording.operations.erase("index_query_quant");     // it shares qmax
  recording.contract["qmax"] = "224";
  EXPECT_EQ(hint(recording, "mla_cache_write", "mla_cache"),
            std::string(kRight) +
                "mla_fp8_encoding=e4m3fn: the contract field is mla_fp8_encoding");
  EXPECT_EQ(hint(recording, "sparse_attention", "latent"),
            std::string(kRight) +
                "mla_fp8_encoding=e4m3fn: the contract field is mla_fp8_encoding");
}

TEST_F(ReplayLayerHints, TheOtherRoundingOfANorm) {
  TinyRecording recording = tiny_layer();
  recording.contract["index_k_norm"] = "rmsnorm";
  testing::tiny::norm_keys(recording.operations.at("index_key_norm"), recording.contract);
  recording.contract["rmsnorm_rounding"] = "one";
  EXPECT_EQ(hint(recording, "index_key_norm", "index_k"),
            std::string(kRight) + "rmsnorm_rounding=two: the contract field is rmsnorm_rounding");
}

TEST_F(ReplayLayerHints, IdsWherePaddingBelongs) {
  TinyRecording recording = tiny_layer();
  recording.output("topk", "topk_indices").as<std::int32_t>()[2] = 4; // a row of two
  recording.output("topk_slots", "slots").as<std::int32_t>()[2] = 0;
  EXPECT_EQ(hint(recording, "topk", "topk_indices"),
            "the recorded values from [0, 2] on stand where there is nothing left (-1): a stale "
            "tail");
  EXPECT_EQ(hint(recording, "topk_slots", "slots"),
            "the recorded values are 0 where -1 belongs: token 0 is read in place of nothing");
}

TEST_F(ReplayLayerHints, APatternThatFitsNothingIsNotNamed) {
  TinyRecording recording = tiny_layer();
  recording.output("sparse_attention", "lse").as<float>()[0] += 3;
  EXPECT_EQ(hint(recording, "sparse_attention", "lse"), "");
  recording.output("topk", "topk_indices").as<std::int32_t>()[4] = 2;
  EXPECT_EQ(hint(recording, "topk", "topk_indices"), "");
}

} // namespace
} // namespace dsakit::harness
