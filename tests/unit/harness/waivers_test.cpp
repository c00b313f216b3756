#include "dsakit/harness/waivers.hpp"

#include <gtest/gtest.h>

#include "dsakit/harness/rules.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

class WaiversTest : public ::testing::Test {
protected:
  std::string file(const std::string& contents) const {
    testing::write_file(folder_ / "waivers.json", contents);
    return folder_ / "waivers.json";
  }

  static ReportLine line(const std::string& tensor, Verdict verdict) {
    ReportLine l;
    l.operation = "topk";
    l.tensor = tensor;
    l.subject = "kernel";
    l.verdict = verdict;
    return l;
  }

  testing::TempFolder folder_;
};

constexpr const char* kOne = R"({"waivers": [{"operation": "topk", "match": "topk_indices\\..*",
    "subject": "kernel", "reason": "ties", "expires": "2027-01-31"}]})";

TEST_F(WaiversTest, AFailureThatItNamesIsWaivedUpToItsLastDay) {
  Waivers waivers;
  ASSERT_TRUE(waivers.add_file(file(kOne)));
  for (const auto& [today, verdict] :
       {std::pair("2026-12-01", Verdict::waived), std::pair("2027-01-31", Verdict::waived),
        std::pair("2027-02-01", Verdict::fail)}) {
    waivers.today = today;
    ReportLine l = line("topk_indices.x", Verdict::fail);
    waivers.apply(l);
    EXPECT_EQ(l.verdict, verdict) << today;
    EXPECT_EQ(l.reason, verdict == Verdict::waived ? "until 2027-01-31: ties"
                                                   : "the waiver expired on 2027-01-31: ties");
  }
  EXPECT_TRUE(waivers.unused().empty());
}

TEST_F(WaiversTest, NothingElseIsWaived) {
  Waivers waivers;
  ASSERT_TRUE(waivers.add_file(file(kOne)));
  waivers.today = "2026-12-01";
  ReportLine other_operation = line("topk_indices.x", Verdict::fail);
  other_operation.operation = "topk_slots";
  ReportLine other_subject = line("topk_indices.x", Verdict::fail);
  other_subject.subject = "reference";
  for (ReportLine l :
       {line("topk_indices", Verdict::fail), other_operation, other_subject,
        line("topk_indices.x", Verdict::pass), line("topk_indices.x", Verdict::error),
        line("topk_indices.x", Verdict::unsupported)}) {
    const Verdict before = l.verdict;
    waivers.apply(l);
    EXPECT_EQ(l.verdict, before);
    EXPECT_TRUE(l.reason.empty());
  }
  ASSERT_EQ(waivers.unused().size(), 1u);
  EXPECT_NE(waivers.unused()[0].find("can go"), std::string::npos);
}

TEST_F(WaiversTest, OneOfAnOperationThatWasNotComparedIsNotCalledUnused) {
  Waivers waivers;
  ASSERT_TRUE(waivers.add_file(file(kOne)));
  ReportLine other;
  other.operation = "index_cache_write";
  other.verdict = Verdict::fail;
  waivers.apply(other);
  EXPECT_TRUE(waivers.unused().empty());
}

TEST_F(WaiversTest, TheClockSaysWhatDayItIs) {
  Waivers waivers;
  ASSERT_TRUE(waivers.add_file(file(
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2000-01-01"},
                      {"operation": "topk", "match": "b", "reason": "r", "expires": "9999-12-31"}]})")));
  ReportLine a = line("a", Verdict::fail);
  ReportLine b = line("b", Verdict::fail);
  waivers.apply(a);
  waivers.apply(b);
  EXPECT_EQ(a.verdict, Verdict::fail);
  EXPECT_EQ(b.verdict, Verdict::waived);
}

TEST_F(WaiversTest, ARulesFileMayHoldThem) {
  Rules rules;
  ASSERT_TRUE(rules.replace_from(file(
      R"({"operation": "topk", "rules": [{"match": ".*", "gate": "exact", "why": ""}],
          "waivers": [{"match": "topk_indices", "reason": "r", "expires": "9999-12-31"}]})")));
  ReportLine l = line("topk_indices", Verdict::fail);
  rules.waivers.apply(l);
  EXPECT_EQ(l.verdict, Verdict::waived);
}

TEST_F(WaiversTest, BadFilesAreBadInputThatNamesTheFile) {
  const char* bad[] = {
      "",
      "[]",
      "{}",
      R"({"waivers": {}})",
      R"({"waivers": ["all"]})",
      R"({"waivers": [], "rules": []})",
      R"({"waivers": [{"operation": "no_such", "match": "a", "reason": "r", "expires": "2027-01-31"}]})",
      R"({"waivers": [{"match": "a", "reason": "r", "expires": "2027-01-31"}]})",
      R"({"waivers": [{"operation": "topk", "match": "(", "reason": "r", "expires": "2027-01-31"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "", "expires": "2027-01-31"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "expires": "2027-01-31"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2027-02-29"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2027-1-31"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "31.01.2027"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2027-01-31",
          "subject": "all"}]})",
      R"({"waivers": [{"operation": "topk", "match": "a", "reason": "r", "expires": "2027-01-31",
          "until": 1}]})",
  };
  for (const char* contents : bad) {
    Waivers waivers;
    const Status status = waivers.add_file(file(contents));
    ASSERT_FALSE(status) << contents;
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_NE(status.what().find("waivers.json"), std::string::npos) << status.what();
    EXPECT_EQ(status.what().find('\n'), std::string::npos);
  }
  Waivers waivers;
  EXPECT_FALSE(waivers.add_file(folder_ / "missing.json"));
}

} // namespace
} // namespace dsakit::harness
