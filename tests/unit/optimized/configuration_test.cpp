// Configurations: asked for, tuned, or a kernel's own; and the tuned files that say which.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "dsakit/optimized/kernel.hpp"
#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/optimized/topk.hpp"

namespace dsakit::optimized {
namespace {

constexpr const char* kLanes942 = "host lanes (gfx942)";

TopkParams topk_problem() {
  TopkParams params{};
  params.rows = 60;
  params.k = 2048;
  params.logits_stride = 131072;
  return params;
}

SparseAttentionParams attention_problem(std::int32_t k) {
  SparseAttentionParams params{};
  params.tokens = 1;
  params.heads = 128;
  params.k = k;
  params.page_size = 64;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.q_token_stride = 128 * 576;
  return params;
}

/// DSAKIT_TUNED names a file of its own as long as this lives.
class TunedFile {
public:
  explicit TunedFile(const std::string& text) {
    static int number = 0;
    path_ = (std::filesystem::temp_directory_path() / ("dsakit_tuned_" + std::to_string(getpid()) +
                                                       "_" + std::to_string(number++) + ".json"))
                .string();
    std::ofstream(path_) << text;
    setenv("DSAKIT_TUNED", path_.c_str(), 1);
  }
  ~TunedFile() {
    unsetenv("DSAKIT_TUNED");
    std::filesystem::remove(path_);
  }
  TunedFile(const TunedFile&) = delete;
  TunedFile& operator=(const TunedFile&) = delete;

private:
  std::string path_;
};

std::string tuned(const std::string& device, const std::string& configuration,
                  const std::string& operation = "topk", const std::string& kernel = "radix64",
                  const std::string& problem_class = "rows=64 columns=131072 k=2048") {
  return R"({"schema": "dsakit.tuned/1", "choices": [{"device": ")" + device +
         R"(", "operation": ")" + operation + R"(", "kernel": ")" + kernel +
         R"(", "problem_class": ")" + problem_class + R"(", "configuration": )" + configuration +
         "}]}";
}

TEST(Configuration, TextAndBack) {
  const Configuration configuration = {{"lanes", 512}, {"splits", 0}};
  EXPECT_EQ(configuration_text(configuration), "lanes=512,splits=default");
  EXPECT_EQ(*parse_configuration("lanes=512,splits=default"), configuration);
  EXPECT_EQ(*parse_configuration("splits=0,lanes=512"), configuration);
  for (const char* text : {"", "lanes", "lanes=", "=4", "lanes=4x", "lanes=-1", "lanes=1,",
                           "lanes=1,,a=2", "lanes=99999999999", "lanes=1,lanes=2"}) {
    const auto parsed = parse_configuration(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.status().code(), Code::bad_input);
  }
}

TEST(Configuration, ClassesRoundUpToPowersOfTwo) {
  EXPECT_EQ(class_of({{"rows", 33}, {"k", 2048}, {"none", 0}, {"one", 1}}),
            "rows=64 k=2048 none=0 one=1");
  EXPECT_EQ(class_of({{"rows", std::int64_t{1} << 62}}), "rows=4611686018427387904");
  EXPECT_NE(class_of({{"rows", (std::int64_t{1} << 62) + 1}}), "");
}

TEST(Configuration, SpacesListKeysWithValuesThatLaunchersTake) {
  bool lanes = false, splits = false;
  for (const ConfigurationSpace& space : configuration_spaces())
    for (const ConfigurationKey& key : space.keys) {
      EXPECT_FALSE(key.meaning.empty());
      lanes |= space.operation == "topk" && key.key == "lanes" && key.values.size() == 3;
      splits |= space.operation == "sparse_attention" && key.key == "splits";
    }
  EXPECT_TRUE(lanes && splits);
  for (const Arch arch : {Arch::gfx942, Arch::gfx950})
    for (const auto& kernel : kernels<SparseAttentionParams>(arch))
      for (const auto& tunable : kernel.tuning->tunables)
        for (const std::int32_t value : tunable.values) {
          SparseAttentionParams params = attention_problem(2048);
          params.*tunable.field = value;
          EXPECT_TRUE(kernel.supports(params)) << tunable.key << " " << value;
        }
}

TEST(Configuration, AnUntunedDeviceTakesWhatTheKernelLikes) {
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, topk_problem())->configuration,
            (Configuration{{"lanes", 512}}));
  for (const auto& [k, splits] : {std::pair{0, 1}, {511, 1}, {2048, 4}, {1 << 20, 64}})
    EXPECT_EQ(choose(Arch::gfx942, kLanes942, attention_problem(k))->params.splits, splits) << k;
}

TEST(Configuration, TheTunedChoiceIsTakenOnItsDeviceForItsClass) {
  const TunedFile file(tuned(kLanes942, R"({"lanes": 1024})"));
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, topk_problem())->params.lanes, 1024);
  EXPECT_EQ(choose(Arch::gfx950, "host lanes (gfx950)", topk_problem())->params.lanes, 512);
  TopkParams other = topk_problem();
  other.rows = 65;
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, other)->params.lanes, 512);
}

TEST(Configuration, TheCallerAndWhatIsAskedForComeFirst) {
  const TunedFile file(tuned(kLanes942, R"({"lanes": 1024})"));
  TopkParams params = topk_problem();
  params.lanes = 256;
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, params)->params.lanes, 256);
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, params, {{"lanes", 1024}})->params.lanes, 1024);
  // The default: whatever was tuned, and whatever the caller said.
  EXPECT_EQ(choose(Arch::gfx942, kLanes942, params, {{"lanes", 0}})->params.lanes, 512);
}

TEST(Configuration, WhatNoKernelListsIsBadInput) {
  const auto refusal = [](const Configuration& asked) {
    const auto choice = choose(Arch::gfx942, kLanes942, topk_problem(), asked);
    EXPECT_EQ(choice.status().code(), Code::bad_input);
    return choice.status().what();
  };
  EXPECT_EQ(refusal({{"splits", 4}}), "radix64: this kernel has no configuration splits");
  EXPECT_EQ(refusal({{"lanes", 128}}),
            "radix64: configuration lanes: found 128, which this kernel does not list");
}

TEST(Configuration, TuningDoesNotMendAProblemThatIsRefused) {
  SparseAttentionParams params = attention_problem(4);
  params.splits = 65;
  const auto choice = choose(Arch::gfx942, kLanes942, params);
  EXPECT_EQ(choice.status().code(), Code::unsupported);
  EXPECT_NE(choice.status().what().find("splits is 65, want 1 to 64"), std::string::npos);
}

TEST(Tuned, WhatIsWrongIsNamedWithItsPlace) {
  const auto problem = [](const std::string& text) {
    const auto choices = parse_tuned("t.json", text);
    EXPECT_EQ(choices.status().code(), Code::bad_input);
    return choices.status().what();
  };
  EXPECT_EQ(problem("{\"schema\": "), "t.json: byte 12: found no valid JSON, want some");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/1", "choices": [], "choices": []})"),
            "t.json: found the key choices twice, want it once");
  EXPECT_EQ(problem(tuned("d", R"({"lanes": 512, "lanes": 256})")),
            "t.json: found the key lanes twice, want it once");
  EXPECT_EQ(problem(tuned("d", R"({"lanes": 1e999})")),
            "t.json: found a number beyond 1.8e308, want smaller ones");
  EXPECT_EQ(problem("[]"), "t.json: schema: found another, want dsakit.tuned/1");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/2", "choices": []})"),
            "t.json: schema: found another, want dsakit.tuned/1");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/1", "choices": {}})"),
            "t.json: choices: found no list, want one");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/1", "choices": [7]})"),
            "t.json: choices[0]: found no object, want one");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/1", "choices": [{"device": 1}]})"),
            "t.json: choices[0]: device: found no text, want one");
  EXPECT_EQ(problem(R"({"schema": "dsakit.tuned/1", "choices": [{"devise": 1}]})"),
            "t.json: choices[0]: found the key devise, want device, operation, kernel, "
            "problem_class and configuration");
  EXPECT_NE(problem(tuned("d", R"({"lanes": 512})", "topkk")).find("found operation topkk"),
            std::string::npos);
  EXPECT_NE(problem(tuned("d", R"({"lanes": 512})", "topk", "radix")).find("kernel radix, want"),
            std::string::npos);
  EXPECT_EQ(problem(tuned("d", R"({"waves": 4})")),
            "t.json: choices[0]: configuration: found waves, want one of lanes");
  for (const char* value : {"300", "0", "512.5", "\"512\"", "1e99", "4294967808"})
    EXPECT_EQ(problem(tuned("d", std::string(R"({"lanes": )") + value + "}"))
                  .find("t.json: choices[0]: configuration lanes: found "),
              0u)
        << value;
  EXPECT_EQ(problem(tuned("d", "{}")),
            "t.json: choices[0]: configuration: found no object with keys, want one");
  std::string twice = tuned("d", R"({"lanes": 512})");
  const std::string entry = twice.substr(twice.find("[{") + 1);
  twice.replace(twice.size() - 2, 2, "," + entry);
  EXPECT_EQ(problem(twice), "t.json: choices[1]: found topk rows=64 columns=131072 k=2048 on d "
                            "twice, want it once");
}

TEST(Tuned, ABadFileIsBadInputOfEveryChoiceAndNeverIgnored) {
  {
    const TunedFile file("not JSON");
    const auto choice = choose(Arch::gfx942, kLanes942, topk_problem());
    EXPECT_EQ(choice.status().code(), Code::bad_input);
    EXPECT_NE(choice.status().what().find("DSAKIT_TUNED: /"), std::string::npos);
    EXPECT_NE(choice.status().what().find(".json: byte "), std::string::npos);
  }
  setenv("DSAKIT_TUNED", "/nowhere/tuned.json", 1);
  EXPECT_EQ(tuned_choices().status().what(),
            "DSAKIT_TUNED: /nowhere/tuned.json: cannot be read, or is empty");
  setenv("DSAKIT_TUNED", "/dev/zero", 1);
  EXPECT_EQ(tuned_choices().status().what(),
            "DSAKIT_TUNED: /dev/zero: found no ordinary file, want one");
  unsetenv("DSAKIT_TUNED");
  EXPECT_TRUE(tuned_choices());
}

} // namespace
} // namespace dsakit::optimized
