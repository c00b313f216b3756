#include "dsakit/harness/compare_paths.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include "dsakit/harness/export.hpp"
#include "dsakit/harness/safetensors.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_mxfp4.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::harness {
namespace {

using testing::TempFolder;
using testing::tiny_recording;
using testing::TinyRecording;

using testing::write_file;

using Tensors = std::map<std::string, Tensor>;

Tensor float_tensor(const std::vector<float>& values, Shape shape = {}) {
  Tensor tensor(Dtype::float32,
                shape.empty() ? Shape{static_cast<std::int64_t>(values.size())} : shape);
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

class ComparePaths : public ::testing::Test {
protected:
  std::string write(const std::string& name, const Tensors& tensors) const {
    std::vector<SafetensorsOutput> outputs;
    for (const auto& [tensor_name, tensor] : tensors)
      outputs.push_back({tensor_name, tensor.dtype, tensor.shape,
                         [&bytes = tensor.bytes](const BlockSink& sink) { return sink(bytes); }});
    const Status status = write_safetensors(folder_ / name, {}, outputs);
    EXPECT_TRUE(status) << status.what();
    return folder_ / name;
  }

  Result<Report> compare(const std::string& got, const std::string& want) {
    Rules rules = Rules::built_in();
    options_.got = got;
    options_.want = want;
    return compare_paths(options_, rules);
  }

  Report report(const std::string& got, const std::string& want) {
    auto made = compare(got, want);
    EXPECT_TRUE(made) << made.status().what();
    return made ? *made : Report{};
  }

  /// The message, without the names of the two files.
  std::string refusal(const std::string& got, const std::string& want) {
    const auto made = compare(got, want);
    EXPECT_FALSE(made);
    EXPECT_EQ(made.status().code(), Code::bad_input);
    return made.status().what();
  }

  void map(const std::string& text) {
    auto parsed = parse_map(text);
    ASSERT_TRUE(parsed) << parsed.status().what();
    options_.maps.push_back(*parsed);
  }

  TempFolder folder_;
  CompareOptions options_;
};

TEST_F(ComparePaths, TensorsAreMatchedByName) {
  const auto a = write("a.safetensors", {{"x", float_tensor({1, 2})}, {"y", float_tensor({3})}});
  const auto b = write("b.safetensors", {{"y", float_tensor({3})}, {"x", float_tensor({1, 2})}});
  const Report same = report(a, b);
  ASSERT_EQ(same.lines.size(), 2u);
  EXPECT_EQ(same.verdict(), Verdict::pass);
  EXPECT_EQ(same.lines[0].tensor, "x");
  EXPECT_EQ(same.lines[0].elements, 2);
  EXPECT_EQ(same.lines[0].ulp_max, 0);
}

TEST_F(ComparePaths, EveryBitCounts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float other = std::bit_cast<float>(0x7FC00001u);
  const auto a =
      write("a.safetensors", {{"nan", float_tensor({nan})}, {"zero", float_tensor({0.0f})}});
  const auto b =
      write("b.safetensors", {{"nan", float_tensor({other})}, {"zero", float_tensor({-0.0f})}});
  for (const ReportLine& line : report(a, b).lines) {
    EXPECT_EQ(line.verdict, Verdict::fail) << line.tensor;
    EXPECT_EQ(line.mismatches, 1) << line.tensor;
  }
  EXPECT_EQ(report(a, a).verdict(), Verdict::pass);
}

TEST_F(ComparePaths, PlacesOfALargeTensorAreThoseOfTheWhole) {
  const Shape shape = {700, 1000}; // several pieces of 1 MiB
  std::vector<float> values(700'000, 1.0f);
  const auto b = write("b.safetensors", {{"x", float_tensor(values, shape)}});
  values[300'123] = 1.5f;
  values[600'456] = 3.0f;
  values[699'999] = 2.0f;
  const auto a = write("a.safetensors", {{"x", float_tensor(values, shape)}});
  const ReportLine line = report(a, b).lines.at(0);
  EXPECT_EQ(line.elements, 700'000);
  EXPECT_EQ(line.mismatches, 3);
  EXPECT_EQ(line.first_at, (std::vector<std::int64_t>{300, 123}));
  EXPECT_EQ(line.worst_at, (std::vector<std::int64_t>{600, 456}));
  EXPECT_EQ(line.got->value, 1.5);
  EXPECT_EQ(line.got->hex, "0x3fc00000");
  EXPECT_EQ(line.want->value, 1);
  EXPECT_EQ(line.worst_abs, 2);
}

TEST_F(ComparePaths, OtherKindsOfTensorsAreNamed) {
  Tensor ints(Dtype::int32, {2});
  const auto a = write("a.safetensors", {{"x", float_tensor({1, 2})}, {"y", float_tensor({1})}});
  const auto b = write("b.safetensors", {{"x", ints}, {"y", float_tensor({1, 2})}});
  EXPECT_EQ(refusal(a, b), a + " and " + b +
                               ": tensor 'x' (and 1 more): found float32 [2] and int32 [2], want "
                               "the same");
}

TEST_F(ComparePaths, ATensorOnOneSideIsBadInputUnlessAllowed) {
  const auto a = write("a.safetensors", {{"x", float_tensor({1})}, {"y", float_tensor({1})}});
  const auto b = write("b.safetensors", {{"x", float_tensor({1})}});
  EXPECT_EQ(refusal(a, b),
            b + ": has no tensor 'y', want it on both sides (--allow-missing skips it)");
  EXPECT_EQ(refusal(b, a),
            b + ": has no tensor 'y', want it on both sides (--allow-missing skips it)");
  options_.allow_missing = true;
  const Report skipped = report(a, b);
  EXPECT_EQ(skipped.verdict(), Verdict::pass);
  EXPECT_EQ(skipped.lines[0].verdict, Verdict::skipped);
  EXPECT_EQ(skipped.lines[0].tensor, "y");
}

TEST_F(ComparePaths, MapsRenameTheTensorsOfWant) {
  const auto a =
      write("a.safetensors", {{"layer.0.q", float_tensor({1})}, {"layer.0.k", float_tensor({2})}});
  const auto b =
      write("b.safetensors", {{"model.q_0", float_tensor({1})}, {"model.k_0", float_tensor({2})}});
  map("^model\\.=");
  map("(.)_(\\d)=layer.$2.$1");
  const Report mapped = report(a, b);
  EXPECT_EQ(mapped.verdict(), Verdict::pass);
  EXPECT_EQ(mapped.lines.size(), 2u);
  EXPECT_NE(mapped.lines[0].reproduce.find("--map '^model\\.=' --map '(.)_(\\d)=layer.$2.$1'"),
            std::string::npos)
      << mapped.lines[0].reproduce;
  map("q=k");
  EXPECT_NE(refusal(a, b).find("found 'model.k_0' and 'model.q_0', which --map both makes"),
            std::string::npos);
}

TEST_F(ComparePaths, AMapThatMatchesNothingIsBadInput) {
  const auto a = write("a.safetensors", {{"x", float_tensor({1})}});
  map("x=x");
  map("y=x");
  EXPECT_EQ(refusal(a, a),
            "--map: found 'y=x', which matches no tensor name of want, want one that does");
  EXPECT_FALSE(parse_map("x"));
  EXPECT_FALSE(parse_map("=x"));
  EXPECT_NE(parse_map("(=x").status().what().find("want a regular expression"), std::string::npos);
  EXPECT_EQ(parse_map("a(?=b)=c")->replacement, "c") << "split at the last =";
}

TEST_F(ComparePaths, ARecordingMeetsItsExport) {
  testing::tiny_mxfp4().write(folder_ / "a.h5");
  const std::string other = folder_ / "a.safetensors";
  ASSERT_TRUE(export_safetensors(folder_ / "a.h5", other));
  for (const auto& [got, want] : {std::pair(folder_ / "a.h5", other), {other, folder_ / "a.h5"}}) {
    const Report same = report(got, want);
    EXPECT_EQ(same.verdict(), Verdict::pass);
    EXPECT_GT(same.lines.size(), 5u);
  }
}

TEST_F(ComparePaths, TheSideThatDiffersIsGot) {
  TinyRecording recording = tiny_recording();
  recording.write(folder_ / "a.h5");
  ASSERT_TRUE(export_safetensors(folder_ / "a.h5", folder_ / "a.safetensors"));
  recording.output("index_cache_gather", "k_scale").as<float>()[3] = 8;
  recording.write(folder_ / "b.h5");
  const auto failed = [](const Report& r) {
    for (const ReportLine& line : r.lines)
      if (line.verdict == Verdict::fail) return line;
    return ReportLine{};
  };
  const ReportLine got = failed(report(folder_ / "b.h5", folder_ / "a.safetensors"));
  EXPECT_EQ(got.tensor, "steps.0.index_cache_gather.outputs.k_scale");
  EXPECT_EQ(got.got->value, 8);
  const ReportLine want = failed(report(folder_ / "a.safetensors", folder_ / "b.h5"));
  EXPECT_EQ(want.want->value, 8);
  EXPECT_EQ(want.got->value, got.want->value);
}

TEST_F(ComparePaths, MapsRenameTheOutputsOfARecording) {
  TinyRecording recording = tiny_recording();
  recording.write(folder_ / "a.h5");
  auto& outputs = recording.operations.at("index_logits_decode").outputs;
  outputs["logits.mine"] = outputs.at("logits");
  outputs.at("logits.mine").attributes["output"] = "logits";
  outputs.erase("logits");
  recording.write(folder_ / "b.h5");
  EXPECT_NE(refusal(folder_ / "a.h5", folder_ / "b.h5").find("has no step 0"), std::string::npos);
  map("outputs\\.logits\\.mine$=outputs.logits");
  EXPECT_EQ(report(folder_ / "a.h5", folder_ / "b.h5").verdict(), Verdict::pass);
  options_.maps.clear();
  map("steps.0.index_logits_decode=steps.0.topk");
  EXPECT_NE(refusal(folder_ / "a.h5", folder_ / "b.h5")
                .find("want an output of the same step and operation"),
            std::string::npos);
}

TEST_F(ComparePaths, FoldersAreMatchedByRelativeName) {
  for (const char* side : {"a", "b"}) {
    std::filesystem::create_directories(folder_ / (std::string(side) + "/deep"));
    tiny_recording().write(folder_ / (std::string(side) + "/one.h5"));
    write(std::string(side) + "/deep/two.safetensors", {{"x", float_tensor({1})}});
  }
  const Report same = report(folder_ / "a", folder_ / "b");
  EXPECT_EQ(same.verdict(), Verdict::pass);
  ASSERT_EQ(same.files.size(), 2u);
  EXPECT_EQ(same.files[0].file, folder_ / "a/deep/two.safetensors");

  write("a/three.safetensors", {{"x", float_tensor({1})}});
  EXPECT_EQ(refusal(folder_ / "a", folder_ / "b"),
            (folder_ / "b") + ": has no file three.safetensors, want it on both sides "
                              "(--allow-missing skips it)");
  options_.allow_missing = true;
  const Report skipped = report(folder_ / "b", folder_ / "a");
  EXPECT_EQ(skipped.verdict(), Verdict::pass);
  ASSERT_EQ(skipped.files.size(), 3u);
  EXPECT_EQ(skipped.files[0].verdict, Verdict::skipped);
  EXPECT_EQ(skipped.files_left_out, 0);
}

TEST_F(ComparePaths, ABadFileOfAFolderIsItsOwnFault) {
  for (const char* side : {"a", "b"}) {
    std::filesystem::create_directories(folder_ / side);
    write(std::string(side) + "/bad.safetensors",
          {{"x", float_tensor(side[0] == 'a' ? std::vector<float>{1} : std::vector<float>{1, 2})}});
    write(std::string(side) + "/good.safetensors", {{"x", float_tensor({1})}});
  }
  const Report made = report(folder_ / "a", folder_ / "b");
  ASSERT_EQ(made.files.size(), 2u);
  EXPECT_TRUE(made.files[0].bad_input);
  EXPECT_NE(made.files[0].reason.find("found float32 [1] and float32 [2]"), std::string::npos);
  EXPECT_EQ(made.files[1].verdict, Verdict::pass);
}

TEST_F(ComparePaths, AFolderAndAFileAreNotComparedNorIsAnEmptyFolder) {
  std::filesystem::create_directories(folder_ / "empty");
  const auto a = write("a.safetensors", {{"x", float_tensor({1})}});
  EXPECT_NE(refusal(folder_ / "empty", a).find("found a folder and a file"), std::string::npos);
  EXPECT_NE(refusal(folder_ / "empty", folder_ / "empty").find("found no .h5 or .safetensors file"),
            std::string::npos);
  EXPECT_NE(refusal(a, folder_ / "none").find("none: cannot be opened"), std::string::npos);
}

TEST_F(ComparePaths, WithoutAReferenceOnlyExactCanBeAskedFor) {
  const auto a = write("a.safetensors", {{"x", float_tensor({1})}});
  Rules rules = Rules::built_in();
  const std::string file = folder_ / "rules.json";
  write_file(file, R"({"operation": "tensors", "rules": [
      {"match": "x", "gate": "derived", "why": "a test"}]})");
  ASSERT_TRUE(rules.replace_from(file));
  options_.got = options_.want = a;
  EXPECT_NE(compare_paths(options_, rules).status().what().find("found gate 'derived', want exact"),
            std::string::npos);
}

TEST_F(ComparePaths, AnInterruptLeavesWhatWasCompared) {
  const auto a =
      write("a.safetensors",
            {{"x", float_tensor({1})}, {"y", float_tensor({2})}, {"z", float_tensor({3})}});
  std::atomic<bool> interrupted{false};
  options_.interrupted = &interrupted;
  options_.progress = [&](double done, const std::string& what) {
    EXPECT_GT(done, 0);
    EXPECT_LE(done, 1);
    if (what == "y") interrupted = true;
  };
  const Report part = report(a, a);
  EXPECT_TRUE(part.partial);
  EXPECT_EQ(part.lines.size(), 2u);
  EXPECT_EQ(part.verdict(), Verdict::pass);
}

TEST_F(ComparePaths, AnInterruptLeavesTheFilesThatWereCompared) {
  for (const char* side : {"a", "b"}) {
    std::filesystem::create_directories(folder_ / side);
    for (const char* file : {"/1.safetensors", "/2.safetensors", "/3.safetensors"})
      write(side + std::string(file), {{"x", float_tensor({1})}});
  }
  std::atomic<bool> interrupted{false};
  options_.interrupted = &interrupted;
  options_.progress = [&](double done, const std::string&) { interrupted = done > 0.5; };
  const Report part = report(folder_ / "a", folder_ / "b");
  EXPECT_TRUE(part.partial);
  EXPECT_EQ(part.files.size(), 2u);
  EXPECT_EQ(part.files_left_out, 1);
}

} // namespace
} // namespace dsakit::harness
