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
  for (const auto& [operation, output] :
       {std::pair("topk", "topk_indices"), std::pair("topk_slots", "slots")})
    EXPECT_EQ(hint(recording, operation, output),
              "the recorded values from [0, 2] on stand where there is nothing left (-1): a stale "
              "tail");
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
