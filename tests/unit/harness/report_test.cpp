#include "dsakit/harness/report.hpp"
#include "dsakit/harness/text.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace dsakit::harness {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

ReportLine line_with(const std::string& file, Verdict verdict) {
  ReportLine l;
  l.file = file;
  l.operation = "index_logits_decode";
  l.tensor = "logits";
  l.subject = "kernel";
  l.against = "reference";
  l.kernel = "mfma";
  l.workgroups = 3;
  l.verdict = verdict;
  l.gate = "derived";
  l.used = verdict == Verdict::fail ? 4.25 : 0.5;
  l.elements = 640;
  l.mismatches = verdict == Verdict::fail ? 256 : 0;
  l.time_us = 1500;
  return l;
}

Report report_with(std::vector<ReportLine> lines) {
  Report r;
  r.verb = "replay";
  r.device = "host";
  r.host_arch = "gfx942";
  r.environment.version = "1.2.3";
  r.environment.device = "host lanes";
  for (const ReportLine& l : lines)
    if (r.files.empty() || r.files.back().file != l.file)
      r.files.push_back({l.file, l.verdict, false, {}, {{"page_size", "64"}}, {}});
  r.lines = std::move(lines);
  return r;
}

TEST(Report, EveryFormatSaysThatItIsPartial) {
  Report r = report_with({line_with("a.h5", Verdict::pass)});
  const auto all = [&] {
    return std::vector<std::string>{to_text(r, {}), to_markdown(r), to_junit(r)};
  };
  for (const std::string& text : all())
    EXPECT_EQ(text.find("PARTIAL"), std::string::npos) << text;
  EXPECT_EQ(nlohmann::json::parse(to_json(r)).at("partial"), false);
  r.partial = true;
  for (const std::string& text : all())
    EXPECT_NE(text.find("PARTIAL: interrupted"), std::string::npos) << text;
  EXPECT_EQ(nlohmann::json::parse(to_json(r)).at("partial"), true);
}

TEST(Report, TheWorstVerdictIsTheVerdictOfAll) {
  const auto verdict = [](std::initializer_list<Verdict> verdicts) {
    Report r;
    for (const Verdict v : verdicts)
      r.lines.push_back(line_with("a", v));
    return r.verdict();
  };
  using enum Verdict;
  EXPECT_EQ(verdict({pass, error, unsupported, fail, held, skipped}), error);
  EXPECT_EQ(verdict({pass, unsupported, fail, held}), unsupported);
  EXPECT_EQ(verdict({pass, fail, held}), fail);
  EXPECT_EQ(verdict({pass, held}), held);
  EXPECT_EQ(verdict({pass, waived, skipped}), waived);
  EXPECT_EQ(verdict({waived, fail}), fail);
  EXPECT_EQ(verdict({skipped, pass}), pass);
  EXPECT_EQ(verdict({skipped}), skipped);
  EXPECT_EQ(verdict({}), skipped) << "nothing that ran is not a pass";
}

TEST(Report, ASummaryCountsALaunchOnceAndSkipsWhatDidNotRun) {
  Report r = report_with({line_with("a", Verdict::pass), line_with("a", Verdict::fail),
                          line_with("b", Verdict::pass), line_with("b", Verdict::skipped)});
  const Summary all = r.summary();
  EXPECT_EQ(all.operations, 2);
  EXPECT_EQ(all.comparisons, 3);
  EXPECT_EQ(all.passed, 2);
  EXPECT_EQ(all.not_passed, 1);
  EXPECT_EQ(all.mismatches, 256);
  EXPECT_EQ(all.worst_used, 4.25);
  EXPECT_EQ(all.time_us, 3000);
  EXPECT_EQ(r.summary("b").comparisons, 1);
}

TEST(Json, NonFiniteNumbersAreNullWithTheirText) {
  ReportLine l = line_with("a", Verdict::fail);
  l.used = kUnbounded;
  l.worst_abs = -kUnbounded;
  l.worst_rel = std::numeric_limits<double>::quiet_NaN();
  l.got = Sample{kUnbounded, "0x7f800000"};
  const auto json = nlohmann::json::parse(to_json(report_with({l}))).at("operations").at(0);
  EXPECT_TRUE(json.at("used").is_null());
  EXPECT_EQ(json.at("used_text"), "inf");
  EXPECT_EQ(json.at("worst_abs_text"), "-inf");
  EXPECT_EQ(json.at("worst_rel_text"), "nan");
  EXPECT_EQ(json.at("got_text"), "inf");
  EXPECT_EQ(json.at("got_hex"), "0x7f800000");
  EXPECT_FALSE(json.contains("time_us_text"));
}

TEST(Json, TheContractIsWhatAllFilesAgreeOn) {
  Report r = report_with({line_with("a", Verdict::pass), line_with("b", Verdict::pass)});
  r.files[0].contract = {{"page_size", "64"}, {"qmax", "448"}, {"only_a", "1"}};
  r.files[1].contract = {{"page_size", "64"}, {"qmax", "224"}};
  const auto json = nlohmann::json::parse(to_json(r));
  EXPECT_EQ(json.at("contract"), (nlohmann::json{{"page_size", "64"}}));
  EXPECT_EQ(json.at("files").at(1).at("contract").at("qmax"), "224");
}

TEST(Json, APathThatIsNotUtf8DoesNotBreakTheReport) {
  EXPECT_TRUE(nlohmann::json::accept(to_json(report_with({line_with("a\xff.h5", Verdict::pass)}))));
}

TEST(Text, ManyMismatchesNeverReadAsNone) {
  const std::string text = to_text(report_with({line_with("a", Verdict::fail)}), {});
  EXPECT_NE(text.find("wrong: 256 of 640"), std::string::npos) << text;
  EXPECT_NE(text.find("verdict: FAIL"), std::string::npos) << text;
}

TEST(Text, SeveralFilesAreALineEachAndTablesOnlyWhenAsked) {
  const Report r =
      report_with({line_with("x/a.h5", Verdict::pass), line_with("x/b.h5", Verdict::pass)});
  const std::string brief = to_text(r, {});
  EXPECT_EQ(brief.find("kernel/reference"), std::string::npos) << brief;
  EXPECT_NE(brief.find("\na.h5"), std::string::npos) << brief;
  EXPECT_NE(to_text(r, {.verbose = true}).find("kernel/reference"), std::string::npos);
}

TEST(Text, DetailsAreOfTheFirstFailureAndTheOthersAreNamed) {
  std::vector<ReportLine> lines;
  for (int step = 0; step < 12; ++step) {
    lines.push_back(line_with("a", Verdict::fail));
    lines.back().step = step;
    lines.back().hint = "hint " + std::to_string(step);
  }
  const std::string text = to_text(report_with(lines), {});
  EXPECT_NE(text.find("hint 0"), std::string::npos);
  EXPECT_EQ(text.find("hint 1"), std::string::npos);
  EXPECT_NE(text.find("FAIL too: index_logits_decode step 8"), std::string::npos) << text;
  EXPECT_EQ(text.find("FAIL too: index_logits_decode step 9"), std::string::npos) << text;
  EXPECT_NE(text.find("... and more"), std::string::npos) << text;
}

/// Operation, place and hint are in the first 25 lines, whatever else there is to say.
TEST(Text, AFailureIsOnTheFirstScreen) {
  ReportLine l = line_with("a", Verdict::fail);
  l.step = 7;
  l.tensor = "logits.deepgemm";
  l.map = {{"rows", "index", 64, 1, 64, 3, {{5, 7}}},
           {"keys", "page", 4096, 64, 64, 1, {{128, 191}}}};
  l.anomalies = {{"NaN", 3, 0, 3, {5, 128}}, {"-inf", 0, 2, 2, {6, 130}}};
  l.first_at = l.worst_at = {5, 128};
  l.got = l.want = Sample{1.5, "0x3fc00000"};
  l.hint = "the hint begins here";
  for (int i = 0; i < 20; ++i)
    l.hint += " and goes on";
  std::vector<ReportLine> lines(40, line_with("a", Verdict::pass));
  for (int i = 0; i < 40; ++i)
    lines.push_back(l);
  for (int i = 0; i < 40; ++i) {
    lines.push_back(line_with("a", Verdict::skipped));
    lines.back().operation = "an_operation_of_a_later_version_" + std::to_string(i % 4);
  }
  Report r = report_with(lines);
  for (int i = 0; i < 60; ++i)
    r.files[0].contract["steps/" + std::to_string(i) + "/index_page_layout"] = "block_flat";
  std::istringstream text(to_text(r, {}));
  std::string screen;
  std::string row;
  for (int i = 0; i < 25 && std::getline(text, row); ++i)
    screen += row + "\n";
  for (const char* part :
       {"FAIL index_logits_decode step 7 logits.deepgemm: kernel against reference",
        "NaN got 3, want 0, first at [5, 128]", "rows 5 to 7 (3 of 64)",
        "keys 128 to 191 (1 of 64 pages of 64)", "hint: the hint begins here", "40 passed"})
    EXPECT_NE(screen.find(part), std::string::npos) << part << "\n" << screen;
  EXPECT_NE(to_text(r, {.verbose = true}).find("steps/59/"), std::string::npos);
}

TEST(Text, APlaceIsToldInFewWords) {
  ReportLine l = line_with("a", Verdict::fail);
  l.map = {{"rows", "index", 1, 1, 1, 1, {{0, 0}}},
           {"heads", "index", 32, 1, 32, 32, {{0, 31}}},
           {"dim", "tile", 128, 16, 8, 8, {{0, 127}}}};
  const std::string text = to_text(report_with({l}), {});
  EXPECT_NE(text.find("where: all 32 heads; dim: all 8 tiles of 16\n"), std::string::npos) << text;
}

TEST(Text, AWaivedFailureIsNoPassAndIsNamed) {
  ReportLine l = line_with("a", Verdict::waived);
  l.reason = "until 2027-01-31: known";
  const std::string text = to_text(report_with({line_with("a", Verdict::pass), l}), {});
  EXPECT_NE(text.find("waived index_logits_decode step 0 logits: kernel against reference: until "
                      "2027-01-31: known"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("verdict: waived (2 comparisons, 1 not passed, 1 of them waived"),
            std::string::npos)
      << text;
}

TEST(Text, LongHintsAndContractsAreWrapped) {
  ReportLine l = line_with("a", Verdict::fail);
  for (int i = 0; i < 60; ++i)
    l.hint += "word" + std::to_string(i) + " ";
  Report r = report_with({l});
  for (int i = 0; i < 20; ++i)
    r.files[0].contract["key_number_" + std::to_string(i)] = "value";
  std::istringstream text(to_text(r, {}));
  for (std::string row; std::getline(text, row);)
    EXPECT_LE(row.size(), 100u) << row;
}

// A file's name, and texts inside it, may hold what moves a cursor or begins a line.
TEST(Printable, NothingOfAFileIsAControlCharacter) {
  const std::string bad = "a\x1b[2J\n\r\x7f\xc2\x9b"
                          "b";
  ReportLine line;
  for (std::string* text : {&line.file, &line.operation, &line.tensor, &line.kernel, &line.reason,
                            &line.why, &line.hint})
    *text = bad;
  line.reproduce = "dsakit replay " + shell_word(bad);
  line.other_kernels = {bad};
  line.map = {{bad, "index", 4, 1, 4, 1, {{2, 2}}}};
  line.verdict = Verdict::fail;
  Report report;
  report.verb = "compare";
  report.against = bad;
  report.files = {{bad, Verdict::fail, true, bad, {{"key", bad}}, {{"key", bad}}}};
  report.lines = {line};
  report.warnings = {bad};
  for (const std::string& text :
       {to_text(report, {.verbose = true}), to_junit(report), to_markdown(report)}) {
    for (const char c : text)
      EXPECT_TRUE(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)) << int(c);
    EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos);
    EXPECT_EQ(text.find("\n\r"), std::string::npos);
    EXPECT_NE(text.find("x1b"), std::string::npos) << text;
  }
  EXPECT_EQ(shell_word("a\nb'\\"), R"($'a\x0ab\'\\')");
  EXPECT_EQ(shell_word("\x89"), R"($'\x89')");
  for (const auto* no_utf8 :
       {"\x89", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
    for (const char c : escaped(no_utf8))
      EXPECT_GT(c, 0) << no_utf8;
  EXPECT_EQ(escaped("\xe2\x82\xac \xf0\x9f\x98\x80"), "\xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(escaped("gr\xc3\xbc\xc3\x9f"
                    "e"),
            "gr\xc3\xbc\xc3\x9f"
            "e")
      << "letters stay";
}

} // namespace
} // namespace dsakit::harness
