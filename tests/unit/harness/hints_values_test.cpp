// Hints from what the wrong elements hold, each planted.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "hints_problem.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_layer;
using testing::TinyRecording;

class ValueHints : public testing::ReplayTest {};

TEST_F(ValueHints, S06_AScaleOneExponentOffInSomeGroups) {
  TinyRecording recording = tiny_layer();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  for (const int i : {0, 3, 4, 8})
    scale.as<float>()[i] *= 2;
  const std::string text = hint(recording, "index_query_quant", "index_q_scale");
  EXPECT_TRUE(says(text, "4 of 9 scales of the recorded values are one exponent from right, too "
                         "large: an exact power of two rounded up once more"))
      << text;
  EXPECT_FALSE(says(text, "encoding")) << text;
}

TEST_F(ValueHints, S06_AScaleThatWasChangedAfterItsCodes) {
  TinyRecording recording = tiny_layer();
  std::byte* scales = recording.output("mla_cache_write", "mla_cache").bytes.data() +
                      5 * reference::kMlaRecord + reference::kMlaLatent; // of slot 5, written
  for (int tile = 0; tile < 4; ++tile) {
    float scale = 0;
    std::memcpy(&scale, scales + 4 * tile, sizeof scale);
    scale *= 2;
    std::memcpy(scales + 4 * tile, &scale, sizeof scale);
  }
  const std::string text = hint(recording, "mla_cache_write", "mla_cache");
  EXPECT_TRUE(says(text, "4 of 32 scales of the recorded values are one exponent from right, too "
                         "large, and no code differs: changed after quantising?"))
      << text;
}

TEST_F(ValueHints, S06_AScaleThatIsRoundedDown) {
  TinyRecording recording = tiny_layer();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  for (const int i : {0, 3, 4, 8})
    scale.as<float>()[i] /= 2;
  std::string text = hint(recording, "index_query_quant", "index_q_scale");
  EXPECT_TRUE(says(text, "one exponent from right, too small: rounded down or to even, not up?"))
      << text;
  scale.as<float>()[0] *= 4;
  text = hint(recording, "index_query_quant", "index_q_scale");
  EXPECT_TRUE(says(text, "one exponent from right, some too large and some too small")) << text;
}

TEST_F(ValueHints, S08_AnAmaxOverPartOfTheGroup) {
  TinyRecording recording = tiny_layer();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  for (const int i : {0, 3, 4, 8})
    scale.as<float>()[i] *= i < 4 ? 0.25f : 0.125f;
  const std::string text = hint(recording, "index_query_quant", "index_q_scale");
  EXPECT_TRUE(says(text, "4 of 9 scales of the recorded values are too small")) << text;
}

TEST_F(ValueHints, ThreeScalesAreNotEnough) {
  TinyRecording recording = tiny_layer();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  for (const int i : {0, 3, 4})
    scale.as<float>()[i] *= 2;
  EXPECT_EQ(hint(recording, "index_query_quant", "index_q_scale"), "");
}

TEST_F(ValueHints, ScalesOfARecordOneUlpOff) {
  TinyRecording recording = testing::only("mla_cache_write");
  std::uint8_t* cache = recording.output("mla_cache_write", "mla_cache").as<std::uint8_t>();
  for (const int slot : {0, 5}) // those that are written
    for (int tile = 0; tile < 4; ++tile)
      ++cache[656 * slot + 512 + 4 * tile]; // the lowest byte
  const std::string text = hint(recording, "mla_cache_write", "mla_cache");
  EXPECT_TRUE(says(text, "scales of the recorded values are one ulp off")) << text;
}

TEST_F(ValueHints, S20_SlotZeroWherePaddingBelongs) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (int i = 0; i < 48; ++i)
    ids[i] = std::max(ids[i], 0);
  const std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "are 0 where -1 belongs")) << text;
}

// One is enough to say so, and not to call it the end of a longer row.
TEST_F(ValueHints, S20_OneSlotZeroWherePaddingBelongs) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  ASSERT_EQ(ids[4 * 9 + 1], -1);
  ids[4 * 9 + 1] = 0;
  EXPECT_TRUE(says(hint(recording, "topk", "topk_indices"), "are 0 where -1 belongs"));
  ids[4 * 9 + 1] = 5;
  EXPECT_TRUE(says(hint(recording, "topk", "topk_indices"), "(-1): a stale tail"));
}

// What a row of few candidates is filled up with ranks where its bits say, before the right ones.
TEST_F(ValueHints, S40_AStaleTailThatIsSortedIn) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {3, 5, 9}) { // of 3, 2 and 1 keys
    std::copy_backward(ids + 4 * row, ids + 4 * row + 3, ids + 4 * row + 4);
    ids[4 * row] = 7;
  }
  std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "hold the right ids and others in the places of -1: a stale tail"))
      << text;
  ids[4 * 3 + 1] = 6; // one of the right ids is lost
  text = hint(recording, "topk", "topk_indices");
  EXPECT_FALSE(says(text, "stale tail")) << text;
}

TEST_F(ValueHints, PaddingWhereAnIdBelongs) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {0, 2, 4, 6})
    ids[4 * row + 3] = -1;
  const std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "are -1 where an id belongs")) << text;
}

TEST_F(ValueHints, S44_AnotherOrderOrAnotherRuleForTies) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {0, 2, 4})
    std::swap(ids[4 * row + 1], ids[4 * row + 2]);
  EXPECT_TRUE(says(hint(recording, "topk", "topk_indices"), "the right ids in another order"));

  recording = testing::topk_recording();
  auto* scores = recording.input("topk", "logits").as<float>();
  for (int i = 0; i < 96; ++i)
    scores[i] = static_cast<float>(i % 8 < 3 ? 5 - i % 8 : 1); // ties behind the best three
  testing::compute(recording, "topk");
  ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {0, 2, 4, 10})
    ids[4 * row + 3] = 4; // of the last one taken, its neighbour
  EXPECT_TRUE(says(hint(recording, "topk", "topk_indices"), "another rule for ties"));
}

TEST_F(ValueHints, OneRowInAnotherOrderIsEnough) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  std::rotate(ids + 8, ids + 9, ids + 12);
  EXPECT_TRUE(says(hint(recording, "topk", "topk_indices"), "the right ids in another order"));
}

TEST_F(ValueHints, S23_PaddingThatCountsAsACandidate) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  std::copy_backward(ids + 8, ids + 11, ids + 12);
  ids[8] = -1;
  const std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "in row 2 of the recorded values -1 stands before ids")) << text;
}

TEST_F(ValueHints, S08_TwoConversionsIntoOneHalfOfAWord) {
  TinyRecording recording = testing::only("mla_cache_write");
  std::uint8_t* cache = recording.output("mla_cache_write", "mla_cache").as<std::uint8_t>();
  for (const int slot : {0, 5}) // those that are written
    for (int at = 656 * slot; at < 656 * slot + 512; at += 4) {
      cache[at] = cache[at + 2];
      cache[at + 1] = cache[at + 3];
      cache[at + 2] = cache[at + 3] = 0;
    }
  const std::string text = hint(recording, "mla_cache_write", "mla_cache");
  EXPECT_TRUE(says(text, "two conversions into the same half of a word")) << text;
}

// An encoding is that of every row.
TEST_F(ValueHints, AFactorOfSomeRowsIsNoEncoding) {
  for (const int rows : {2, 5}) {
    TinyRecording recording = testing::logits_recording();
    Tensor& logits = recording.output("index_logits_prefill", "logits");
    for (std::int64_t i = 0; i < 40 * rows; ++i)
      logits.as<float>()[i] *= 0.5f;
    const std::string text = hint(recording, "index_logits_prefill", "logits");
    EXPECT_TRUE(says(text, "0.5 times what they should be")) << text;
    EXPECT_EQ(says(text, "index_fp8_encoding"), rows == 5) << text;
    EXPECT_EQ(says(text, "in some rows alone"), rows == 2) << text;
  }
}

TEST_F(ValueHints, S30_ValuesRoundedToBf16) {
  TinyRecording recording = tiny_layer();
  Tensor& folded = recording.output("index_weights_fold", "index_weights_folded");
  for (std::int64_t i = 0; i < folded.elements(); ++i)
    folded.as<float>()[i] =
        reference::bf16_to_float(reference::float_to_bf16(folded.as<float>()[i]));
  const std::string text = hint(recording, "index_weights_fold", "index_weights_folded");
  EXPECT_TRUE(says(text, "are the right ones rounded to bf16")) << text;
}

TEST_F(ValueHints, AFactorOfEachKeyOrOfEachRow) {
  for (const bool of_key : {true, false}) {
    TinyRecording recording = testing::logits_recording();
    Tensor& logits = recording.output("index_logits_prefill", "logits");
    for (std::int64_t i = 0; i < logits.elements(); ++i)
      logits.as<float>()[i] *= 1 + 0.1f * static_cast<float>(of_key ? i % 40 : i / 40);
    const std::string text = hint(recording, "index_logits_prefill", "logits");
    EXPECT_TRUE(says(text, of_key ? "each column of" : "each row of")) << text;
  }
}

TEST_F(ValueHints, AScaleThatIsLeftOutOrAppliedTwice) {
  for (const float factor : {4.0f, std::sqrt(128.0f), 1 / std::sqrt(128.0f)}) {
    TinyRecording recording = testing::logits_recording();
    recording.contract["index_fp8_encoding"] = "e4m3fn";
    Tensor& logits = recording.output("index_logits_prefill", "logits");
    for (std::int64_t i = 0; i < logits.elements(); ++i)
      logits.as<float>()[i] *= factor;
    const std::string text = hint(recording, "index_logits_prefill", "logits");
    // 16^0.5 is a factor of an encoding as well.
    EXPECT_TRUE(says(text, factor == 4  ? "4 times what they should be"
                           : factor > 1 ? "without the scale 128^-0.5"
                                        : "scaled twice by 128^-0.5"))
        << text;
  }
}

TEST_F(ValueHints, S49_NaNOfAnEmptyPart) {
  TinyRecording recording = testing::attention_recording();
  Tensor& lse = recording.output("sparse_attention", "lse");
  for (int i = 32; i < 48; ++i) // the two rows with invalid slots
    lse.as<float>()[i] = NAN;
  const std::string text = hint(recording, "sparse_attention", "lse");
  EXPECT_TRUE(says(text, "are NaN: -inf less -inf")) << text;
}

TEST_F(ValueHints, TwoPatternsThatFitAreBothNamed) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {0, 2, 4, 6, 8, 10})
    ids[4 * row + 3] = -1;
  const std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "are -1 where an id belongs: padding counts, or ids are lost; or: only "
                         "rows of more than k keys"))
      << text;
}

} // namespace
} // namespace dsakit::harness
