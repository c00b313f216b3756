// Hints from places (S64: a region is wrong), each planted, and patterns that fit by chance and
// must not be named.
#include <algorithm>
#include <cstring>

#include "hints_problem.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_dense.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;

class PlaceHints : public testing::ReplayTest {};

/// Row r of a 2-d tensor takes the row that `from` says.
template <class From>
void move_rows(Tensor& tensor, From from) {
  const std::vector<std::byte> before = tensor.bytes;
  const std::size_t bytes = before.size() / static_cast<std::size_t>(tensor.shape[0]);
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row)
    std::memcpy(tensor.bytes.data() + static_cast<std::size_t>(row) * bytes,
                before.data() + static_cast<std::size_t>(from(row)) * bytes, bytes);
}

TEST_F(PlaceHints, AShiftByARow) {
  TinyRecording recording = testing::tiny_recording();
  move_rows(recording.output("index_cache_gather", "k_fp8"),
            [](std::int64_t row) { return std::min<std::int64_t>(row + 1, 4); });
  const std::string text = hint(recording, "index_cache_gather", "k_fp8");
  EXPECT_TRUE(says(text, "are those 1 further on along axis 0 (rows): shifted")) << text;
}

TEST_F(PlaceHints, AShiftByAPage) {
  TinyRecording recording = testing::tiny_recording();
  // Pages of two tokens; the cache's page p holds what belongs to page p - 1.
  Tensor& cache = recording.output("index_cache_write", "index_cache");
  move_rows(cache, [](std::int64_t page) { return std::max<std::int64_t>(page - 1, 0); });
  const std::string text = hint(recording, "index_cache_write", "index_cache");
  EXPECT_TRUE(says(text, "are those 1 before along axis 0 (pages): shifted")) << text;
}

TEST_F(PlaceHints, AShiftOfAFewElementsOrOfConstantDataIsNotNamed) {
  TinyRecording recording = testing::tiny_recording();
  Tensor& k_fp8 = recording.output("index_cache_gather", "k_fp8");
  for (int i = 0; i < 7; ++i) // one fewer than is enough
    k_fp8.as<std::uint8_t>()[i] = k_fp8.as<std::uint8_t>()[i + 128];
  EXPECT_FALSE(says(hint(recording, "index_cache_gather", "k_fp8"), "shifted"));
  // Two values in turn: every shift by an odd number of rows fits.
  recording = testing::tiny_recording();
  Tensor& cache = recording.operations.at("index_cache_gather").inputs.at("index_cache").tensor;
  for (std::int64_t page = 0; page < 4; ++page)
    for (std::int64_t i = 0; i < 256; ++i)
      cache.as<std::uint8_t>()[page * 264 + i] = i < 128 ? 0x38 : 0x40;
  testing::compute(recording, "index_cache_gather");
  Tensor& rows = recording.output("index_cache_gather", "k_fp8");
  for (std::int64_t i = 0; i < rows.elements(); ++i)
    rows.as<std::uint8_t>()[i] ^= 0x78; // 0x38 and 0x40 exchanged
  EXPECT_FALSE(says(hint(recording, "index_cache_gather", "k_fp8"), "shifted"));
  // Of six rows every one holds what belongs in its neighbour.
  auto& gather = recording.operations.at("index_cache_gather");
  gather.inputs.at("cu_seq_lens").tensor.as<std::int32_t>()[2] = 6;
  rows = Tensor(rows.dtype, {6, 128});
  gather.outputs.at("k_scale").tensor = Tensor(Dtype::float32, {6});
  testing::compute(recording, "index_cache_gather");
  for (std::int64_t i = 0; i < rows.elements(); ++i)
    rows.as<std::uint8_t>()[i] ^= 0x78;
  const std::string text = hint(recording, "index_cache_gather", "k_fp8");
  EXPECT_FALSE(says(text, "shifted") || says(text, "in another order")) << text;
}

TEST_F(PlaceHints, S28_HalfSplitWhereInterleavedBelongs) {
  TinyRecording recording = testing::only("index_key_norm");
  Tensor& keys = recording.output("index_key_norm", "index_k");
  const Tensor right = keys;
  for (std::int64_t i = 0; i < keys.elements(); ++i) {
    const std::int64_t row = i / 128 * 128, d = i % 128;
    keys.as<std::uint16_t>()[i] =
        right.as<std::uint16_t>()[row + (d < 64 ? 2 * d : 2 * (d - 64) + 1)];
  }
  const std::string text = hint(recording, "index_key_norm", "index_k");
  EXPECT_TRUE(says(text, "half-split against interleaved")) << text;
}

TEST_F(PlaceHints, S28_HalfSplitOfTheUnrotatedPartOfARecord) {
  TinyRecording recording = testing::only("mla_cache_write");
  std::uint8_t* record =
      recording.output("mla_cache_write", "mla_cache").as<std::uint8_t>() + 5 * 656 + 528;
  const std::vector<std::uint8_t> right(record, record + 128);
  for (int d = 0; d < 64; ++d)
    std::memcpy(record + 2 * d, right.data() + 2 * (d / 2 + d % 2 * 32), 2);
  const std::string text = hint(recording, "mla_cache_write", "mla_cache");
  EXPECT_TRUE(says(text, "half-split against interleaved")) << text;
}

TEST_F(PlaceHints, GroupsInReverseOrderAndNeighboursExchanged) {
  TinyRecording recording = testing::tiny_recording();
  Tensor& codes = recording.output("index_cache_gather", "k_fp8");
  const Tensor right = codes;
  for (std::int64_t i = 0; i < codes.elements(); ++i)
    codes.as<std::uint8_t>()[i] = right.as<std::uint8_t>()[i ^ 4];
  std::string text = hint(recording, "index_cache_gather", "k_fp8");
  EXPECT_TRUE(says(text, "neighbours 4 apart exchanged")) << text;
  for (std::int64_t i = 0; i < codes.elements(); ++i)
    codes.as<std::uint8_t>()[i] = right.as<std::uint8_t>()[i / 8 * 8 + 7 - i % 8];
  text = hint(recording, "index_cache_gather", "k_fp8");
  EXPECT_TRUE(says(text, "each 8 in reverse order")) << text;
}

TEST_F(PlaceHints, TheFirstOutputsOfAProjectionOverAndOver) {
  TinyRecording recording = testing::tiny_dense();
  std::erase_if(recording.operations,
                [](const auto& item) { return item.first != "index_q_proj"; });
  Tensor& out = recording.output("index_q_proj", "index_q");
  const std::int64_t row = out.shape[1] * out.shape[2];
  for (std::int64_t i = 0; i < out.elements(); ++i)
    out.as<std::uint16_t>()[i] = out.as<std::uint16_t>()[i / row * row + i % row % 64];
  const std::string text = hint(recording, "index_q_proj", "index_q");
  EXPECT_NE(text.find("axis 1 (heads) and axis 2 as one: the first 64 over and over"),
            std::string::npos)
      << text;
}

TEST_F(PlaceHints, OneGroupOfHeads) {
  TinyRecording recording = testing::attention_recording();
  Tensor& lse = recording.output("sparse_attention", "lse");
  for (int token = 0; token < 6; ++token)
    for (const int head : {2, 3})
      lse.as<float>()[8 * token + head] += static_cast<float>(1 + token + 5 * head);
  const std::string text = hint(recording, "sparse_attention", "lse");
  EXPECT_TRUE(says(text, "only heads 2 to 3 of 8 are wrong")) << text;
}

TEST_F(PlaceHints, HeadsThatMayBeTogetherByChanceAreNotNamed) {
  // Three places in two neighbours of eight: 3 / 4^2 = 19 % of all draws.
  TinyRecording recording = testing::attention_recording();
  float* lse = recording.output("sparse_attention", "lse").as<float>();
  lse[2] += 3, lse[8 + 3] += 4, lse[16 + 2] += 7;
  EXPECT_EQ(hint(recording, "sparse_attention", "lse"), "");
}

TEST_F(PlaceHints, S33_OnlyRowsOfMoreThanKKeys) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  for (const int row : {0, 2, 4, 6, 8, 10}) // the last of each is one that was not selected
    for (std::int32_t id = 0; id < 5; ++id)
      if (std::find(ids + 4 * row, ids + 4 * row + 4, id) == ids + 4 * row + 4) {
        ids[4 * row + 3] = id;
        break;
      }
  const std::string text = hint(recording, "topk", "topk_indices");
  EXPECT_TRUE(says(text, "only rows of more than k keys are wrong")) << text;
}

TEST_F(PlaceHints, TwoRowsOfMoreThanKKeysAreNoPattern) {
  TinyRecording recording = testing::topk_recording();
  auto* ids = recording.output("topk", "topk_indices").as<std::int32_t>();
  std::swap(ids[0], ids[1]);
  ids[4 * 2] = ids[4 * 2 + 1]; // 6/12 * 5/11 = 23 % of all draws of two rows
  EXPECT_EQ(hint(recording, "topk", "topk_indices"), "");
}

TEST_F(PlaceHints, S10_TheSeamOfPages) {
  TinyRecording recording = testing::only("topk_slots");
  RecordedOperation& slots = recording.operations.at("topk_slots");
  // 4 positions in each of 4 pages of two tokens, for two requests.
  slots.inputs["topk_indices"] = testing::tiny::tensor(
      Dtype::int32, {2, 8},
      std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0});
  slots.inputs["row_request"] =
      testing::tiny::tensor(Dtype::int32, {2}, std::vector<std::int32_t>{0, 1});
  slots.inputs["row_lens"] =
      testing::tiny::tensor(Dtype::int32, {2}, std::vector<std::int32_t>{8, 8});
  slots.inputs["block_table"] = testing::tiny::tensor(
      Dtype::int32, {2, 4}, std::vector<std::int32_t>{1, 3, 0, 2, 2, 0, 3, 1});
  slots.outputs["slots"].tensor = Tensor(Dtype::int32, {2, 8});
  testing::compute(recording, "topk_slots");
  recording.operations.at("topk_slots").outputs.erase("compact_slots");
  recording.operations.at("topk_slots").outputs.erase("counts");
  auto* ids = recording.output("topk_slots", "slots").as<std::int32_t>();
  for (const int at : {1, 3, 5, 7, 8, 10, 12, 14}) // odd positions
    ids[at] = (ids[at] + 1 + at % 3 * 2) % 8;
  const std::string text = hint(recording, "topk_slots", "slots");
  EXPECT_TRUE(says(text, "only token 1 of pages of 2 is wrong")) << text;
}

// Lost ids, of one token of each page, in rows that use all places: the first two are named.
TEST_F(PlaceHints, OfThreePatternsTwoAreNamed) {
  constexpr std::int64_t kRows = 12, kPlaces = 4;
  TinyRecording recording = testing::only("topk_slots");
  RecordedOperation& slots = recording.operations.at("topk_slots");
  std::vector<std::int32_t> positions;
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kPlaces; ++i)
      positions.push_back(row % 2 == 0 ? row % 4 * 2 + i : i == 0 ? row % 8 : -1);
  const auto int32s = [](Shape shape, const std::vector<std::int32_t>& values) {
    return testing::tiny::tensor(Dtype::int32, std::move(shape), values);
  };
  slots.inputs["topk_indices"] = int32s({kRows, kPlaces}, positions);
  slots.inputs["row_request"] = int32s({kRows}, std::vector<std::int32_t>(kRows, 0));
  slots.inputs["row_lens"] = int32s({kRows}, std::vector<std::int32_t>(kRows, 8));
  slots.inputs["block_table"] = int32s({1, 4}, {1, 3, 0, 2});
  slots.outputs["slots"].tensor = Tensor(Dtype::int32, {kRows, kPlaces});
  testing::compute(recording, "topk_slots");
  slots.outputs.erase("compact_slots");
  slots.outputs.erase("counts");
  auto* ids = recording.output("topk_slots", "slots").as<std::int32_t>();
  for (std::size_t i = 0; i < positions.size(); ++i)
    if (i / kPlaces % 2 == 0 && positions[i] % 2 == 1) ids[i] = -1;
  EXPECT_EQ(hint(recording, "topk_slots", "slots"),
            "the recorded values are -1 where an id belongs: padding counts, or ids are lost; or: "
            "only token 1 of pages of 2 is wrong: a seam of pages");
}

} // namespace
} // namespace dsakit::harness
