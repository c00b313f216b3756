#include <algorithm>

#include "../report/format.hpp"
#include "../report/markdown_parts.hpp"
#include "words.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kListed = 3; ///< lines of a list, so that everything fits 25

std::string sample_or_none(const std::optional<Sample>& sample) {
  return sample ? sample_text(*sample) : "-";
}

std::string place(std::int64_t step, const std::string& operation, const std::string& tensor) {
  return operation + ", step " + std::to_string(step) + (tensor.empty() ? "" : ": " + tensor);
}

std::string and_more(std::size_t all, std::size_t shown = kListed) {
  return all > shown ? "  ... all " + std::to_string(all) + " are in the JSON\n" : "";
}

std::string first_wrong(const Bisection& b) {
  const ReportLine& line = *b.first;
  std::string text = line.verdict == Verdict::unsupported ? "first operation that no kernel takes: "
                                                          : "first wrong operation: ";
  text += place(line.step, line.operation, line.tensor) + ", " + line.subject + " against " +
          line.against + "\n";
  if (line.mismatches > 0)
    text += "  wrong: " + std::to_string(line.mismatches) + " of " + std::to_string(line.elements) +
            " under gate " + line.gate + "\n";
  if (b.rows) text += "  " + where(*b.rows) + "\n";
  if (!line.first_at.empty())
    text += "  first " + coordinate(line.first_at) + ": " +
            samples_text(line, sample_or_none(line.got), sample_or_none(line.want)) + "\n";
  if (!line.reason.empty()) text += "  reason: " + line.reason + "\n";
  if (!line.hint.empty()) text += "  hint: " + line.hint + "\n";
  return text;
}

/// Each operation is fed as recorded: those after a wrong one need not be.
std::string other_operations(const Bisection& b) {
  std::string text;
  for (std::size_t i = 0; i < std::min(b.others.size(), kListed); ++i) {
    const ReportLine& line = b.others[i];
    text +=
        "wrong as well, of its recorded inputs: " + place(line.step, line.operation, line.tensor) +
        ", " + line.subject + " against " + line.against + "\n";
  }
  return text + and_more(b.others.size());
}

std::string growth(const Bisection& b) {
  if (b.growth.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"", "fed abs", "used", "chained", "used", ""}};
  for (const Growth* g : largest_growth(b, kListed))
    rows.push_back({g->operation + " " + g->tensor + ", " + std::to_string(g->step),
                    short_number(g->fed_abs), short_number(g->fed_used),
                    short_number(g->chained_abs), short_number(g->chained_used),
                    g->moved > 0 ? std::to_string(g->moved) + " moved" : ""});
  return "errors that grow when kernels feed kernels:\n" + table(rows, "  ") +
         and_more(b.growth.size());
}

std::string waived_failures(const Bisection& b) {
  if (b.waived_lines.empty()) return {};
  const ReportLine& line = b.waived_lines.front();
  return "waived: " + place(line.step, line.operation, line.tensor) + ", " + line.subject +
         " against " + line.against + ", " + line.reason + "\n" +
         and_more(b.waived_lines.size(), 1);
}

std::string waived_or(const Parting& parting, const std::string& otherwise) {
  return parting.waived.empty() ? otherwise : "waived " + parting.waived;
}

std::string partings(const Bisection& b) {
  const Parting& first = b.partings.front();
  std::string text =
      "first tensor that parts: " + place(first.step, first.operation, first.tensor) + ", " +
      waived_or(first,
                first.cause == Parting::Cause::stale ? why_it_parts(first, b) : cause_of(first)) +
      "\n  differs: " + std::to_string(first.mismatches) + " of " + std::to_string(first.elements) +
      "\n";
  if (!first.first_at.empty())
    text += "  first " + coordinate(first.first_at) + ": " + sample_or_none(first.got) +
            " against " + sample_or_none(first.want) + "\n";
  if (first.got_right && first.cause != Parting::Cause::stale)
    text += "  " + why_it_parts(first, b) + "\n";
  // The first that no input explains matters as much as the first of all.
  const auto itself = std::find_if(b.partings.begin(), b.partings.end(), [](const Parting& p) {
    return p.cause == Parting::Cause::itself && p.waived.empty();
  });
  if (itself != b.partings.end() && itself != b.partings.begin())
    text +=
        "first that parts by itself: " + place(itself->step, itself->operation, itself->tensor) +
        "\n  " + why_it_parts(*itself, b) + "\n";
  if (b.partings.size() > 1) text += "then:\n";
  for (std::size_t i = 1; i < std::min(b.partings.size(), kListed); ++i) {
    const Parting& p = b.partings[i];
    text += "  " + place(p.step, p.operation, p.tensor) + ", " + waived_or(p, cause_of(p)) + ", " +
            std::to_string(p.mismatches) + " of " + std::to_string(p.elements) + "\n";
  }
  return text + and_more(b.partings.size());
}

} // namespace

std::string to_text(const Bisection& original) {
  const Bisection b = printable(original);
  std::string text = asked(b) + "\n";
  if (b.first) text += first_wrong(b) + other_operations(b);
  if (!b.partings.empty()) text += partings(b);
  text += waived_failures(b) + growth(b);
  if (!b.warnings.empty())
    text += "warning: " + b.warnings.front() + "\n" + and_more(b.warnings.size(), 1);
  if (!b.reproduce.empty()) text += "reproduce: " + b.reproduce + "\n";
  if (!b.next.empty()) text += "next: " + b.next + "\n";
  text +=
      "verdict: " + markdown::shown(b.verdict) + " (" + plural(b.operations, "operation") + ")\n";
  if (b.partial) text += "PARTIAL: interrupted; the verdict is of what was looked at\n";
  return text;
}

} // namespace dsakit::harness
