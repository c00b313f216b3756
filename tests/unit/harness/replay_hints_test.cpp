// Each hint, planted: a recording that is wrong in the way that the hint names.
#include <cmath>
#include <cstring>

#include "dsakit/harness/replay.hpp"
#include "replay/hints.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

using testing::ReplayTest;
using testing::tiny_recording;
using testing::TinyRecording;

class ReplayHints : public ReplayTest {};

TEST_F(ReplayHints, ALooserAccumulationThatPassesIsNamed) {
  TinyRecording recording = tiny_recording();
  Tensor& logits = recording.output("index_logits_decode", "logits");
  for (std::int64_t i = 0; i < logits.elements(); ++i)
    logits.as<float>()[i] *= 1 + 0x1p-14f;
  const std::string text = hint(recording, "index_logits_decode", "logits");
  EXPECT_TRUE(says(text, "accumulation=sm90_wgmma_fp8")) << text;
}

TEST_F(ReplayHints, AnAccumulationThatPassesNowhereIsNotNamed) {
  TinyRecording recording = tiny_recording();
  recording.output("index_logits_decode", "logits").as<float>()[0] += 100;
  EXPECT_EQ(hint(recording, "index_logits_decode", "logits"), "");
}

/// The recording's contract says `encoding`; the bytes are of the other one.
TinyRecording mislabelled(Fp8Encoding written, const char* encoding, const char* qmax) {
  TinyRecording recording = tiny_recording(written);
  recording.contract["index_fp8_encoding"] = encoding;
  recording.contract["qmax"] = qmax;
  const Dtype dtype = *parse_dtype(std::string("float8_") + encoding);
  recording.input("index_logits_decode", "index_q_fp8").dtype = dtype;
  recording.output("index_cache_gather", "k_fp8").dtype = dtype;
  return recording;
}

TEST_F(ReplayHints, TheOtherEncodingIsNamedForLogits) {
  for (const TinyRecording& recording : {mislabelled(Fp8Encoding::e4m3fn, "e4m3fnuz", "224"),
                                         mislabelled(Fp8Encoding::e4m3fnuz, "e4m3fn", "448")}) {
    const std::string text = hint(recording, "index_logits_decode", "logits");
    EXPECT_TRUE(says(text, "index_fp8_encoding")) << text;
  }
}

TEST_F(ReplayHints, TheOtherEncodingIsNamedForTheCacheThatWasWritten) {
  const std::string text =
      hint(mislabelled(Fp8Encoding::e4m3fn, "e4m3fnuz", "224"), "index_cache_write", "index_cache");
  EXPECT_TRUE(says(text, "index_fp8_encoding=e4m3fn")) << text;
}

TEST_F(ReplayHints, AConstantFactorIsNamedAsAnEncodingSlip) {
  for (const float factor : {0.25f, 0.5f, 2.0f, 4.0f}) {
    TinyRecording recording = tiny_recording();
    Tensor& logits = recording.output("index_logits_decode", "logits");
    for (std::int64_t i = 0; i < logits.elements(); ++i)
      logits.as<float>()[i] *= factor;
    Tensor& scale = recording.output("index_cache_gather", "k_scale");
    for (std::int64_t i = 0; i < scale.elements(); ++i)
      scale.as<float>()[i] *= factor;
    // The other encoding itself may fit logits; of scales only the ratio tells.
    EXPECT_TRUE(says(hint(recording, "index_logits_decode", "logits"), "index_fp8_encoding"));
    const std::string text = hint(recording, "index_cache_gather", "k_scale");
    EXPECT_TRUE(says(text, factor < 1 ? "e4m3fn read as e4m3fnuz" : "e4m3fnuz read as e4m3fn"))
        << text;
  }
}

TEST_F(ReplayHints, AFactorOfThreeIsNoEncodingSlip) {
  TinyRecording recording = tiny_recording();
  Tensor& scale = recording.output("index_cache_gather", "k_scale");
  for (std::int64_t i = 0; i < scale.elements(); ++i)
    scale.as<float>()[i] *= 3;
  EXPECT_EQ(hint(recording, "index_cache_gather", "k_scale"), "");
}

TEST_F(ReplayHints, TheOtherPageLayoutIsNamedForEveryOperation) {
  // 32 tokens in 2 pages of 16, written as 16 x 16 tiles and described as flat.
  TinyRecording recording = tiny_recording();
  constexpr std::int64_t kPages = 2;
  constexpr std::int64_t kBytes = 16 * 132;
  recording.contract["page_size"] = "16";
  recording.contract["index_page_layout"] = "mfma_preshuffle";
  const IndexKeyQuant quant = *parse_index_key_quant(recording.contract);
  const std::vector<std::uint16_t> keys(
      recording.input("index_cache_write", "index_k").as<std::uint16_t>(),
      recording.input("index_cache_write", "index_k").as<std::uint16_t>() + 6 * 128);
  std::vector<std::uint16_t> index_k;
  std::vector<std::int64_t> slots;
  for (std::int64_t t = 0; t < 32; ++t) {
    index_k.insert(index_k.end(), keys.begin() + t % 6 * 128, keys.begin() + (t % 6 + 1) * 128);
    slots.push_back(t);
  }
  std::vector<std::uint8_t> cache(kPages * kBytes);
  ASSERT_TRUE(reference::index_cache_write(quant, index_k.data(), 32, slots,
                                           {cache.data(), kPages, kBytes}));
  using testing::tiny::tensor;
  const auto pages = tensor(Dtype::uint8, {kPages, kBytes}, cache);
  auto& write = recording.operations["index_cache_write"];
  write.inputs["index_k"] = tensor(Dtype::bfloat16, {32, 128}, index_k);
  write.inputs["slot_mapping"] = tensor(Dtype::int64, {32}, slots);
  write.inputs["index_cache"] =
      tensor(Dtype::uint8, {kPages, kBytes}, std::vector<std::uint8_t>(kPages * kBytes, 0xA5));
  write.outputs["index_cache"] = pages;
  auto& gather = recording.operations["index_cache_gather"];
  gather.inputs["index_cache"] = pages;
  gather.inputs["block_table"] = tensor<std::int32_t>(Dtype::int32, {2, 1}, {1, 0});
  std::vector<std::uint8_t> k_fp8(5 * 128);
  std::vector<float> k_scale(5);
  const std::vector<std::int32_t> gather_table = {1, 0};
  ASSERT_TRUE(reference::index_cache_gather(
      quant.pages, {cache.data(), kPages, kBytes}, {gather_table.data(), 2, 1},
      std::vector<std::int32_t>{0, 2, 5}, {}, 5, k_fp8.data(), k_scale.data()));
  gather.outputs["k_fp8"] = tensor(Dtype::float8_e4m3fn, {5, 128}, k_fp8);
  gather.outputs["k_scale"] = tensor(Dtype::float32, {5}, k_scale);
  auto& decode = recording.operations["index_logits_decode"];
  decode.inputs["index_cache"] = pages;
  decode.inputs["block_table"] = tensor<std::int32_t>(Dtype::int32, {2, 1}, {1, 0});
  const std::vector<std::int32_t> row_request = {0, 1, 1};
  const reference::IndexLogitsDecode in{decode.inputs["index_q_fp8"].tensor.as<std::uint8_t>(),
                                        decode.inputs["index_weights_folded"].tensor.as<float>(),
                                        {cache.data(), kPages, kBytes},
                                        {gather_table.data(), 2, 1},
                                        decode.inputs["row_lens"].tensor.as<std::int32_t>(),
                                        row_request.data(),
                                        3,
                                        3,
                                        5};
  ASSERT_TRUE(reference::index_logits_decode<reference::Simulated>(
      quant.pages, in, decode.outputs["logits"].tensor.as<float>()));
  ASSERT_EQ(replay(recording).verdict(), Verdict::pass);

  recording.contract["index_page_layout"] = "block_flat";
  for (const auto& [operation, tensor] :
       {std::pair("index_cache_write", "index_cache"), std::pair("index_cache_gather", "k_fp8"),
        std::pair("index_logits_decode", "logits")}) {
    const std::string text = hint(recording, operation, tensor);
    EXPECT_TRUE(says(text, "index_page_layout=mfma_preshuffle")) << operation << ": " << text;
  }
}

TEST_F(ReplayHints, AZeroTailIsNamedWithItsFirstElement) {
  TinyRecording recording = tiny_recording();
  Tensor& logits = recording.output("index_logits_decode", "logits");
  for (int i = 5; i < 9; ++i) // [1, 0] to [1, 3]
    logits.as<float>()[i] = 0;
  const std::string text = hint(recording, "index_logits_decode", "logits");
  EXPECT_TRUE(says(text, "zero")) << text;
  EXPECT_TRUE(says(text, "[1, 0]")) << text;
}

TEST_F(ReplayHints, ASlotThatWasNotWrittenIsNamedAsStale) {
  TinyRecording recording = tiny_recording();
  const std::size_t record = 3 * testing::tiny::kPageBytes; // slot 6: token 0 of page 3
  std::memcpy(recording.output("index_cache_write", "index_cache").bytes.data() + record,
              recording.input("index_cache_write", "index_cache").bytes.data() + record, 128);
  const std::string text = hint(recording, "index_cache_write", "index_cache");
  EXPECT_TRUE(says(text, "stale")) << text;
}

/// A kernel whose second run gives what the caller says.
TEST(Hints, AKernelThatGivesOtherValuesWhenItRunsAgain) {
  const TinyRecording recording = tiny_recording();
  const std::string operation = "index_cache_gather";
  const OperationData data{
      {0, operation}, recording.contract, recording.operations.at(operation), {}};
  const OperationAdapter& adapter = *find_adapter(operation);
  ReferenceRun reference(adapter, data);
  KernelRun again;
  Tensor odd = data.output("k_fp8").tensor;
  for (const int i : {3, 90, 200, 333, 401, 555})
    odd.as<std::uint8_t>()[i] ^= static_cast<std::uint8_t>(1 + i % 5);
  const Case c{"k_fp8", Gate::exact, {Producer::Kind::kernel, &odd}, {Producer::Kind::reference}};
  const auto judged = judge(c, reference);
  ASSERT_TRUE(judged) << judged.status().what();
  Hints hints(adapter, reference, [&] { return Result<KernelRun>(again); });
  again.outputs["k_fp8"] = odd;
  EXPECT_EQ(hints.find(c, *judged), "");
  again.outputs["k_fp8"] = data.output("k_fp8").tensor;
  EXPECT_EQ(hints.find(c, *judged).find("run again, the kernel gives other values"), 0u);
}

} // namespace
} // namespace dsakit::harness
