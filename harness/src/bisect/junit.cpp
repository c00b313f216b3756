// JUnit XML of a bisection: a test an operation, as a report has it.
#include <algorithm>
#include <iterator>

#include "dsakit/harness/bisect.hpp"
#include "words.hpp"

namespace dsakit::harness {
namespace {

ReportLine line_of_parting(const Parting& parting, const Bisection& b) {
  ReportLine line;
  line.file = b.file;
  line.step = parting.step;
  line.operation = parting.operation;
  line.tensor = parting.tensor;
  line.subject = line.against = "recorded";
  line.verdict = parting.waived.empty() ? Verdict::fail : Verdict::waived;
  line.gate = parting.gate;
  line.elements = parting.elements;
  line.mismatches = parting.mismatches;
  line.reason = parting.waived.empty() ? why_it_parts(parting, b) : parting.waived;
  line.first_at = parting.first_at;
  line.got = parting.got;
  line.want = parting.want;
  line.reproduce = b.reproduce;
  return line;
}

} // namespace

std::string to_junit(const Bisection& b) {
  Report report;
  report.verb = "bisect";
  report.partial = b.partial;
  report.files = {{b.file, b.verdict, false, b.reason, {}, {}}};
  for (const JudgedOperation& judged : b.judged) {
    const std::size_t before = report.lines.size();
    const auto is_its = [&](const auto& told) {
      return told.step == judged.step && told.operation == judged.operation;
    };
    if (b.first && is_its(*b.first)) report.lines.push_back(*b.first);
    for (const auto* lines : {&b.others, &b.waived_lines})
      std::copy_if(lines->begin(), lines->end(), std::back_inserter(report.lines), is_its);
    for (const Parting& parting : b.partings)
      if (is_its(parting)) report.lines.push_back(line_of_parting(parting, b));
    if (report.lines.size() > before) continue;
    ReportLine& line = report.lines.emplace_back();
    line.file = b.file;
    line.step = judged.step;
    line.operation = judged.operation;
    line.verdict = judged.verdict;
    line.reason = judged.reason;
    if (judged.verdict != Verdict::pass && judged.verdict != Verdict::skipped)
      line.reproduce = b.reproduce;
  }
  return to_junit(report);
}

} // namespace dsakit::harness
