#include "dsakit/harness/replay.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "dsakit/harness/operations.hpp"
#include "replay_fixture.hpp"

namespace dsakit::harness {
namespace {

using testing::ReplayTest;
using testing::tiny_recording;
using testing::TinyRecording;

TEST_F(ReplayTest, ASoundRecordingPassesOnEveryComparisonOfEveryOperation) {
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950})
    for (const Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
      ReplayOptions options;
      options.host.arch = arch;
      const Report report = replay(tiny_recording(encoding), options);
      EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
      EXPECT_EQ(report.lines.size(), 12u) << "3 comparisons of each of 4 outputs";
      EXPECT_EQ(report.summary().operations, 3);
      for (const ReportLine& line : report.lines) {
        EXPECT_GT(line.elements, 0);
        EXPECT_EQ(line.kernel.empty(), line.subject != "kernel");
        EXPECT_EQ(line.workgroups.has_value(), line.subject == "kernel");
      }
    }
}

TEST_F(ReplayTest, EveryFlippedBitOfAnExactOutputFailsAtItsElement) {
  constexpr std::size_t kProducers = 32; // of one replay, each with one flipped bit
  const TinyRecording sound = tiny_recording();
  for (const auto& [operation, tensor] :
       {std::pair("index_cache_write", "index_cache"), std::pair("index_cache_gather", "k_fp8"),
        std::pair("index_cache_gather", "k_scale")}) {
    const RecordedTensor& output = sound.operations.at(operation).outputs.at(tensor);
    const std::size_t bits = output.tensor.bytes.size() * 8;
    const std::size_t element_bits = size_of(output.tensor.dtype) * 8;
    for (std::size_t first = 0; first < bits; first += kProducers) {
      TinyRecording flipped = sound;
      std::erase_if(flipped.operations, [&](const auto& item) { return item.first != operation; });
      std::map<std::string, std::vector<std::int64_t>> flipped_at;
      for (std::size_t bit = first; bit < std::min(first + kProducers, bits); ++bit) {
        const std::string name = std::string(tensor) + ".bit" + std::to_string(bit);
        RecordedTensor& copy = flipped.operations.at(operation).outputs[name] = output;
        copy.attributes["output"] = tensor;
        copy.tensor.bytes[bit / 8] ^= std::byte(1 << bit % 8);
        flipped_at[name] =
            coordinates(output.tensor.shape, static_cast<std::int64_t>(bit / element_bits));
      }
      const Report report = replay(flipped);
      ASSERT_EQ(report.verdict(), Verdict::fail);
      std::size_t failed = 0;
      for (const ReportLine& line : report.lines) {
        const auto at = flipped_at.find(line.tensor);
        ASSERT_EQ(line.verdict, at == flipped_at.end() ? Verdict::pass : Verdict::fail)
            << line.tensor;
        if (at == flipped_at.end()) continue;
        ++failed;
        ASSERT_EQ(line.operation, operation);
        ASSERT_EQ(line.mismatches, 1);
        ASSERT_EQ(line.first_at, at->second) << line.tensor;
      }
      ASSERT_EQ(failed, 2 * flipped_at.size()) << "reference/recorded and kernel/recorded";
    }
  }
}

TEST_F(ReplayTest, EveryFlipOfABoundedOutputBeyondTwiceItsBoundFails) {
  TinyRecording sound = tiny_recording();
  std::erase_if(sound.operations,
                [](const auto& item) { return item.first != "index_logits_decode"; });
  const RecordedOperation& tensors = sound.operations.at("index_logits_decode");
  const auto bound = find_adapter("index_logits_decode")
                         ->bound({{0, "index_logits_decode"}, sound.contract, tensors}, "logits",
                                 Accumulation::fp32);
  ASSERT_TRUE(bound) << bound.status().what();

  int flips = 0;
  for (std::int64_t i = 0; i < sound.output("index_logits_decode", "logits").elements(); ++i)
    for (int bit = 0; bit < 32; ++bit) {
      if ((*bound)[static_cast<std::size_t>(i)] == 0) continue; // beyond the row
      TinyRecording flipped = sound;
      Tensor& logits = flipped.output("index_logits_decode", "logits");
      const double before = element(logits, i);
      logits.as<std::uint32_t>()[i] ^= 1u << bit;
      const double moved = std::abs(element(logits, i) - before);
      if (moved <= 2 * (*bound)[static_cast<std::size_t>(i)]) continue;
      ++flips;
      const Report report = replay(flipped);
      const ReportLine* line =
          find(report, "index_logits_decode", "logits", "reference", "recorded");
      ASSERT_EQ(line->verdict, Verdict::fail) << "element " << i << " bit " << bit;
      ASSERT_EQ(line->first_at, coordinates(logits.shape, i));
      ASSERT_EQ(line->mismatches, 1);
    }
  EXPECT_GT(flips, 8 * 15) << "signs, exponents and upper mantissas of 8 elements";
}

TEST_F(ReplayTest, NothingBeyondARowIsCompared) {
  TinyRecording recording = tiny_recording();
  Tensor& logits = recording.output("index_logits_decode", "logits"); // rows of 3, 4 and 1
  for (const int beyond : {3, 4, 9, 11, 14})
    logits.as<float>()[beyond] = std::nanf("");
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(find(report, "index_logits_decode", "logits", "reference", "recorded")->elements, 8);
}

TEST_F(ReplayTest, NanAndInfinityMustBeWhereTheReferenceHasThem) {
  for (const float value : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    TinyRecording recording = tiny_recording();
    recording.output("index_logits_decode", "logits").as<float>()[6] = value;
    const Report report = replay(recording);
    const ReportLine* line = find(report, "index_logits_decode", "logits", "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::fail);
    EXPECT_EQ(line->first_at, (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(line->tightest_gate, "none: non-finite values differ");
  }
}

/// A gather with a page beyond the pool for request 1's third token.
TinyRecording with_bad_page() {
  TinyRecording recording = tiny_recording();
  recording.input("index_cache_gather", "block_table").as<std::int32_t>()[3] = -1;
  std::memset(recording.output("index_cache_gather", "k_fp8").bytes.data() + 4 * 128, 0x5A, 128);
  recording.output("index_cache_gather", "k_scale").as<float>()[4] = 0;
  return recording;
}

TEST_F(ReplayTest, ARecordedRowOfABadPageMayHoldAnythingWhereItsFillIsUnknown) {
  const Report report = replay(with_bad_page());
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(find(report, "index_cache_gather", "k_fp8", "reference", "recorded")->elements,
            4 * 128);
  EXPECT_EQ(find(report, "index_cache_gather", "k_fp8", "kernel", "reference")->elements, 5 * 128)
      << "ours must be zero";
}

TEST_F(ReplayTest, ARecordedRowOfABadPageHoldsZeroOrWhatItHeldBefore) {
  TinyRecording recording = with_bad_page();
  auto& operation = recording.operations["index_cache_gather"];
  operation.inputs["k_fp8"] = operation.outputs["k_fp8"];
  std::memset(operation.inputs["k_fp8"].tensor.bytes.data(), 0x5A, 5 * 128);
  operation.inputs["k_scale"] = operation.outputs["k_scale"];
  for (int row = 0; row < 5; ++row)
    operation.inputs["k_scale"].tensor.as<float>()[row] = 7;
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass) << "left";

  TinyRecording zeroed = recording;
  std::memset(zeroed.output("index_cache_gather", "k_fp8").bytes.data() + 4 * 128, 0, 128);
  EXPECT_EQ(replay(zeroed).verdict(), Verdict::pass) << "zeroed";

  recording.output("index_cache_gather", "k_fp8").bytes[4 * 128 + 17] ^= std::byte{4};
  const Report report = replay(recording);
  const ReportLine* line = find(report, "index_cache_gather", "k_fp8", "reference", "recorded");
  EXPECT_EQ(line->verdict, Verdict::fail);
  EXPECT_EQ(line->first_at, (std::vector<std::int64_t>{4, 17}));
}

/// Slots of -1 alone need no pool.
TEST_F(ReplayTest, AnEmptyPoolIsReplayed) {
  TinyRecording recording = tiny_recording();
  std::erase_if(recording.operations,
                [](const auto& item) { return item.first != "index_cache_write"; });
  auto& write = recording.operations.at("index_cache_write");
  for (RecordedTensor* cache : {&write.inputs.at("index_cache"), &write.outputs.at("index_cache")})
    cache->tensor = Tensor(Dtype::uint8, {0, testing::tiny::kPageBytes});
  auto* slots = write.inputs.at("slot_mapping").tensor.as<std::int64_t>();
  std::fill(slots, slots + 5, -1);
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
}

TEST_F(ReplayTest, RowsOutsideTheirRequestStayAsTheyWere) {
  TinyRecording recording = tiny_recording();
  auto& operation = recording.operations["index_cache_gather"];
  operation.inputs["row_request"] =
      testing::tiny::tensor<std::int32_t>(Dtype::int32, {5}, {0, 0, -1, 1, 0});
  const Report unknown = replay(recording);
  EXPECT_EQ(unknown.verdict(), Verdict::pass) << to_text(unknown, {});
  EXPECT_EQ(find(unknown, "index_cache_gather", "k_scale", "reference", "recorded")->elements, 3);

  operation.inputs["k_fp8"] = operation.outputs["k_fp8"];
  operation.inputs["k_scale"] = operation.outputs["k_scale"];
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass);
  recording.output("index_cache_gather", "k_scale").as<float>()[2] *= 2;
  EXPECT_EQ(replay(recording).verdict(), Verdict::fail);
}

TEST_F(ReplayTest, APageMayLieInsideABlockRow) {
  TinyRecording recording = tiny_recording();
  constexpr std::int64_t kOffset = 48;
  constexpr std::int64_t kRow = kOffset + testing::tiny::kPageBytes + 16;
  const auto pack = [&](RecordedTensor& cache) {
    Tensor packed(Dtype::uint8, {testing::tiny::kPages, kRow});
    std::fill(packed.bytes.begin(), packed.bytes.end(), std::byte{0x77});
    for (std::int64_t page = 0; page < testing::tiny::kPages; ++page)
      std::memcpy(packed.bytes.data() + page * kRow + kOffset,
                  cache.tensor.bytes.data() + page * testing::tiny::kPageBytes,
                  testing::tiny::kPageBytes);
    cache.tensor = std::move(packed);
    cache.attributes["page_offset"] = std::to_string(kOffset);
  };
  for (auto& [name, operation] : recording.operations) {
    pack(operation.inputs.at("index_cache"));
    if (operation.outputs.contains("index_cache")) pack(operation.outputs.at("index_cache"));
  }
  EXPECT_EQ(replay(recording).verdict(), Verdict::pass);
  // The bytes around the page belong to others.
  recording.output("index_cache_write", "index_cache").bytes[kOffset - 1] ^= std::byte{1};
  EXPECT_EQ(replay(recording).verdict(), Verdict::fail);
}

TEST_F(ReplayTest, EachRecordedProducerIsHeldToItsOwnAccumulation) {
  TinyRecording recording = tiny_recording();
  auto& outputs = recording.operations["index_logits_decode"].outputs;
  RecordedTensor logits = outputs.extract("logits").mapped();
  logits.attributes["output"] = "logits";
  outputs["logits.exact"] = logits;
  outputs["logits.exact"].attributes["accumulation"] = "exact";
  // 2^-14 is too much for fp32, and within a 14-bit accumulator.
  for (std::int64_t i = 0; i < logits.tensor.elements(); ++i)
    logits.tensor.as<float>()[i] *= 1 + 0x1p-14f;
  outputs["logits.wgmma"] = logits;
  outputs["logits.wgmma"].attributes["accumulation"] = "sm90_wgmma_fp8";

  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});
  EXPECT_EQ(report.lines.size(), 14u);
  EXPECT_EQ(report.files[0].contract.at("accumulation:logits.wgmma"), "sm90_wgmma_fp8");

  ReplayOptions options;
  options.overrides = {*parse_override("accumulation:logits.wgmma=fp32")};
  const Report overridden = replay(recording, options);
  const ReportLine* line =
      find(overridden, "index_logits_decode", "logits.wgmma", "reference", "recorded");
  EXPECT_EQ(line->verdict, Verdict::fail);
  EXPECT_EQ(line->tightest_gate, "derived with accumulation sm90_wgmma_fp8");
  EXPECT_EQ(
      find(overridden, "index_logits_decode", "logits.exact", "reference", "recorded")->verdict,
      Verdict::pass);
  EXPECT_EQ(overridden.files[0].contract.at("accumulation:logits.wgmma"), "fp32");
  EXPECT_EQ(overridden.files[0].contract_recorded.at("accumulation:logits.wgmma"),
            "sm90_wgmma_fp8");
}

TEST_F(ReplayTest, AnOverriddenKeyIsUsedByBothSidesAndReportedWithTheRecordedValue) {
  ReplayOptions options;
  options.overrides = {*parse_override("index_k_floor=1000")};
  const Report report = replay(tiny_recording(), options);
  EXPECT_EQ(find(report, "index_cache_write", "index_cache", "kernel", "reference")->verdict,
            Verdict::pass);
  EXPECT_EQ(find(report, "index_cache_write", "index_cache", "reference", "recorded")->verdict,
            Verdict::fail);
  EXPECT_EQ(report.files[0].contract.at("index_k_floor"), "1000");
  EXPECT_EQ(report.files[0].contract_recorded.at("index_k_floor"), "1e-4");
}

TEST_F(ReplayTest, BadOverridesAreBadInput) {
  for (const char* text :
       {"accumulation", "no_such_key=1", "page_size:logits=2", "accumulation:logits=bf16", "=", "",
        "accumulation:=fp32", "accumulation=", ":=", "mla_scale_read:lse=fp16", "page_size=0x40",
        "page_size=64.0", "page_size=", "page_size= 64", "page_size=0", "index_k_floor=0x1p-3",
        "index_fp8_encoding=e5m2", "page_size:=64"}) {
    const auto parsed = parse_override(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.status().code(), Code::bad_input);
  }
  tiny_recording().write(path("a.h5"));
  ReplayOptions options;
  options.paths = {path("a.h5")};
  options.overrides = {*parse_override("accumulation:logitz=fp32")};
  const auto report = run(options);
  ASSERT_FALSE(report);
  EXPECT_NE(report.status().what().find("accumulation:logitz=fp32"), std::string::npos);
}

TEST_F(ReplayTest, AFolderIsReplayedInOrderOfNames) {
  for (const char* name : {"b.h5", "a.h5", "c.h5"})
    tiny_recording().write(path(name));
  std::ofstream(path("notes.txt")) << "not a recording";
  ReplayOptions options;
  options.paths = {path("")};
  const auto report = run(options);
  ASSERT_TRUE(report) << report.status().what();
  ASSERT_EQ(report->files.size(), 3u);
  EXPECT_TRUE(report->files[0].file.ends_with("a.h5"));
  EXPECT_TRUE(report->files[2].file.ends_with("c.h5"));
}

TEST_F(ReplayTest, AnEmptyFolderIsBadInput) {
  ReplayOptions options;
  options.paths = {path("")};
  const auto report = run(options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.status().code(), Code::bad_input);
}

TEST_F(ReplayTest, TheRunEndsAfterTheFirstFileThatFailsUnlessAskedToGoOn) {
  TinyRecording wrong = tiny_recording();
  wrong.output("index_cache_gather", "k_scale").as<float>()[0] *= 2;
  wrong.write(path("a.h5"));
  tiny_recording().write(path("b.h5"));
  ReplayOptions options;
  options.paths = {path("a.h5"), path("b.h5")};
  const auto stopped = run(options);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->files.size(), 1u);
  EXPECT_EQ(stopped->files_left_out, 1);
  options.keep_going = true;
  const auto all = run(options);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->files.size(), 2u);
  EXPECT_EQ(all->files_left_out, 0);
  EXPECT_EQ(all->files[1].verdict, Verdict::pass);
  EXPECT_EQ(all->verdict(), Verdict::fail);
}

TEST_F(ReplayTest, ABadFileIsFoundBeforeAnyOtherRuns) {
  tiny_recording().write(path("a.h5"));
  std::ofstream(path("b.h5")) << "not HDF5";
  ReplayOptions options;
  options.paths = {path("a.h5"), path("b.h5")};
  const auto report = run(options);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->lines.empty());
  EXPECT_TRUE(report->files.back().bad_input);
  options.keep_going = true;
  const auto all = run(options);
  ASSERT_TRUE(all);
  EXPECT_FALSE(all->lines.empty());
  EXPECT_EQ(all->verdict(), Verdict::error);
}

TEST_F(ReplayTest, FilesAreJudgedBeforeDevices) {
  if (optimized::open_device(optimized::DeviceKind::hip))
    GTEST_SKIP() << "NOT CHECKED: this machine has an AMD GPU";
  ReplayOptions options;
  options.device = optimized::DeviceKind::hip;
  TinyRecording recording = tiny_recording();
  recording.write(path("a.h5"));
  options.paths = {path("a.h5")};
  const auto none = run(options);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.status().code(), Code::no_device);
  // Well-formed, and only its payload says that a slot is out of the pool.
  recording.input("index_cache_write", "slot_mapping").as<std::int64_t>()[0] = 8;
  recording.write(path("a.h5"));
  const auto bad = run(options);
  ASSERT_TRUE(bad);
  EXPECT_TRUE(bad->files[0].bad_input);
  EXPECT_NE(bad->files[0].reason.find("slot"), std::string::npos);
}

TEST_F(ReplayTest, AnInterruptEndsTheRun) {
  tiny_recording().write(path("a.h5"));
  const std::atomic<bool> interrupted{true};
  ReplayOptions options;
  options.paths = {path("a.h5")};
  options.interrupted = &interrupted;
  const auto report = run(options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.status().code(), Code::interrupted);
}

TEST_F(ReplayTest, AnInterruptLeavesTheWholeOperationsBeforeIt) {
  for (const char* file : {"a.h5", "b.h5"})
    tiny_recording().write(path(file));
  std::atomic<bool> interrupted{false};
  double before = 0;
  ReplayOptions options;
  options.paths = {path("a.h5"), path("b.h5")};
  options.interrupted = &interrupted;
  options.progress = [&](double done, const std::string& what) {
    EXPECT_GE(done, before);
    EXPECT_LE(done, 1);
    before = done;
    interrupted = what == "index_cache_gather";
  };
  const auto report = run(options);
  ASSERT_TRUE(report) << report.status().what();
  EXPECT_TRUE(report->partial);
  ASSERT_EQ(report->files.size(), 1u);
  EXPECT_EQ(report->files_left_out, 1);
  EXPECT_GT(before, 0);
  ASSERT_FALSE(report->lines.empty());
  for (const ReportLine& line : report->lines)
    EXPECT_EQ(line.operation, "index_cache_write");

  interrupted = false;
  before = 0;
  options.operation = "index_cache_gather";
  const auto nothing = run(options);
  ASSERT_TRUE(nothing);
  EXPECT_TRUE(nothing->partial);
  EXPECT_EQ(nothing->files[0].verdict, Verdict::skipped);
  EXPECT_NE(nothing->files[0].reason.find("interrupted before"), std::string::npos);
}

TEST_F(ReplayTest, OneOperationCanBeAskedFor) {
  ReplayOptions options;
  options.operation = "index_cache_gather";
  const Report report = replay(tiny_recording(), options);
  EXPECT_EQ(report.lines.size(), 6u);
  options.operation = "fp8_cast"; // only recorded
  EXPECT_FALSE(run(options));
  options.operation = "layer"; // not whole in this file
  EXPECT_EQ(replay(tiny_recording(), options).verdict(), Verdict::skipped);
}

TEST_F(ReplayTest, AFileWithNothingToReplayIsSkippedWithTheReason) {
  TinyRecording recording = tiny_recording();
  recording.operations.erase("index_cache_gather");
  ReplayOptions options;
  options.operation = "index_cache_gather";
  const Report report = replay(recording, options);
  EXPECT_EQ(report.verdict(), Verdict::skipped);
  EXPECT_EQ(report.files[0].reason, "holds no operation index_cache_gather");
}

TEST_F(ReplayTest, AnUnmatchedTensorIsBadInputAndAnUnusedRuleWarns) {
  tiny_recording().write(path("a.h5"));
  std::ofstream(path("rules.json")) << R"({"operation": "index_cache_gather", "rules": [
      {"match": "k_fp8", "gate": "exact", "why": "codes"}]})";
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.replace_from(path("rules.json")));
  ReplayOptions options;
  options.paths = {path("a.h5")};
  auto report = harness::replay(options, rules);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->files[0].bad_input);
  EXPECT_NE(report->files[0].reason.find("no rule matches index_cache_gather output k_scale"),
            std::string::npos)
      << report->files[0].reason;

  std::ofstream(path("rules.json")) << R"({"operation": "index_cache_gather", "rules": [
      {"match": "k_.*", "gate": "exact", "why": "codes"},
      {"match": "k_scale", "gate": "exact", "why": "never reached"}]})";
  ASSERT_TRUE(rules.replace_from(path("rules.json")));
  report = harness::replay(options, rules);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->verdict(), Verdict::pass);
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_NE(report->warnings[0].find("\"k_scale\" matched no tensor"), std::string::npos);
}

TEST_F(ReplayTest, ADerivedGateOnAnOutputWithoutABoundIsBadInput) {
  tiny_recording().write(path("a.h5"));
  std::ofstream(path("rules.json")) << R"({"operation": "index_cache_write", "rules": [
      {"match": ".*", "gate": "derived", "why": "wrong"}]})";
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.replace_from(path("rules.json")));
  ReplayOptions options;
  options.paths = {path("a.h5")};
  const auto report = harness::replay(options, rules);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->files[0].bad_input);
}

TEST_F(ReplayTest, AProblemThatNoKernelTakesIsUnsupportedAndTheReferenceIsStillJudged) {
  TinyRecording recording = tiny_recording();
  recording.contract["activation_dtype"] = "fp16";
  auto& operation = recording.operations["index_cache_write"];
  operation.inputs["index_k"].tensor.dtype = Dtype::float16;
  std::memset(operation.inputs["index_k"].tensor.bytes.data(), 0, 6 * 128 * 2);
  operation.outputs["index_cache"] = operation.inputs["index_cache"];
  const IndexKeyQuant quant = *parse_index_key_quant(recording.contract);
  const std::vector<std::uint16_t> zeros(6 * 128);
  const std::vector<std::int64_t> slots = {6, 0, -1, 3, 2};
  ASSERT_TRUE(reference::index_cache_write(
      quant, zeros.data(), 6, slots,
      {recording.output("index_cache_write", "index_cache").as<std::uint8_t>(),
       testing::tiny::kPages, testing::tiny::kPageBytes}));
  const Report report = replay(recording);
  EXPECT_EQ(report.verdict(), Verdict::unsupported);
  const ReportLine* line = find(report, "index_cache_write", "index_cache", "kernel", "reference");
  EXPECT_EQ(line->verdict, Verdict::unsupported);
  EXPECT_NE(line->reason.find("fp16"), std::string::npos);
  EXPECT_EQ(find(report, "index_cache_write", "index_cache", "reference", "recorded")->verdict,
            Verdict::pass);
}

TEST_F(ReplayTest, WaveOrderAndLdsContentsChangeNoBit) {
  const TinyRecording recording = tiny_recording();
  std::vector<std::vector<std::string>> got;
  for (const auto& [seed, pattern] :
       {std::pair(0, 0xCB), std::pair(11, 0x00), std::pair(5, 0xFF)}) {
    ReplayOptions options;
    options.host.schedule_seed = static_cast<std::uint64_t>(seed);
    options.host.lds_pattern = static_cast<std::uint8_t>(pattern);
    const Report report = replay(recording, options);
    EXPECT_EQ(report.verdict(), Verdict::pass);
    got.emplace_back();
    for (const ReportLine& line : report.lines)
      got.back().push_back(std::to_string(line.used.value_or(-1)) + " " +
                           (line.got ? line.got->hex : ""));
  }
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
}

} // namespace
} // namespace dsakit::harness
