// Sweeps with a small program in the place of `dsakit bench`: nothing is lost and nothing doubled,
// whatever a candidate does and however often the sweep is killed.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "dsakit/harness/sweep.hpp"
#include "support/sweep_stand_in.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

/// Nobody may have waited for it yet.
bool lives(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string pid, name, state;
  return file >> pid >> name >> state && state != "Z";
}

class SweepTest : public ::testing::Test {
protected:
  SweepTest() {
    testing::write_sweep_stand_in(folder_ / "bench", folder_ / "log");
    options_.command = {folder_ / "bench"};
    options_.identity = {"GPU", "compiler", "c0de"};
    options_.output = folder_ / "results.jsonl";
    options_.time_limit_s = 20;
  }

  /// One problem, its default and these values.
  static SweepSpace space_of(const std::vector<int>& splits) {
    SweepSpace space;
    const auto add = [&](std::int32_t value) {
      const optimized::Configuration configuration = {{"splits", value}};
      space.candidates.push_back(
          {R"({"operation":"sparse_attention","shape":{"k":2048}})",
           "sparse_attention",
           configuration,
           {"--configuration", optimized::configuration_text(configuration)}});
    };
    add(0);
    for (const int value : splits)
      add(value);
    return space;
  }

  SweepSummary swept(const SweepSpace& space) {
    const auto summary = sweep(space, options_);
    EXPECT_TRUE(summary) << summary.status().what();
    return summary ? *summary : SweepSummary{};
  }

  static std::vector<json> lines_of(const std::string& path) {
    std::vector<json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
      lines.push_back(json::parse(line));
    return lines;
  }
  std::vector<json> lines() const { return lines_of(options_.output); }
  /// Lines that end; a killed sweep may leave a torn one behind them.
  std::ptrdiff_t whole_lines() const {
    const std::string text = testing::read_file(options_.output);
    return std::count(text.begin(), text.end(), '\n');
  }

  /// Values of splits in the order in which the stand-in was started.
  std::vector<std::string> started() const {
    std::vector<std::string> all;
    std::ifstream file(folder_ / "log");
    for (std::string line; std::getline(file, line);)
      all.push_back(line.substr(line.find('=') + 1));
    return all;
  }

  /// Each candidate of the space is in the file once, and nothing else is.
  void expect_all_once(const SweepSpace& space) {
    std::multiset<int> want, found;
    for (const SweepCandidate& candidate : space.candidates)
      want.insert(candidate.configuration.at("splits"));
    std::set<std::string> keys;
    for (const json& line : lines()) {
      found.insert(line["configuration"]["splits"].get<int>());
      keys.insert(line["key"].get<std::string>());
    }
    EXPECT_EQ(found, want);
    EXPECT_EQ(keys.size(), want.size());
  }

  testing::TempFolder folder_;
  SweepOptions options_;
};

TEST_F(SweepTest, TimesEveryCandidateAndNamesTheBest) {
  const SweepSpace space = space_of({1, 4, 40});
  const SweepSummary summary = swept(space);
  EXPECT_EQ(summary.candidates, 4);
  EXPECT_EQ(summary.timed, 4);
  EXPECT_EQ(summary.left, 0);
  ASSERT_EQ(summary.best.size(), 1u);
  EXPECT_EQ(summary.best[0].configuration, (optimized::Configuration{{"splits", 1}}));
  EXPECT_EQ(summary.best[0].median_us, 101);
  EXPECT_EQ(summary.best[0].default_us, 120);
  expect_all_once(space);
  const json line = lines().at(1);
  EXPECT_EQ(line["verdict"], "pass");
  EXPECT_EQ(line["device"], "GPU");
  EXPECT_EQ(line["kernel"], "mfma16");
  EXPECT_EQ(line["problem_class"], "tokens=1");
  EXPECT_EQ(line["ran"], (json{{"splits", 1}}));
  EXPECT_EQ(line["hot"]["q3_us"], 102);
  EXPECT_FALSE(line["hot"].contains("samples"));
}

TEST_F(SweepTest, ACandidateThatCrashesHangsOrIsWrongIsDisqualifiedAndTheSweepGoesOn) {
  options_.time_limit_s = 1;
  const SweepSpace space = space_of({2, 3, 5, 6, 7, 10, 11, 4});
  const SweepSummary summary = swept(space);
  EXPECT_EQ(summary.timed, 2);
  EXPECT_EQ(summary.disqualified, 7);
  std::map<int, std::pair<std::string, std::string>> found;
  for (const json& line : lines())
    found[line["configuration"]["splits"]] = {line["verdict"], line.value("reason", "")};
  EXPECT_EQ(found[2].first, "crash");
  EXPECT_NE(found[2].second.find("signal 11"), std::string::npos);
  EXPECT_EQ(found[3].first, "hang");
  EXPECT_NE(found[3].second.find("found no end after 1 s"), std::string::npos);
  EXPECT_EQ(found[5], (std::pair<std::string, std::string>{"fail", "latent [0, 1] is wrong"}));
  EXPECT_EQ(found[6], (std::pair<std::string, std::string>{"unsupported", "k is odd"}));
  EXPECT_EQ(found[7].first, "error");
  EXPECT_EQ(found[10].first, "error");
  EXPECT_EQ(found[11].first, "error");
  EXPECT_EQ(found[4].first, "pass");
  EXPECT_EQ(summary.best.at(0).configuration, (optimized::Configuration{{"splits", 4}}));
  // Nor does what the hanging one started live on.
  pid_t child = 0;
  std::ifstream(folder_ / "log.pid") >> child;
  ASSERT_GT(child, 0);
  for (int i = 0; i < 100 && lives(child); ++i)
    std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(lives(child));
  options_.resume = true;
  EXPECT_EQ(swept(space).done_before, 9) << "those that are disqualified are done, too";
}

TEST_F(SweepTest, WhatBenchDoesNotUnderstandOrHasNoDeviceForEndsTheSweep) {
  const auto refused = sweep(space_of({4, 9, 8}), options_);
  EXPECT_EQ(refused.status().code(), Code::bad_input);
  EXPECT_NE(refused.status().what().find("splits=9: dsakit bench: no such shape"),
            std::string::npos)
      << refused.status().what();
  EXPECT_EQ(lines().size(), 2u) << "what was done is kept";
  options_.resume = true;
  EXPECT_EQ(sweep(space_of({12}), options_).status().code(), Code::no_device);
}

TEST_F(SweepTest, ARefusedStartLeavesNoFile) {
  for (const int first : {9, 12}) {
    SweepSpace space = space_of({first});
    space.candidates.erase(space.candidates.begin()); // the default, which would pass
    EXPECT_FALSE(sweep(space, options_));
    EXPECT_FALSE(std::filesystem::exists(options_.output)) << first;
  }
  options_.resume = true;
  std::ofstream(options_.output).close(); // somebody else's, empty as it is
  SweepSpace space = space_of({9});
  space.candidates.erase(space.candidates.begin());
  EXPECT_FALSE(sweep(space, options_));
  EXPECT_TRUE(std::filesystem::exists(options_.output));
}

TEST_F(SweepTest, ALibrarysCandidateIsKnownByTheLibrary) {
  SweepSpace space = space_of({4});
  for (SweepCandidate& candidate : space.candidates)
    candidate.foreign = true;
  options_.identity.library_hash = "f00d";
  swept(space);
  EXPECT_EQ(lines().at(0)["code_hash"], "f00d");
  options_.resume = true;
  options_.identity.code_hash = "other"; // a new dsakit times the same library
  EXPECT_EQ(swept(space).done_before, 2);
  options_.identity.library_hash = "f00d2";
  EXPECT_EQ(swept(space).timed, 2);
}

TEST_F(SweepTest, ResumeSkipsWhatIsDone) {
  const SweepSpace space = space_of({1, 4, 40});
  swept(space_of({4}));
  const auto again = sweep(space, options_);
  EXPECT_EQ(again.status().code(), Code::bad_input);
  EXPECT_NE(again.status().what().find("--resume"), std::string::npos);
  options_.resume = true;
  const SweepSummary summary = swept(space);
  EXPECT_EQ(summary.done_before, 2);
  EXPECT_EQ(summary.timed, 2);
  EXPECT_EQ(summary.best.at(0).default_us, 120) << "a time of the earlier run";
  EXPECT_EQ(started(), (std::vector<std::string>{"default", "4", "1", "40"}));
  expect_all_once(space);
}

TEST_F(SweepTest, AnotherBuildDeviceOrToolchainIsAnotherCandidate) {
  const SweepSpace space = space_of({});
  swept(space);
  options_.resume = true;
  for (std::string* part :
       {&options_.identity.device, &options_.identity.toolchain, &options_.identity.code_hash}) {
    *part += "2";
    EXPECT_EQ(swept(space).timed, 1);
  }
  EXPECT_EQ(lines().size(), 4u);
}

TEST_F(SweepTest, ATornLastLineIsDoneAgain) {
  const SweepSpace space = space_of({1, 4});
  swept(space);
  options_.resume = true;
  const std::string whole = testing::read_file(options_.output);
  const std::size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const std::size_t keep : {last + 1, last + 40, whole.size() - 2, whole.size() - 1, last}) {
    std::filesystem::resize_file(options_.output, keep);
    EXPECT_EQ(swept(space).timed, 1) << keep;
    EXPECT_EQ(testing::read_file(options_.output), whole);
  }
}

TEST_F(SweepTest, ADamagedFileIsNotWrittenTo) {
  options_.resume = true;
  constexpr const char* kForeignValue =
      R"({"key":"k","device":"d","code_hash":"c","toolchain":"t",)"
      R"("verdict":"pass","problem":{},"configuration":{"a":"b"}})"
      "\n";
  for (const char* text : {"no JSON\n", "{}\n", "[]\n", "{\"key\": 1}\n", "\n", kForeignValue}) {
    std::ofstream(options_.output, std::ios::trunc) << text;
    const auto summary = sweep(space_of({1}), options_);
    EXPECT_EQ(summary.status().code(), Code::bad_input);
    EXPECT_EQ(summary.status().what().find(options_.output + ":1: "), 0u)
        << summary.status().what();
    EXPECT_EQ(testing::read_file(options_.output), text);
  }
  options_.output = folder_ / "none" + std::string("/results.jsonl");
  EXPECT_EQ(sweep(space_of({1}), options_).status().code(), Code::bad_input);
}

/// kill -9 at any moment, many times over.
TEST_F(SweepTest, KilledAtAnyMomentNothingIsLostAndNothingDoubled) {
  std::vector<int> splits;
  for (int i = 20; i < 60; ++i)
    splits.push_back(i);
  const SweepSpace space = space_of(splits);
  options_.resume = true;
  options_.jobs = 3;
  ::setenv("STAND_IN_NAP", "0.02", 1);
  int killed = 0;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(sweep(space, options_) ? 0 : 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(30 + 17 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
  }
  ::unsetenv("STAND_IN_NAP");
  EXPECT_GT(killed, 3);
  const auto before = whole_lines();
  EXPECT_GT(before, 0);
  const SweepSummary summary = swept(space);
  EXPECT_EQ(summary.done_before, before);
  EXPECT_EQ(summary.timed, summary.candidates - before);
  expect_all_once(space);
}

TEST_F(SweepTest, TwoSweepsDoNotWriteOneFile) {
  options_.resume = true;
  ::setenv("STAND_IN_NAP", "5", 1);
  const SweepSpace space = space_of({30});
  const pid_t child = ::fork();
  if (child == 0) ::_exit(sweep(space, options_) ? 0 : 1);
  for (int i = 0; i < 500 && started().empty(); ++i)
    std::this_thread::sleep_for(10ms);
  const auto second = sweep(space, options_);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::unsetenv("STAND_IN_NAP");
  EXPECT_EQ(second.status().code(), Code::bad_input);
  EXPECT_NE(second.status().what().find("another sweep"), std::string::npos);
}

TEST_F(SweepTest, TwoShardsMergedAreOneRun) {
  const SweepSpace space = space_of({1, 2, 4, 5, 8, 16, 40});
  swept(space);
  options_.shards = 2;
  for (options_.shard = 1; options_.shard <= 2; ++options_.shard) {
    options_.output = folder_ / ("shard" + std::to_string(options_.shard));
    const SweepSummary summary = swept(space);
    EXPECT_EQ(summary.candidates, 4);
  }
  const std::string one = folder_ / "one", both = folder_ / "both";
  ASSERT_TRUE(merge_sweeps({folder_ / "results.jsonl"}, one));
  const auto merged = merge_sweeps({folder_ / "shard2", folder_ / "shard1"}, both);
  ASSERT_TRUE(merged) << merged.status().what();
  EXPECT_EQ(*merged, 8);
  EXPECT_EQ(testing::read_file(one), testing::read_file(both)); // the stand-in's times are fixed
  EXPECT_EQ(*merge_sweeps({both, one, folder_ / "shard1"}, folder_ / "thrice"), 8);
  EXPECT_EQ(testing::read_file(folder_ / "thrice"), testing::read_file(one));
  EXPECT_EQ(merge_sweeps({one}, one).status().code(), Code::bad_input);
}

TEST_F(SweepTest, ARandomOrderIsOfItsSeedAndBeginsWithTheDefault) {
  std::vector<int> splits;
  for (int i = 20; i < 36; ++i)
    splits.push_back(i);
  const SweepSpace space = space_of(splits);
  options_.random = true;
  std::set<std::vector<std::string>> orders;
  for (const std::uint64_t seed : {1u, 1u, 2u}) {
    options_.seed = seed;
    std::filesystem::remove(options_.output);
    std::filesystem::remove(folder_ / "log");
    swept(space);
    EXPECT_EQ(started().at(0), "default");
    expect_all_once(space);
    orders.insert(started());
  }
  EXPECT_EQ(orders.size(), 2u);
}

TEST_F(SweepTest, TheBudgetEndsItAndCtrlCToo) {
  const SweepSpace space = space_of({30, 31, 32, 33, 34, 35});
  ::setenv("STAND_IN_NAP", "0.1", 1);
  options_.budget_s = 0.15;
  const SweepSummary budget = swept(space);
  EXPECT_GT(budget.timed, 0);
  EXPECT_GT(budget.left, 0);
  EXPECT_FALSE(budget.interrupted);
  EXPECT_EQ(budget.timed + budget.left, budget.candidates);

  options_.resume = true;
  options_.budget_s = 0;
  std::atomic<bool> interrupted{false};
  options_.interrupted = &interrupted;
  std::vector<double> progress;
  options_.progress = [&](double done, const std::string&) {
    progress.push_back(done);
    interrupted = true;
  };
  const SweepSummary stopped = swept(space);
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.timed, 1) << "what is at work is ended and kept";
  EXPECT_GT(stopped.left, 0);
  options_.progress = [&](double done, const std::string&) { progress.push_back(done); };
  interrupted = false;
  ::unsetenv("STAND_IN_NAP");
  EXPECT_EQ(swept(space).left, 0);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), 1.0);
  expect_all_once(space);
}

} // namespace
} // namespace dsakit::harness
