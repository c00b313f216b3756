// JUnit XML: a suite a file, a test an operation of a step.
#include <algorithm>
#include <array>
#include <cstdio>

#include "format.hpp"
#include "printable.hpp"

namespace dsakit::harness {
namespace {

/// Markup escaped; of printable text and line ends, which XML 1.0 can hold.
std::string xml_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else if (c == '\n')
      result += "&#10;";
    else
      result += c;
  }
  return result;
}

std::string attribute(const char* key, const std::string& value) {
  return std::string(" ") + key + "=\"" + xml_escaped(value) + "\"";
}

std::string seconds(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", us / 1e6);
  return text;
}

struct Counts {
  std::int64_t tests = 0;
  std::int64_t failures = 0;
  std::int64_t errors = 0;
  std::int64_t skipped = 0;

  void operator+=(const Counts& other) {
    tests += other.tests;
    failures += other.failures;
    errors += other.errors;
    skipped += other.skipped;
  }
  std::string attributes() const {
    return attribute("tests", std::to_string(tests)) +
           attribute("failures", std::to_string(failures)) +
           attribute("errors", std::to_string(errors)) +
           attribute("skipped", std::to_string(skipped));
  }
};

/// <failure> for a wrong number, <error> for what could not be judged, <skipped> for what did not
/// run and for a waived failure, which is no pass. Each line of an operation has one of its own.
std::string outcome(const ReportLine& line, Counts& counts, bool& told) {
  if (line.verdict == Verdict::pass) return {};
  const bool skip = line.verdict == Verdict::skipped || line.verdict == Verdict::waived;
  const char* element = skip ? "skipped" : line.verdict == Verdict::fail ? "failure" : "error";
  if (!told)
    ++(skip ? counts.skipped : line.verdict == Verdict::fail ? counts.failures : counts.errors);
  told = true;
  const std::string verdict(name(line.verdict));
  const std::string what = line.tensor.empty() ? line.reason : title(line);
  return std::string("      <") + element + attribute("type", verdict) +
         attribute("message", verdict + ": " + what) + ">" + xml_escaped(details(line, true)) +
         "</" + element + ">\n";
}

using Lines = std::vector<const ReportLine*>;

/// Lines of one operation of one step; the worst first, since many readers show one outcome.
std::string test_case(Lines lines, Counts& counts) {
  constexpr std::array worst_first = {Verdict::error, Verdict::unsupported, Verdict::fail,
                                      Verdict::held,  Verdict::waived,      Verdict::skipped,
                                      Verdict::pass};
  const auto rank = [&](const ReportLine* line) {
    return std::find(worst_first.begin(), worst_first.end(), line->verdict);
  };
  std::stable_sort(lines.begin(), lines.end(), [&](auto* a, auto* b) { return rank(a) < rank(b); });
  ++counts.tests;
  std::string outcomes;
  bool told = false;
  double time_us = 0;
  for (const ReportLine* line : lines) {
    outcomes += outcome(*line, counts, told);
    if (line->time_us) time_us = *line->time_us; // of the one launch
  }
  const ReportLine& of = *lines.front();
  std::string text = "    <testcase" + attribute("classname", of.file) +
                     attribute("name", "step " + std::to_string(of.step) + " " + of.operation) +
                     attribute("time", seconds(time_us));
  return text + (outcomes.empty() ? "/>\n" : ">\n" + outcomes + "    </testcase>\n");
}

std::string suite(const Report& report, const ReportFile& file, Counts& all) {
  std::vector<Lines> operations;
  for (const ReportLine& line : report.lines) {
    if (line.file != file.file) continue;
    const bool same = !operations.empty() && operations.back().front()->step == line.step &&
                      operations.back().front()->operation == line.operation;
    if (!same) operations.emplace_back();
    operations.back().push_back(&line);
  }
  Counts counts;
  std::string cases;
  if (file.bad_input) { // of the file itself
    ++counts.tests;
    ++counts.errors;
    cases += "    <testcase" + attribute("classname", file.file) + attribute("name", "file") +
             ">\n      <error" + attribute("type", "error") + attribute("message", file.reason) +
             "/>\n    </testcase>\n";
  }
  for (const Lines& lines : operations)
    cases += test_case(lines, counts);
  all += counts;
  return "  <testsuite" + attribute("name", file.file) + counts.attributes() +
         attribute("time", seconds(report.summary(file.file).time_us)) + ">\n" + cases +
         "  </testsuite>\n";
}

} // namespace

std::string to_junit(const Report& original) {
  const Report report = printable(original);
  Counts counts;
  std::string suites;
  for (const ReportFile& file : report.files)
    suites += suite(report, file, counts);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites" +
         attribute("name",
                   "dsakit " + report.verb + (report.partial ? " (PARTIAL: interrupted)" : "")) +
         counts.attributes() + attribute("time", seconds(report.summary().time_us)) + ">\n" +
         suites + "</testsuites>\n";
}

} // namespace dsakit::harness
