// Markdown for a comment on a pull request: the verdict, what did not pass, the first failure.
#include <algorithm>

#include "format.hpp"
#include "markdown_parts.hpp"
#include "printable.hpp"

namespace dsakit::harness {
namespace {

using markdown::kRows;

constexpr std::size_t kReason = 1000;
constexpr std::size_t kDetails = 8000;

/// At most `size` bytes, cut between characters.
std::string cut(std::string text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
    --size;
  return text.substr(0, size) + "...";
}

/// Those that did not pass first, in order.
std::string files(const Report& report) {
  std::string text =
      markdown::heading({"file", "operations", "compared", "wrong", "worst used", "result"});
  std::vector<const ReportFile*> order;
  for (const ReportFile& file : report.files)
    order.push_back(&file);
  std::stable_partition(order.begin(), order.end(),
                        [](const ReportFile* file) { return failed(file->verdict); });
  for (std::size_t i = 0; i < std::min(order.size(), kRows); ++i) {
    const Summary summary = report.summary(order[i]->file);
    text += markdown::row({order[i]->file, std::to_string(summary.operations),
                           std::to_string(summary.comparisons), count(summary.mismatches),
                           short_number(summary.worst_used), markdown::shown(order[i]->verdict)});
  }
  text += order.size() > kRows ? "\nMore files are in the other formats.\n" : "";
  std::string reasons;
  for (std::size_t i = 0; i < std::min(order.size(), kRows); ++i)
    if (!order[i]->reason.empty())
      reasons += "- " + markdown::shown(order[i]->verdict) + ": " +
                 markdown::cell(order[i]->reason, kReason) + "\n";
  return text + (reasons.empty() ? "" : "\n" + reasons);
}

std::string not_passed(const Report& report) {
  std::string text;
  std::size_t rows = 0;
  for (const ReportLine& line : report.lines) {
    if (line.verdict == Verdict::pass || line.verdict == Verdict::skipped) continue;
    if (++rows > kRows) continue;
    text += markdown::row(
        {line.file, std::to_string(line.step), line.operation, line.tensor,
         line.subject + "/" + line.against, line.gate, short_number(line.used),
         count(line.mismatches),
         markdown::shown(line.verdict) + (line.reason.empty() ? "" : ": " + line.reason)});
  }
  if (text.empty()) return {};
  return "\n" +
         markdown::heading({"file", "step", "operation", "tensor", "compared", "gate", "used",
                            "wrong", "result"}) +
         text + (rows > kRows ? "\nMore of them are in the other formats.\n" : "");
}

std::string first_failure(const Report& report) {
  const auto line = std::find_if(report.lines.begin(), report.lines.end(),
                                 [](const ReportLine& l) { return failed(l.verdict); });
  if (line == report.lines.end()) return {};
  return "\n" + markdown::failure(*line);
}

} // namespace

namespace markdown {

std::string cell(const std::string& text, std::size_t longest) {
  std::string result;
  for (const char c : cut(text, longest))
    if (c == '\n' || c == '\r')
      result += ' ';
    else if (std::string_view("|`<>*_\\[]").find(c) != std::string_view::npos)
      result += std::string("\\") + c;
    else
      result += c;
  return result;
}

std::string row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& of : cells)
    text += " " + cell(of) + " |";
  return text + "\n";
}

std::string heading(const std::vector<std::string>& columns) {
  std::string text = row(columns) + "|";
  for (std::size_t i = 0; i < columns.size(); ++i)
    text += "---|";
  return text + "\n";
}

std::string shown(Verdict verdict) {
  return verdict == Verdict::fail ? "FAIL" : std::string(name(verdict));
}

std::string fenced(const std::string& text) {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos)
    fence += '`';
  return fence + "\n" + text + (text.ends_with('\n') ? "" : "\n") + fence + "\n";
}

std::string failure(const ReportLine& line) {
  return fenced(cut(title(line) + "\n" + details(line, true), kDetails));
}

std::string warnings(const std::vector<std::string>& all) {
  std::string text = all.empty() ? "" : "\n";
  for (std::size_t i = 0; i < std::min(all.size(), kRows); ++i)
    text += "- warning: " + cell(all[i]) + "\n";
  return text;
}

} // namespace markdown

std::string to_markdown(const Report& original) {
  const Report report = printable(original);
  const Summary summary = report.summary();
  std::string text =
      "### dsakit " + report.verb + ": " + markdown::shown(report.verdict()) +
      (report.partial ? " (PARTIAL: interrupted)" : "") + "\n\n" +
      plural(summary.comparisons, "comparison") + ", " + std::to_string(summary.passed) +
      " passed, " + std::to_string(summary.not_passed) + " not, " + std::to_string(summary.waived) +
      " of them waived; dsakit " + markdown::cell(report.environment.version);
  if (!report.device.empty()) text += " on " + markdown::cell(report.environment.device);
  if (report.device == "host") text += ": a model of AMD lanes on this CPU, no AMD hardware";
  text += "\n\n" + files(report) + not_passed(report) + first_failure(report);
  return text + markdown::warnings(report.warnings);
}

} // namespace dsakit::harness
