// shrink: a fault in an output of every operation, cut down, fails as it did; scrambled values fail
// as well and hold nothing of the recorded ones.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "dsakit/harness/shrink.hpp"
#include "replay/whole_hint.hpp"
#include "replay_fixture.hpp"
#include "shrink/reducer.hpp"
#include "support/tiny_dcp.hpp"
#include "support/tiny_dense.hpp"
#include "support/tiny_layer.hpp"
#include "support/tiny_mxfp4.hpp"
#include "support/tiny_topk.hpp"

namespace dsakit::harness {
namespace {

using testing::TinyRecording;

/// Another value of that element, far from it: of an id the next one.
void spoil(Tensor& tensor, std::int64_t element) {
  const std::size_t size = size_of(tensor.dtype), at = static_cast<std::size_t>(element) * size;
  if (tensor.dtype == Dtype::int32 || tensor.dtype == Dtype::int64)
    tensor.bytes[at] ^= std::byte{1};
  else
    tensor.bytes[at + size - 1] ^= std::byte{0x21}; // of a float, exponent and sign stay finite
}

class ShrinkTest : public testing::ReplayTest {
protected:
  Shrunk shrink(const std::string& operation, bool synthesize = false) const {
    Rules rules = Rules::built_in();
    ShrinkOptions options;
    options.input = path("tiny.h5");
    options.output = path("small.h5");
    options.operation = operation;
    options.synthesize = synthesize;
    options.seed = 5;
    const auto shrunk = harness::shrink(options, rules);
    EXPECT_TRUE(shrunk) << shrunk.status().what();
    return shrunk ? *shrunk : Shrunk{};
  }

  /// The small file fails in the comparison that was kept.
  void expect_failure(const std::string& operation, const Shrunk& shrunk) const {
    ASSERT_EQ(shrunk.not_written, "");
    ReplayOptions options;
    options.paths = {path("small.h5")};
    options.operation = operation;
    const auto report = run(options);
    ASSERT_TRUE(report) << report.status().what();
    EXPECT_FALSE(report->files[0].bad_input) << report->files[0].reason;
    const ReportLine* line =
        find(*report, operation, shrunk.tensor, shrunk.subject, shrunk.against);
    EXPECT_EQ(line->verdict, Verdict::fail) << to_text(*report, {});
  }

  RecordedOperation small(const std::string& operation) const {
    const auto reader = RecordingReader::open(path("small.h5"));
    EXPECT_TRUE(reader) << reader.status().what();
    const auto tensors = reader->read({0, operation}, reader->contract(0));
    EXPECT_TRUE(tensors) << tensors.status().what();
    return *tensors;
  }
};

/// Every operation that a recording holds, under a name for messages.
std::vector<std::pair<std::string, TinyRecording>> recordings() {
  return {{"index", testing::tiny_recording()},
          {"layer", testing::tiny_layer()},
          {"dense", testing::tiny_dense()},
          {"mxfp4", testing::tiny_mxfp4()},
          {"mxfp4 preshuffled", testing::tiny_mxfp4("preshuffle64", "query_and_key")},
          {"context parallel", testing::tiny_dcp()}};
}

/// Each element that a spoiled recording fails for: the first, one in the middle, the last.
void for_each_fault(const std::function<void(const std::string& what, const TinyRecording&,
                                             const std::string& operation)>& visit) {
  std::set<std::string> visited;
  for (const auto& [what, sound] : recordings())
    for (const auto& [operation, tensors] : sound.operations)
      for (const auto& [name, output] : tensors.outputs) {
        visited.insert(operation);
        const std::int64_t last = output.tensor.elements() - 1;
        for (const std::int64_t element : {last / 2, last}) {
          TinyRecording wrong = sound;
          spoil(wrong.output(operation, name), element);
          visit(what + ": " + operation + " " + name + " " + std::to_string(element), wrong,
                operation);
        }
      }
  for (const Operation& operation : kOperations)
    EXPECT_TRUE(visited.contains(std::string(operation.name))) << operation.name;
}

TEST_F(ShrinkTest, WhatIsLeftOfEveryOperationFails) {
  int failures = 0;
  for_each_fault(
      [&](const std::string& what, const TinyRecording& wrong, const std::string& operation) {
        SCOPED_TRACE(what);
        wrong.write(path("tiny.h5"));
        const Shrunk shrunk = shrink(operation);
        if (shrunk.not_written == "nothing fails") return; // nothing at or beyond a row is compared
        ++failures;
        expect_failure(operation, shrunk);
        EXPECT_LE(shrunk.bytes_after, shrunk.bytes_before);
        for (const Shrunk::Extent& extent : shrunk.extents) {
          EXPECT_LT(extent.to, extent.from) << extent.name;
          if (extent.name == "rows") {
            EXPECT_EQ(extent.to, 1);
          }
        }
        std::filesystem::remove(path("small.h5"));
      });
  EXPECT_GT(failures, 60);
}

/// Two sides share 16 bytes that are neither a repeated word nor a few different bytes, which
/// scales that are powers of two have in common by chance.
bool share_a_window(const RecordedOperation& a, const RecordedOperation& b) {
  const auto windows = [](const RecordedOperation& operation) {
    std::set<std::string> all;
    for (const auto* side : {&operation.inputs, &operation.outputs})
      for (const auto& [name, recorded] : *side) {
        const Tensor& tensor = recorded.tensor;
        if (tensor.dtype == Dtype::int32 || tensor.dtype == Dtype::int64) continue;
        const std::string bytes(tensor.as<char>(), tensor.bytes.size());
        for (std::size_t at = 0; at + 16 <= bytes.size(); ++at)
          if (std::set<char>(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                             bytes.begin() + static_cast<std::ptrdiff_t>(at + 16))
                  .size() > 6)
            all.insert(bytes.substr(at, 16));
      }
    return all;
  };
  const auto first = windows(a);
  for (const std::string& window : windows(b))
    if (first.contains(window)) return true;
  return false;
}

TEST_F(ShrinkTest, ScrambledValuesFailAndTellNothing) {
  for_each_fault(
      [&](const std::string& what, const TinyRecording& wrong, const std::string& operation) {
        SCOPED_TRACE(what);
        wrong.write(path("tiny.h5"));
        const Shrunk shrunk = shrink(operation, true);
        if (shrunk.not_written == "nothing fails") return;
        expect_failure(operation, shrunk);
        if (!shrunk.not_written.empty()) return;
        EXPECT_TRUE(shrunk.seed && *shrunk.seed >= 5);
        EXPECT_FALSE(share_a_window(wrong.operations.at(operation), small(operation)));
        std::filesystem::remove(path("small.h5"));
      });
}

TEST_F(ShrinkTest, ValuesStayWhatTheyAre) {
  TinyRecording wrong = testing::tiny_layer();
  wrong.output("index_key_norm", "index_k").as<std::uint16_t>()[3 * 128 + 7] ^= 0x0400;
  wrong.write(path("tiny.h5"));
  const Shrunk shrunk = shrink("index_key_norm");
  EXPECT_EQ(shrunk.extents.size(), 1u);
  const RecordedOperation left = small("index_key_norm");
  const auto row = [&](const Tensor& tensor, std::int64_t index) {
    const auto first = tensor.bytes.begin() + index * 256;
    return std::vector<std::byte>(first, first + 256);
  };
  EXPECT_EQ(left.inputs.at("index_k_raw").tensor.bytes,
            row(wrong.input("index_key_norm", "index_k_raw"), 3));
  EXPECT_EQ(left.outputs.at("index_k").tensor.bytes,
            row(wrong.output("index_key_norm", "index_k"), 3));
}

TEST_F(ShrinkTest, ItSaysWhatItWas) {
  TinyRecording wrong = testing::tiny_recording();
  wrong.output("index_logits_decode", "logits").as<float>()[6] += 1;
  wrong.write(path("tiny.h5"));
  const Shrunk shrunk = shrink("index_logits_decode");
  EXPECT_EQ(shrunk.subject + "/" + shrunk.against, "reference/recorded");
  EXPECT_EQ(shrunk.reproduce,
            "dsakit replay " + path("small.h5") + " --operation index_logits_decode");
  const auto reader = RecordingReader::open(path("small.h5"));
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->provenance().at("command"), "dsakit shrink --operation index_logits_decode");
  const std::string& text = reader->provenance().at("shrunk");
  EXPECT_TRUE(text.starts_with("step 0 index_logits_decode logits, where reference against "
                               "recorded fails; rows 3 to 1"))
      << text;
  EXPECT_EQ(text.find('/'), std::string::npos) << "a path: " << text;
}

TEST_F(ShrinkTest, NothingIsWrittenWhereNothingFails) {
  testing::tiny_layer().write(path("tiny.h5"));
  EXPECT_EQ(shrink("sparse_attention").not_written, "nothing fails");
  EXPECT_FALSE(std::filesystem::exists(path("small.h5")));
}

// Held to the reference's very bits, a right kernel fails where its sums round: our own kernel's
// failure, for which heads of the indexer and keys of attention may go as well.
TEST_F(ShrinkTest, AKernelsFailureLosesTermsOfItsSums) {
  std::ofstream(path("rules.json")) << R"({"operation": "sparse_attention", "rules": [
             {"match": "latent|lse", "subject": "kernel", "gate": "exact", "why": "a test"},
             {"match": "latent|lse", "gate": "derived", "why": "a test"}]})";
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.replace_from(path("rules.json")));
  testing::tiny_layer().write(path("tiny.h5"));
  ShrinkOptions options;
  options.input = path("tiny.h5");
  options.output = path("small.h5");
  options.operation = "sparse_attention";
  const auto shrunk = harness::shrink(options, rules);
  ASSERT_TRUE(shrunk) << shrunk.status().what();
  ASSERT_EQ(shrunk->not_written, "");
  EXPECT_EQ(shrunk->subject + "/" + shrunk->against, "kernel/reference");
  const RecordedOperation left = small("sparse_attention");
  EXPECT_EQ(left.inputs.at("mla_query").tensor.shape, (Shape{1, 1, 576}));
  EXPECT_LE(left.inputs.at("slots").tensor.elements(), 2);

  ReplayOptions replay_options;
  replay_options.paths = {path("small.h5")};
  const auto report = harness::replay(replay_options, rules);
  ASSERT_TRUE(report);
  EXPECT_EQ(find(*report, "sparse_attention", shrunk->tensor, "kernel", "reference")->verdict,
            Verdict::fail);
  EXPECT_EQ(find(*report, "sparse_attention", shrunk->tensor, "reference", "recorded")->verdict,
            Verdict::pass)
      << "the recorded output is the reference's";
}

/// A pool of 100 MB, of which few rows read much.
TinyRecording large_layer() {
  using namespace testing::tiny;
  TinyRecording r = testing::tiny_layer();
  r.contract["page_size"] = "64";
  std::mt19937 random(3);
  const auto ids = [&](std::int64_t n, std::int64_t below) {
    return draw<std::int32_t>(
        n, [&] { return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(below)); });
  };
  auto& attention = r.operations.at("sparse_attention");
  constexpr std::int64_t kMlaPages = 2400, kRows = 4, kTopk = 2048;
  RecordedTensor& cache = attention.inputs.at("mla_cache");
  cache.tensor = Tensor(Dtype::uint8, {kMlaPages, 64, 656});
  for (std::int64_t slot = 0; slot < kMlaPages * 64; ++slot)
    testing::random_mla_record(cache.tensor.as<std::uint8_t>() + slot * 656, random);
  std::normal_distribution<float> normal;
  attention.inputs.at("mla_query") =
      bf16({kRows, 2, 576}, draw<std::uint16_t>(kRows * 2 * 576, [&] {
             return reference::float_to_bf16(normal(random) / 8);
           }));
  attention.inputs.at("slots") =
      tensor(Dtype::int32, {kRows, kTopk}, ids(kRows * kTopk, kMlaPages * 64));
  attend(attention, MlaScaleRead::fp32);

  auto& decode = r.operations["index_logits_decode"];
  constexpr std::int64_t kIndexPages = 11'900, kColumns = kIndexPages / 2;
  const auto codes = [&](std::int64_t n) {
    return draw<std::uint8_t>(n, [&] { return static_cast<std::uint8_t>(random() % 0x7F); });
  };
  std::vector<std::uint8_t> pages = codes(kIndexPages * 64 * 132);
  for (std::int64_t page = 0; page < kIndexPages; ++page)
    for (std::int64_t token = 0; token < 64; ++token) {
      const float scale = 0.25f;
      std::memcpy(pages.data() + page * 64 * 132 + 64 * 128 + 4 * token, &scale, sizeof scale);
    }
  std::vector<std::int32_t> table(static_cast<std::size_t>(kIndexPages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  decode.inputs["index_q_fp8"] = tensor(Dtype::float8_e4m3fn, {4, 2, 128}, codes(4 * 2 * 128));
  decode.inputs["index_cache"] = tensor(Dtype::uint8, {kIndexPages, 64 * 132}, pages);
  decode.inputs["index_weights_folded"] =
      tensor(Dtype::float32, {4, 2}, draw<float>(8, [&] { return normal(random); }));
  decode.inputs["block_table"] = tensor(Dtype::int32, {2, kColumns}, table);
  decode.inputs["row_lens"] = tensor<std::int32_t>(
      Dtype::int32, {4}, {kColumns * 64, kColumns * 64 - 5, 3000, kColumns * 64 - 70});
  decode.outputs["logits"] = tensor<float>(Dtype::float32, {4, kColumns * 64}, {});
  decode.outputs["logits"].attributes["accumulation"] = "fp32";
  fill_outputs(r, "index_logits_decode");
  for (const char* other : {"mla_cache_write", "topk_slots"})
    r.operations.erase(other); // of pages of 2
  return r;
}

// From 100 MB to less than 100 kB in a minute, on two cores; a sum only where values are scrambled.
TEST_F(ShrinkTest, AHundredMegabytes) {
  TinyRecording wrong = large_layer();
  wrong.output("index_logits_decode", "logits").as<float>()[3 * 5950 * 64 + 123'456] += 30;
  wrong.output("sparse_attention", "latent").as<std::uint16_t>()[3 * 2 * 512 + 700] ^= 0x0400;
  wrong.write(path("tiny.h5"));
  for (const char* operation : {"index_logits_decode", "sparse_attention"}) {
    const auto start = std::chrono::steady_clock::now();
    const Shrunk shrunk = shrink(operation, std::string(operation) == "sparse_attention");
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    expect_failure(operation, shrunk);
    EXPECT_GT(shrunk.bytes_before, 100'000'000);
    const auto size = std::filesystem::file_size(path("small.h5"));
    EXPECT_LT(size, 100'000u);
#ifndef __SANITIZE_ADDRESS__ // there it takes three times as long
    EXPECT_LT(time.count(), 60);
#endif
    std::printf("%s: %lld bytes of tensors to a file of %lld in %.1f s, %lld trials\n", operation,
                static_cast<long long>(shrunk.bytes_before), static_cast<long long>(size),
                time.count(), static_cast<long long>(shrunk.trials));
    std::filesystem::remove(path("small.h5"));
  }
}

TEST(Minimal, NothingThatIsLeftCanGo) {
  const std::set<std::int64_t> needed = {3, 41, 97};
  int trials = 0;
  const auto fails = [&](const Indices& kept) {
    ++trials;
    return std::includes(kept.begin(), kept.end(), needed.begin(), needed.end());
  };
  EXPECT_EQ(minimal(all_of(100), fails), (Indices{3, 41, 97}));
  EXPECT_LT(trials, 400);
  EXPECT_EQ(minimal(all_of(1), fails), Indices{0});
}

class ShrinkUnderRules : public ShrinkTest {
protected:
  /// Why nothing was written; empty: it was.
  std::string not_written(const TinyRecording& recording, const std::string& operation,
                          Rules& rules) const {
    recording.write(path("tiny.h5"));
    ShrinkOptions options;
    options.input = path("tiny.h5");
    options.output = path("small.h5");
    options.operation = operation;
    const auto shrunk = harness::shrink(options, rules);
    EXPECT_TRUE(shrunk) << shrunk.status().what();
    return shrunk ? shrunk->not_written : "refused";
  }

  std::string not_written(const TinyRecording& recording, const std::string& operation,
                          const std::string& gate) const {
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override(gate));
    return not_written(recording, operation, rules);
  }

  Verdict verdict_of_small(const std::string& gate) const {
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.add_override(gate));
    ReplayOptions options;
    options.paths = {path("small.h5")};
    const auto report = replay_with(options, rules);
    EXPECT_FALSE(report.files[0].bad_input) << report.files[0].reason;
    return report.verdict();
  }

  static Report replay_with(const ReplayOptions& options, Rules& rules) {
    const auto report = harness::replay(options, rules);
    EXPECT_TRUE(report) << report.status().what();
    return report ? *report : Report{};
  }
};

TEST_F(ShrinkUnderRules, ADifferenceInsideTheBandIsNoFailure) {
  const std::string band = "topk_indices.fused=topk_set,band=fp32";
  EXPECT_EQ(not_written(testing::tiny_topk(0), "topk", band), "nothing fails");
  EXPECT_EQ(not_written(testing::tiny_topk(0), "topk", "topk_indices.fused=topk_set"), "");
}

// The small file lacks the operation that the band comes from; it has the band.
TEST_F(ShrinkUnderRules, ASmallFileBringsItsBand) {
  const std::string band = "topk_indices.fused=topk_set,band=fp32";
  ASSERT_EQ(not_written(testing::tiny_topk(2), "topk", band), "");
  const RecordedOperation topk = small("topk");
  ASSERT_TRUE(topk.inputs.contains("logits_band"));
  EXPECT_EQ(topk.inputs.at("logits_band").tensor.shape, topk.inputs.at("logits").tensor.shape);
  EXPECT_EQ(verdict_of_small(band), Verdict::fail);
  std::filesystem::rename(path("small.h5"), path("tiny.h5"));
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override(band));
  ReplayOptions options;
  options.paths = {path("tiny.h5")};
  // A band that reaches over every score lets everything pass.
  auto reader = RecordingReader::open(path("tiny.h5"));
  ASSERT_TRUE(reader);
  TinyRecording wide;
  wide.contract = reader->contract(0);
  wide.operations["topk"] = topk;
  Tensor& off = wide.input("topk", "logits_band");
  std::fill_n(off.as<float>(), off.elements(), 1e4f);
  wide.write(path("tiny.h5"));
  EXPECT_EQ(replay_with(options, rules).verdict(), Verdict::pass);
}

TEST_F(ShrinkUnderRules, LimitsOfARuleAreObeyed) {
  TinyRecording wrong = testing::tiny_recording();
  wrong.output("index_cache_gather", "k_scale").as<float>()[3] = 5;
  const std::string operation = "index_cache_gather";
  EXPECT_EQ(not_written(wrong, operation, "k_scale=exact,budget=1:0.5"), "nothing fails");
  EXPECT_EQ(not_written(wrong, operation, "k_scale=exact,budget=1:0.1"), "");
  const TinyRecording sound = testing::tiny_recording();
  TinyRecording off = sound;
  Tensor& logits = off.output("index_logits_decode", "logits");
  logits.as<float>()[0] *= 1 + 0x1p-20f;
  EXPECT_EQ(not_written(off, "index_logits_decode", "logits=derived"), "nothing fails");
  EXPECT_EQ(not_written(off, "index_logits_decode", "logits=derived,l2=0"), "")
      << "the norm alone fails";
}

TEST_F(ShrinkUnderRules, AWaivedFailureIsPassedOver) {
  TinyRecording wrong = testing::tiny_recording();
  wrong.output("index_cache_gather", "k_scale").as<float>()[3] = 5;
  const auto waive = [&](const std::string& match) {
    std::ofstream(path("waivers.json"))
        << R"({"waivers": [{"operation": "index_cache_gather", "match": ")" << match
        << R"(", "reason": "known", "expires": "9999-12-31"}]})";
    Rules rules = Rules::built_in();
    EXPECT_TRUE(rules.waivers.add_file(path("waivers.json")));
    return not_written(wrong, "index_cache_gather", rules);
  };
  EXPECT_EQ(waive("k_scale"), "nothing fails that is not waived");
  EXPECT_EQ(waive("k_fp8"), "");
}

/// What a replay of the small file says of that tensor.
class ShrunkHint : public ShrinkTest {
protected:
  std::string hint_in(const std::string& file, const std::string& operation,
                      const std::string& tensor) const {
    ReplayOptions options;
    options.paths = {path(file)};
    const auto report = run(options);
    EXPECT_TRUE(report) << report.status().what();
    return report ? find(*report, operation, tensor, "reference", "recorded")->hint : "";
  }
  std::string noted() const {
    const auto reader = RecordingReader::open(path("small.h5"));
    EXPECT_TRUE(reader) << reader.status().what();
    const auto found = reader->provenance().find("hint");
    return found == reader->provenance().end() ? "" : found->second;
  }
};

// Scales that are one exponent off are told from four on; of the row that is left one is wrong.
TEST_F(ShrunkHint, IsThatOfTheWholeWhereTooLittleIsLeft) {
  TinyRecording wrong = testing::tiny_layer();
  Tensor& scale = wrong.output("index_query_quant", "index_q_scale");
  for (const int i : {0, 3, 4, 8})
    scale.as<float>()[i] *= 2;
  wrong.write(path("tiny.h5"));
  const std::string whole = hint_in("tiny.h5", "index_query_quant", "index_q_scale");
  ASSERT_NE(whole, "");
  shrink("index_query_quant");
  EXPECT_EQ(noted(), "index_q_scale: " + whole);
  EXPECT_EQ(hint_in("small.h5", "index_query_quant", "index_q_scale"),
            whole + " (as seen in the recording that this was cut from)");
}

// Zeros in place of -1: one is left, and says the same.
TEST_F(ShrunkHint, StaysWhatItWas) {
  TinyRecording wrong = testing::tiny_layer();
  Tensor& ids = wrong.output("topk", "topk_indices");
  int zeros = 0;
  for (std::int64_t i = 0; i < ids.elements(); ++i)
    if (ids.as<std::int32_t>()[i] < 0) ids.as<std::int32_t>()[i] = 0, ++zeros;
  ASSERT_GT(zeros, 0);
  wrong.write(path("tiny.h5"));
  const std::string whole = hint_in("tiny.h5", "topk", "topk_indices");
  EXPECT_NE(whole.find("are 0 where -1 belongs"), std::string::npos) << whole;
  shrink("topk");
  EXPECT_EQ(noted(), "");
  EXPECT_EQ(hint_in("small.h5", "topk", "topk_indices"), whole);
}

TEST_F(ShrunkHint, NoneOfTheWholeIsNoneOfThePart) {
  TinyRecording small = testing::tiny_layer();
  Tensor& ids = small.output("topk", "topk_indices");
  std::int64_t at = 0;
  while (at < ids.elements() && ids.as<std::int32_t>()[at] >= 0)
    ++at;
  ASSERT_LT(at, ids.elements());
  ids.as<std::int32_t>()[at] = 0;
  small.provenance["hint"] = "topk_indices: none";
  small.write(path("tiny.h5"));
  EXPECT_EQ(hint_in("tiny.h5", "topk", "topk_indices"), "");
  small.provenance["hint"] = "logits: something else";
  small.write(path("tiny.h5"));
  EXPECT_NE(hint_in("tiny.h5", "topk", "topk_indices"), "") << "of another tensor";
}

TEST(WholeHint, CountsAndPlacesAsideAPartIsTheSame) {
  EXPECT_TRUE(is_part_of_hint("1 of 1 scales are off", "4 of 9 scales are off"));
  EXPECT_TRUE(is_part_of_hint("b from [3] on", "a; or: b from [1, 20] on"));
  EXPECT_TRUE(is_part_of_hint("", "a"));
  EXPECT_FALSE(is_part_of_hint("a; or: c", "a; or: b"));
  EXPECT_FALSE(is_part_of_hint("right under page_size=16", "right under page_size=64"));
}

} // namespace
} // namespace dsakit::harness
