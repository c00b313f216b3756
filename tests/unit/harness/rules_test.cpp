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
