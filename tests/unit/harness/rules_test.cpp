#include "dsakit/harness/rules.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "dsakit/core/operations.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

class RulesTest : public ::testing::Test {
protected:
  RulesTest() : folder_(fs::temp_directory_path() / ("dsakit_rules_" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~RulesTest() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& contents) const {
    std::ofstream(folder_ / name) << contents;
    return (folder_ / name).string();
  }
  std::string folder() const { return folder_.string(); }

private:
  fs::path folder_;
};

TEST_F(RulesTest, EveryFileOfGoldenRulesLoads) {
  int files = 0;
  for (const auto& item : fs::directory_iterator(DSAKIT_SOURCE "/golden/rules")) {
    Rules rules;
    const Status status = rules.replace_from(item.path().string());
    EXPECT_TRUE(status) << status.what();
    ++files;
  }
  // Kernels whose operation is not replayed yet have theirs, too. The formats of one share it.
  std::set<std::string_view> names;
  for (const Operation& operation : kOperations)
    names.insert(operation.name);
  EXPECT_GE(files, static_cast<int>(names.size()));
}

TEST_F(RulesTest, EveryOutputOfEveryOperationHasABuiltInRule) {
  Rules rules = Rules::built_in();
  EXPECT_EQ((*rules.find("index_cache_write", "index_cache", "kernel"))->gate, Gate::exact);
  EXPECT_EQ((*rules.find("index_cache_gather", "k_fp8", "kernel"))->gate, Gate::exact);
  EXPECT_EQ((*rules.find("index_cache_gather", "k_scale", "kernel"))->gate, Gate::exact);
  EXPECT_EQ((*rules.find("index_logits_decode", "logits", "kernel"))->gate, Gate::derived);
  EXPECT_EQ((*rules.find("index_logits_decode", "logits.deepgemm", "kernel"))->gate, Gate::derived);
  EXPECT_TRUE(rules.unused().empty());
}

TEST_F(RulesTest, TheWholeNameMustMatch) {
  Rules rules = Rules::built_in();
  const auto rule = rules.find("index_logits_decode", "logits_of_something", "kernel");
  ASSERT_FALSE(rule);
  EXPECT_EQ(rule.status().code(), Code::bad_input);
}

TEST_F(RulesTest, ARuleMayBeForTheComparisonsOfOneSide) {
  Rules rules = Rules::built_in();
  EXPECT_EQ((*rules.find("index_key_norm", "index_k.cuda", "reference"))->gate, Gate::exact);
  EXPECT_EQ((*rules.find("index_key_norm", "index_k.cuda", "kernel"))->gate, Gate::derived);
  EXPECT_EQ((*rules.find("index_key_norm", "index_k.cuda", "recorded"))->gate, Gate::derived);
  EXPECT_EQ((*rules.find("index_key_norm", "index_k.cpu", "reference"))->gate, Gate::derived);
  ASSERT_TRUE(rules.replace_from(file("r.json", R"({"operation": "index_key_norm", "rules": [
      {"match": ".*", "subject": "kernel", "gate": "exact", "why": "a"}]})")));
  EXPECT_FALSE(rules.find("index_key_norm", "index_k", "reference"));
}

TEST_F(RulesTest, EveryOutputOfTheTableHasARuleForEverySide) {
  Rules rules = Rules::built_in();
  for (const Operation& operation : kOperations) {
    std::istringstream outputs{std::string(operation.outputs)};
    for (std::string output; outputs >> output;)
      for (const char* subject : {"kernel", "reference", "recorded"}) {
        EXPECT_TRUE(rules.find(operation.name, output, subject)) << output;
        EXPECT_TRUE(rules.find(operation.name, output + ".mine", subject)) << output;
      }
  }
  EXPECT_EQ((*rules.find("topk", "topk_indices", "reference"))->gate, Gate::exact);
  EXPECT_EQ((*rules.find("topk", "topk_indices.vllm", "reference"))->gate, Gate::topk_set);
}

TEST_F(RulesTest, TheFirstMatchWins) {
  Rules rules;
  ASSERT_TRUE(rules.replace_from(file("r.json", R"({"operation": "index_cache_gather", "rules": [
      {"match": "k_scale", "gate": "derived", "why": "a"},
      {"match": ".*", "gate": "exact", "why": "b"}]})")));
  EXPECT_EQ((*rules.find("index_cache_gather", "k_scale", "kernel"))->why, "a");
  EXPECT_EQ((*rules.find("index_cache_gather", "k_fp8", "kernel"))->why, "b");
}

TEST_F(RulesTest, AFolderReplacesWhatItNamesAndKeepsTheRest) {
  file(
      "gather.json",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".*", "gate": "exact", "why": "mine"}]})");
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.replace_from(folder()));
  EXPECT_EQ((*rules.find("index_cache_gather", "k_fp8", "kernel"))->why, "mine");
  EXPECT_NE((*rules.find("index_cache_write", "index_cache", "kernel"))->why, "mine");
}

TEST_F(RulesTest, OnlyAskedOperationsHaveUnusedRules) {
  Rules rules = Rules::built_in();
  EXPECT_TRUE(rules.find("topk", "topk_indices", "kernel"));
  EXPECT_TRUE(rules.unused().empty()) << "of a built-in rule nobody needs to hear";
  ASSERT_TRUE(rules.replace_from(file("r.json", R"({"operation": "index_cache_gather", "rules": [
      {"match": "k_fp8", "gate": "exact", "why": "a"}, {"match": "k_.*", "gate": "exact", "why": "b"}]})")));
  EXPECT_TRUE(rules.find("index_cache_gather", "k_fp8", "kernel"));
  ASSERT_EQ(rules.unused().size(), 1u);
}

TEST_F(RulesTest, ARuleMayHaveABudgetANormAndABand) {
  Rules rules;
  ASSERT_TRUE(rules.replace_from(file("r.json", R"({"operation": "topk", "rules": [
      {"match": "a", "gate": "derived", "why": "", "budget": {"count": 3, "fraction": 1e-4},
       "relative_l2": 1e-3},
      {"match": "b", "gate": "topk_set", "why": "", "band": "fp32"},
      {"match": "c", "gate": "exact", "why": ""}]})")));
  const Rule& a = **rules.find("topk", "a", "kernel");
  EXPECT_EQ(a.limits.budget_count, 3);
  EXPECT_EQ(a.limits.budget_fraction, 1e-4);
  EXPECT_EQ(a.limits.relative_l2, 1e-3);
  EXPECT_EQ((*rules.find("topk", "b", "kernel"))->band, Accumulation::fp32);
  const Rule& c = **rules.find("topk", "c", "kernel");
  EXPECT_EQ(c.limits.budget_count, 0);
  EXPECT_FALSE(c.limits.relative_l2);
  EXPECT_FALSE(c.band);
}

TEST_F(RulesTest, AnOverrideComesBeforeAllRulesAndTheFirstOfThemWins) {
  Rules rules = Rules::built_in();
  ASSERT_TRUE(rules.add_override("index_logits_decode/logits=exact,budget=2:0.5,l2=0.25"));
  ASSERT_TRUE(rules.add_override("logits.*=derived"));
  ASSERT_TRUE(rules.add_override("lse=exact"));
  const Rule& first = **rules.find("index_logits_decode", "logits", "kernel");
  EXPECT_EQ(first.gate, Gate::exact);
  EXPECT_EQ(first.limits.budget_count, 2);
  EXPECT_EQ(first.limits.budget_fraction, 0.5);
  EXPECT_EQ(first.limits.relative_l2, 0.25);
  EXPECT_EQ((*rules.find("index_logits_prefill", "logits.x", "kernel"))->why,
            "given on the command line");
  EXPECT_EQ((*rules.find("topk", "topk_indices", "kernel"))->gate, Gate::exact);
  ASSERT_EQ(rules.unused().size(), 1u);
  EXPECT_NE(rules.unused()[0].find("\"lse\""), std::string::npos) << rules.unused()[0];
}

TEST_F(RulesTest, BadOverridesSayWhatTheyWant) {
  for (const char* text :
       {"", "logits", "=exact", "logits=", "logits=loose", "(=exact", "a=exact,", "a=exact,tol=1",
        "a=exact,budget=3", "a=exact,budget=3:", "a=exact,budget=3:x", "a=exact,budget=-1:0.5",
        "a=exact,budget=3:1", "a=exact,budget=3:0.1x", "a=exact,l2=", "a=exact,l2=-1",
        "a=exact,l2=nan", "a=exact,band=fp32", "a=topk_set,band=fp8"}) {
    Rules rules;
    const Status status = rules.add_override(text);
    ASSERT_FALSE(status) << text;
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_NE(status.what().find("--gate '" + std::string(text) + "'"), std::string::npos)
        << status.what();
  }
}

TEST_F(RulesTest, WhatIsNoJsonIsNamedWithItsPlace) {
  const auto refusal = [&](const std::string& contents) {
    const std::string path = file("bad.json", contents);
    const Status status = Rules().replace_from(path);
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_TRUE(status.what().starts_with(path + ": ")) << status.what();
    return status.what().substr(path.size() + 2);
  };
  EXPECT_EQ(refusal("{\n  \"rules\": [1,,2]\n}")
                .find("line 2, column 15 (byte 17): found no valid "
                      "JSON, want some: while parsing"),
            0u)
      << refusal("{\n  \"rules\": [1,,2]\n}");
  EXPECT_EQ(refusal("{").find("line 1, column 2 (byte 2): found no valid JSON"), 0u);
  EXPECT_EQ(refusal("").find("line 1, column 1 (byte 1): found no valid JSON"), 0u);
  EXPECT_EQ(refusal("[1e999]").find("found no valid JSON"), 0u);
  EXPECT_EQ(refusal("[\"\x1b[31m\"]").find('\x1b'), std::string::npos);
}

// A file that is there, and fails when it is read.
TEST_F(RulesTest, WhatCannotBeReadIsNamed) {
  EXPECT_EQ(Rules().replace_from("/proc/self/mem").what(), "/proc/self/mem: cannot be read");
}

TEST_F(RulesTest, BadFilesAreBadInputThatNamesTheFile) {
  const char* bad[] = {
      "",
      "[]",
      "{\"operation\": \"index_cache_gather\"",
      R"({"operation": "index_cache_gather"})",
      R"({"operation": "index_cache_gather", "rules": []})",
      R"({"operation": "no_such", "rules": [{"match": ".", "gate": "exact", "why": ""}]})",
      R"({"operation": 3, "rules": [{"match": ".", "gate": "exact", "why": ""}]})",
      R"({"operation": "index_cache_gather", "rules": ["exact"]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": "(", "gate": "exact", "why": ""}]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".", "gate": "loose", "why": ""}]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".", "gate": "exact"}]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".", "gate": "exact", "why": "", "subject": "all"}]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".", "gate": "exact", "why": "", "subject": 1}]})",
      R"({"operation": "index_cache_gather", "rules": [{"match": ".", "gate": "exact", "why": "", "tol": 1}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "two\nlines", "why": ""}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "why": "twice"}]})",
      R"({"operation": "topk", "rules": [{"match": [[[[[["deep"]]]]]], "gate": "exact", "why": ""}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "budget": 3}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "budget": {"count": 3}}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "budget": {"fraction": 0.1}}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "budget": {"count": -1, "fraction": 0.1}}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "budget": {"count": 1, "fraction": 1}}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "relative_l2": "small"}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "relative_l2": -1}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": "", "band": "fp32"}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "topk_set", "why": "", "band": "fp8"}]})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": ""}], "waivers": 1})",
      R"({"operation": "topk", "rules": [{"match": ".", "gate": "exact", "why": ""}], "waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2027-01-31"}]})",
      R"({"operation": "index_cache_gather", "extra": 1, "rules": [{"match": ".", "gate": "exact", "why": ""}]})",
  };
  for (const char* contents : bad) {
    Rules rules;
    const Status status = rules.replace_from(file("bad.json", contents));
    ASSERT_FALSE(status) << contents;
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_NE(status.what().find("bad.json"), std::string::npos) << status.what();
    EXPECT_EQ(status.what().find('\n'), std::string::npos);
  }
  Rules rules;
  EXPECT_FALSE(rules.replace_from(folder() + "/missing.json"));
  fs::remove(folder() + "/bad.json");
  EXPECT_FALSE(rules.replace_from(folder())) << "no .json inside";
}

} // namespace
} // namespace dsakit::harness
