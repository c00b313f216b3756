#include <algorithm>
#include <cstdio>
#include <set>

#include "dsakit/harness/bisect.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kShown = 4; ///< lines of a list, so that everything fits 25

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string sample(const std::optional<Sample>& sample) {
  return sample ? format("%.9g", sample->value) + " (" + sample->hex + ")" : "-";
}

std::string number(double value) {
  return value == 0 ? "0" : format("%.2g", value);
}

std::string times(std::int64_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

std::string place(std::int64_t step, const std::string& operation, const std::string& tensor) {
  return operation + ", step " + std::to_string(step) + (tensor.empty() ? "" : ": " + tensor);
}

std::string and_more(std::size_t all) {
  return all > kShown ? "  ... all " + std::to_string(all) + " are in the JSON\n" : "";
}

std::string where(const WrongRows& rows) {
  std::string text = "  " + rows.axis + " " + std::to_string(rows.first);
  if (rows.last != rows.first) text += " to " + std::to_string(rows.last);
  text += " of " + std::to_string(rows.of);
  if (rows.wrong > rows.last - rows.first + 1)
    text += ", the first block of " + std::to_string(rows.wrong) + " that are wrong";
  return text + (rows.complete ? "\n" : ", as far as counted\n");
}

std::string first_wrong(const Bisection& b) {
  const ReportLine& line = *b.first;
  std::string text = "first wrong operation: " + place(line.step, line.operation, line.tensor) +
                     ", " + line.subject + " against " + line.against + "\n";
  if (line.mismatches > 0)
    text += "  wrong: " + std::to_string(line.mismatches) + " of " + std::to_string(line.elements) +
            " under gate " + line.gate + "\n";
  if (b.rows) text += where(*b.rows);
  if (!line.first_at.empty())
    text += "  first " + to_string(line.first_at) + ": got " + sample(line.got) + ", want " +
            sample(line.want) + "\n";
  if (!line.reason.empty()) text += "  reason: " + line.reason + "\n";
  if (!line.hint.empty()) text += "  hint: " + line.hint + "\n";
  return text;
}

/// Each operation is fed as recorded: those after a wrong one need not be.
std::string other_operations(const Bisection& b) {
  std::string text;
  for (std::size_t i = 0; i < std::min(b.others.size(), kShown); ++i) {
    const ReportLine& line = b.others[i];
    text += "wrong as well, given right inputs: " + place(line.step, line.operation, line.tensor) +
            ", " + line.subject + " against " + line.against + "\n";
  }
  return text + and_more(b.others.size());
}

/// The largest growth, in causal order.
std::string growth(const Bisection& b) {
  if (b.growth.empty()) return "";
  std::vector<const Growth*> shown;
  for (const Growth& growth : b.growth)
    shown.push_back(&growth);
  const auto factor = [](const Growth* g) { return g->chained_abs / std::max(g->fed_abs, 1e-300); };
  std::stable_sort(shown.begin(), shown.end(),
                   [&](const Growth* x, const Growth* y) { return factor(x) > factor(y); });
  shown.resize(std::min(shown.size(), kShown));
  std::sort(shown.begin(), shown.end()); // back to causal order: they lie in one list
  std::string text =
      format("errors that grow when kernels feed kernels:\n  %-34s %9s %9s %9s %9s\n", "",
             "fed abs", "used", "chained", "used");
  for (const Growth* g : shown) {
    const std::string what = g->operation + " " + g->tensor + ", " + std::to_string(g->step);
    text += format("  %-34s %9s %9s %9s %9s", what.c_str(), number(g->fed_abs).c_str(),
                   number(g->fed_used).c_str(), number(g->chained_abs).c_str(),
                   number(g->chained_used).c_str());
    if (g->moved > 0) text += ", " + std::to_string(g->moved) + " moved";
    text += "\n";
  }
  return text + and_more(b.growth.size());
}

std::string right(const std::optional<bool>& is_right) {
  return is_right.value_or(false) ? "right" : "WRONG";
}

std::string cause(const Parting& parting) {
  switch (parting.cause) {
  case Parting::Cause::given:
    return "the runs were given different inputs";
  case Parting::Cause::inputs:
    return "because of its inputs";
  case Parting::Cause::itself:
    break;
  }
  return "by itself";
}

std::string partings(const Bisection& b) {
  const Parting& first = b.partings.front();
  std::string text =
      "first tensor that parts: " + place(first.step, first.operation, first.tensor) + ", " +
      cause(first) + "\n  differs: " + std::to_string(first.mismatches) + " of " +
      std::to_string(first.elements) + "\n";
  if (!first.first_at.empty())
    text += "  first " + to_string(first.first_at) + ": " + sample(first.got) + " against " +
            sample(first.want) + "\n";
  if (first.got_right)
    text += "  by the reference, each of its own inputs: " + b.file + " is " +
            right(first.got_right) + ", " + b.against + " is " + right(first.want_right) + "\n";
  // The first that no input explains matters as much as the first of all.
  const auto itself = std::find_if(b.partings.begin(), b.partings.end(), [](const Parting& p) {
    return p.cause == Parting::Cause::itself;
  });
  if (itself != b.partings.end() && itself != b.partings.begin())
    text +=
        "first that parts by itself: " + place(itself->step, itself->operation, itself->tensor) +
        " (" + b.file + " is " + right(itself->got_right) + ", " + b.against + " is " +
        right(itself->want_right) + ")\n";
  if (b.partings.size() > 1) text += "then:\n";
  for (std::size_t i = 1; i < std::min(b.partings.size(), kShown); ++i) {
    const Parting& p = b.partings[i];
    text += "  " + place(p.step, p.operation, p.tensor) + ", " + cause(p) + ", " +
            std::to_string(p.mismatches) + " of " + std::to_string(p.elements) + "\n";
  }
  return text + and_more(b.partings.size());
}

} // namespace

std::string to_text(const Bisection& b) {
  std::string text = "dsakit " + b.environment.version + " bisect " + b.file;
  if (!b.against.empty()) text += " against " + b.against;
  if (!b.device.empty()) text += " on " + b.environment.device;
  if (b.device == "host") text += ": a model of AMD lanes on this CPU, no AMD hardware";
  text += "\n";
  if (b.first) text += first_wrong(b) + other_operations(b);
  if (!b.partings.empty()) text += partings(b);
  text += growth(b);
  if (!b.reproduce.empty()) text += "reproduce: " + b.reproduce + "\n";
  if (!b.next.empty()) text += "next: " + b.next + "\n";
  text += "verdict: " + std::string(b.verdict == Verdict::fail ? "FAIL" : name(b.verdict)) + " (" +
          times(b.operations, "operation") + ")\n";
  return text;
}

} // namespace dsakit::harness
