// Markdown of a bisection, for a comment on a pull request.
#include <algorithm>

#include "../report/format.hpp"
#include "../report/markdown_parts.hpp"
#include "words.hpp"

namespace dsakit::harness {
namespace {

using markdown::kRows;

std::string more_rows(std::size_t all) {
  return all > kRows ? "\nMore of them are in the JSON.\n" : "";
}

std::string wrong_table(const Bisection& b) {
  std::vector<const ReportLine*> lines;
  if (b.first) lines.push_back(&*b.first);
  for (const auto* list : {&b.others, &b.waived_lines})
    for (const ReportLine& line : *list)
      lines.push_back(&line);
  if (lines.empty()) return {};
  std::string text = "\n" + markdown::heading({"step", "operation", "tensor", "compared", "gate",
                                               "used", "wrong", "result"});
  for (std::size_t i = 0; i < std::min(lines.size(), kRows); ++i) {
    const ReportLine& line = *lines[i];
    text += markdown::row(
        {std::to_string(line.step), line.operation, line.tensor, line.subject + "/" + line.against,
         line.gate, short_number(line.used), count(line.mismatches),
         markdown::shown(line.verdict) + (line.reason.empty() ? "" : ": " + line.reason)});
  }
  return text + more_rows(lines.size());
}

std::string first_in_full(const Bisection& b) {
  if (!b.first) return {};
  return "\n" + (b.rows ? "First wrong: " + markdown::cell(where(*b.rows)) + "\n\n" : "") +
         markdown::failure(*b.first);
}

std::string partings_table(const Bisection& b) {
  if (b.partings.empty()) return {};
  std::string text =
      "\n" + markdown::heading({"step", "operation", "tensor", "differs", "of", "first", "why"});
  for (std::size_t i = 0; i < std::min(b.partings.size(), kRows); ++i) {
    const Parting& p = b.partings[i];
    text += markdown::row({std::to_string(p.step), p.operation, p.tensor, count(p.mismatches),
                           count(p.elements), coordinate(p.first_at),
                           p.waived.empty() ? why_it_parts(p, b) : "waived " + p.waived});
  }
  return text + more_rows(b.partings.size());
}

std::string growth_table(const Bisection& b) {
  if (b.growth.empty()) return {};
  std::string text = "\nErrors that grow when kernels feed kernels:\n\n" +
                     markdown::heading({"step", "operation", "tensor", "fed abs", "used",
                                        "chained abs", "used", "moved"});
  for (const Growth* g : largest_growth(b, kRows))
    text +=
        markdown::row({std::to_string(g->step), g->operation, g->tensor, short_number(g->fed_abs),
                       short_number(g->fed_used), short_number(g->chained_abs),
                       short_number(g->chained_used), count(g->moved)});
  return text + more_rows(b.growth.size());
}

} // namespace

std::string to_markdown(const Bisection& original) {
  const Bisection b = printable(original);
  std::string text = "### dsakit bisect: " + markdown::shown(b.verdict) +
                     (b.partial ? " (PARTIAL: interrupted)" : "") + "\n\n" +
                     plural(b.operations, "operation") + "; " + markdown::cell(asked(b)) + "\n";
  if (!b.reason.empty()) text += "\n" + markdown::cell(b.reason) + "\n";
  text += wrong_table(b) + first_in_full(b) + partings_table(b) + growth_table(b);
  text += markdown::warnings(b.warnings);
  std::string commands;
  if (!b.reproduce.empty()) commands += "reproduce: " + b.reproduce + "\n";
  if (!b.next.empty()) commands += "next: " + b.next + "\n";
  return commands.empty() ? text : text + "\n" + markdown::fenced(commands);
}

} // namespace dsakit::harness
