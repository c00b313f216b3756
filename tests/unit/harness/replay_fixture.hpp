// Writes recordings to a temporary folder and replays them on the host device.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "dsakit/harness/replay.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {

class ReplayTest : public ::testing::Test {
protected:
  ReplayTest() : folder_(std::filesystem::temp_directory_path() / folder_name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ReplayTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Replays `recording` from a file, with options that have no paths yet.
  harness::Report replay(const TinyRecording& recording,
                         harness::ReplayOptions options = {}) const {
    recording.write(path("tiny.h5"));
    options.paths = {path("tiny.h5")};
    auto report = run(options);
    EXPECT_TRUE(report) << report.status().what();
    return report ? *report : harness::Report{};
  }

  static Result<harness::Report> run(const harness::ReplayOptions& options) {
    harness::Rules rules = harness::Rules::built_in();
    return harness::replay(options, rules);
  }

  static const harness::ReportLine* find(const harness::Report& report,
                                         const std::string& operation, const std::string& tensor,
                                         const std::string& subject, const std::string& against) {
    for (const harness::ReportLine& line : report.lines)
      if (line.operation == operation && line.tensor == tensor && line.subject == subject &&
          line.against == against)
        return &line;
    ADD_FAILURE() << "no line " << operation << " " << tensor << " " << subject << "/" << against;
    static const harness::ReportLine none;
    return &none;
  }

  /// The hint of an output, where the recording of it is wrong.
  std::string hint(const TinyRecording& recording, const std::string& operation,
                   const std::string& tensor) const {
    const harness::Report report = replay(recording);
    const harness::ReportLine* line = find(report, operation, tensor, "reference", "recorded");
    EXPECT_EQ(line->verdict, harness::Verdict::fail) << operation << " " << tensor;
    return line->hint;
  }

  static bool says(const std::string& hint, const std::string& what) {
    return hint.find(what) != std::string::npos;
  }

  /// The first line that is not a pass.
  static const harness::ReportLine* first_bad(const harness::Report& report) {
    for (const harness::ReportLine& line : report.lines)
      if (line.verdict != harness::Verdict::pass) return &line;
    return nullptr;
  }

private:
  static std::string folder_name() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string("dsakit_") + test->name() + "_" + std::to_string(getpid());
  }

  std::filesystem::path folder_;
};

} // namespace dsakit::testing
