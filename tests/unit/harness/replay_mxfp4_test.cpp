// The MXFP4 indexer from file to verdict: what is refused, replayed and hinted.
#include <functional>

#include "dsakit/harness/replay.hpp"
#include "replay_fixture.hpp"
#include "support/tiny_mxfp4.hpp"

namespace dsakit::harness {
namespace {

using testing::ReplayTest;
using testing::tiny_mxfp4;
using testing::TinyRecording;

constexpr const char* kOperationNames[] = {"index_query_quant", "index_cache_write",
                                           "index_cache_gather", "index_logits_prefill",
                                           "index_logits_decode"};

class ReplayMxfp4 : public ReplayTest {
protected:
  /// What opening and then reading `operation` says, without the path; "" if it reads.
  std::string read(const std::string& operation,
                   const std::function<void(TinyRecording&)>& change) const {
    TinyRecording recording = tiny_mxfp4();
    change(recording);
    recording.write(path("x.h5"));
    auto reader = RecordingReader::open(path("x.h5"));
    Status status = reader.status();
    if (reader) status = reader->read({0, operation}, reader->contract()).status();
    if (status) return "";
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_EQ(status.what().find(path("x.h5") + ": "), 0u) << status.what();
    return status.what().substr(path("x.h5").size() + 2);
  }
};

TEST_F(ReplayMxfp4, EveryOperationPassesFedAndChainedOnBothModels) {
  for (const char* layout : {"flat", "preshuffle64"})
    for (const char* hadamard : {"none", "query_and_key"})
      for (const ReplayMode mode : {ReplayMode::fed, ReplayMode::chained})
        for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950}) {
          ReplayOptions options;
          options.mode = mode;
          options.host.arch = arch;
          const Report report = replay(tiny_mxfp4(layout, hadamard), options);
          EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
          // Two outputs of the quantiser and of the gather, one of the others.
          EXPECT_EQ(report.lines.size(), mode == ReplayMode::fed ? 21u : 14u);
        }
}

TEST_F(ReplayMxfp4, EveryRequiredTensorDtypeAndShape) {
  const TinyRecording good = tiny_mxfp4();
  for (const char* name : kOperationNames)
    for (const Side side : {Side::inputs, Side::outputs}) {
      const auto& tensors =
          side == Side::inputs ? good.operations.at(name).inputs : good.operations.at(name).outputs;
      for (const auto& [tensor, recorded] : tensors) {
        if (tensor == "row_request") continue; // optional
        const std::string object = object_path({0, name}, side, tensor);
        const auto of = [&, &tensor = tensor](TinyRecording& r) -> auto& {
          auto& operation = r.operations.at(name);
          return side == Side::inputs ? operation.inputs : operation.outputs;
        };
        // Without its packed tensor an operation is FP8's, whose keys this contract lacks.
        const bool tells = tensor == "index_q_packed" && side == Side::outputs;
        const std::string missing =
            read(name, [&, &tensor = tensor](TinyRecording& r) { of(r).erase(tensor); });
        EXPECT_EQ(missing, tells ? "/contract (step 0): found no key index_fp8_encoding, want it "
                                   "for index_query_quant"
                                 : object + ": is missing");
        const Dtype dtype = recorded.tensor.dtype;
        const Dtype other = dtype == Dtype::uint8 ? Dtype::int32 : Dtype::uint8;
        EXPECT_EQ(read(name,
                       [&, &tensor = tensor](TinyRecording& r) {
                         Tensor& changed = of(r).at(tensor).tensor;
                         changed = Tensor(other, changed.shape);
                       }),
                  object + ": found dtype " + std::string(dsakit::name(other)) + ", want " +
                      std::string(dsakit::name(dtype)));
      }
    }
  EXPECT_EQ(read("index_query_quant",
                 [](TinyRecording& r) {
                   r.operations.at("index_query_quant").outputs["index_q_scale"] =
                       testing::tiny::tensor<std::uint8_t>(Dtype::float8_e8m0fnu, {5, 3}, {});
                 }),
            "/steps/0/index_query_quant/outputs/index_q_scale: found shape [5, 3], want [5 (rows "
            "of index_q), 3 (heads of index_q), 4]");
  EXPECT_EQ(read("index_cache_write",
                 [](TinyRecording& r) {
                   for (auto* side : {&r.operations.at("index_cache_write").inputs,
                                      &r.operations.at("index_cache_write").outputs})
                     side->at("index_cache").tensor = Tensor(Dtype::uint8, {2, 64 * 68 - 1});
                 }),
            "/steps/0/index_cache_write/inputs/index_cache: found rows of 4351 bytes, want at "
            "least 4352 from byte 0 (page_size 64)");
}

TEST_F(ReplayMxfp4, ContractKeys) {
  EXPECT_EQ(read("index_query_quant", [](TinyRecording& r) { r.contract.erase("hadamard"); }),
            "/contract (step 0): found no key hadamard, want it for index_query_quant");
  EXPECT_EQ(read("index_query_quant", [](TinyRecording& r) { r.contract["hadamard"] = "yes"; }),
            "/contract (step 0): contract key hadamard: found 'yes', want none | query_and_key");
  EXPECT_EQ(read("index_logits_decode",
                 [](TinyRecording& r) {
                   r.contract["index_page_layout"] = "block_flat";
                   r.operations.erase("index_cache_write");
                   r.operations.erase("index_cache_gather");
                 }),
            "/contract (step 0): contract key index_page_layout: found 'block_flat', want flat | "
            "preshuffle64");
}

TEST_F(ReplayMxfp4, S22_AGatherMayUseABadPageWhereTheRecordedScalesAreZero) {
  const auto bad_page = [&](bool zeros) {
    return read("index_cache_gather", [zeros](TinyRecording& r) {
      r.input("index_cache_gather", "block_table").as<std::int32_t>()[0] = 2; // of rows 0 and 1
      if (zeros)
        std::fill_n(r.output("index_cache_gather", "k_scale").as<std::uint8_t>(), 8,
                    std::uint8_t{0});
    });
  };
  EXPECT_EQ(bad_page(true), "");
  EXPECT_EQ(bad_page(false),
            "/steps/0/index_cache_gather/inputs/block_table: [0, 0]: found page 2, "
            "want 0 to 1 (its rows' k_scale is not 0)");
}

TEST_F(ReplayMxfp4, ASampleOfRowsIsReplayed) {
  ReplayOptions options;
  options.rows = 2;
  const Report report = replay(tiny_mxfp4(), options);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(find(report, "index_query_quant", "index_q_packed", "kernel", "recorded")->elements,
            2 * 3 * 64);
  EXPECT_EQ(find(report, "index_query_quant", "index_q_scale", "kernel", "recorded")->elements,
            2 * 3 * 4);
  EXPECT_EQ(find(report, "index_cache_gather", "k_packed", "kernel", "recorded")->elements, 5 * 64);
}

TEST_F(ReplayMxfp4, S07_ExchangedNibblesAreNamed) {
  TinyRecording recording = tiny_mxfp4();
  Tensor& packed = recording.output("index_query_quant", "index_q_packed");
  for (std::int64_t i = 0; i < packed.elements(); ++i) {
    std::uint8_t& byte = packed.as<std::uint8_t>()[i];
    byte = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
  }
  EXPECT_EQ(hint(recording, "index_query_quant", "index_q_packed"),
            "the recorded values have the halves of each byte exchanged: is the even element in "
            "the high nibble?");
}

TEST_F(ReplayMxfp4, S06_ScalesOneExponentOffAreNamed) {
  TinyRecording recording = tiny_mxfp4();
  Tensor& scale = recording.output("index_query_quant", "index_q_scale");
  for (std::int64_t i = 0; i < scale.elements(); i += 2)
    --scale.as<std::uint8_t>()[i];
  EXPECT_EQ(hint(recording, "index_query_quant", "index_q_scale"),
            "30 of 60 scales of the recorded values are one exponent from right, too small: "
            "rounded down or to even, not up?");
}

TEST_F(ReplayMxfp4, TheOtherLayoutAndTheRotationAreNamed) {
  TinyRecording recording = tiny_mxfp4("preshuffle64");
  recording.contract["index_page_layout"] = "flat";
  EXPECT_EQ(hint(recording, "index_cache_gather", "k_packed"),
            "the recorded values are right under index_page_layout=preshuffle64: the contract "
            "field is index_page_layout");
  recording = tiny_mxfp4("flat", "query_and_key");
  recording.contract["hadamard"] = "none";
  EXPECT_EQ(hint(recording, "index_query_quant", "index_q_packed"),
            "the recorded values are right under hadamard=query_and_key: the contract field is "
            "hadamard");
}

} // namespace
} // namespace dsakit::harness
