#include "words.hpp"

#include <algorithm>

#include "../report/printable.hpp"
#include "dsakit/harness/text.hpp"

namespace dsakit::harness {
namespace {

std::string right_or_wrong(const std::optional<bool>& is_right) {
  return is_right.value_or(false) ? "right" : "WRONG";
}

} // namespace

Bisection printable(Bisection b) {
  for (std::string* text : {&b.file, &b.against, &b.reason, &b.reproduce, &b.next})
    *text = escaped(*text);
  for (JudgedOperation& judged : b.judged)
    judged.reason = escaped(judged.reason);
  if (b.first) b.first = printable(*b.first);
  if (b.rows) b.rows->axis = escaped(b.rows->axis);
  for (auto* lines : {&b.others, &b.waived_lines})
    for (ReportLine& line : *lines)
      line = printable(std::move(line));
  for (Growth& growth : b.growth)
    growth.tensor = escaped(growth.tensor);
  for (Parting& parting : b.partings) {
    parting.tensor = escaped(parting.tensor);
    parting.waived = escaped(parting.waived);
  }
  for (std::string& warning : b.warnings)
    warning = escaped(warning);
  return b;
}

std::string cause_of(const Parting& parting) {
  switch (parting.cause) {
  case Parting::Cause::given:
    return "inputs differ: no operation of the files made it";
  case Parting::Cause::stale:
    return "inputs differ: not what " + parting.maker + " made";
  case Parting::Cause::inputs:
    return "because of its inputs";
  case Parting::Cause::itself:
    break;
  }
  return "by itself";
}

std::string why_it_parts(const Parting& parting, const Bisection& b) {
  if (!parting.got_right) return cause_of(parting);
  if (parting.cause == Parting::Cause::stale)
    return cause_of(parting) + " in " + (*parting.got_right ? b.against : b.file);
  return cause_of(parting) + "; by the reference, each of its own inputs: " + b.file + " is " +
         right_or_wrong(parting.got_right) + ", " + b.against + " is " +
         right_or_wrong(parting.want_right);
}

std::string where(const WrongRows& rows) {
  std::string text = rows.axis + " " + std::to_string(rows.first);
  if (rows.last != rows.first) text += " to " + std::to_string(rows.last);
  const std::int64_t count = rows.last - rows.first + 1;
  text += " (" + std::to_string(count) + " of " + std::to_string(rows.of) + ")";
  if (rows.wrong > count)
    text += ", the first block of " + std::to_string(rows.wrong) + " that are wrong";
  return text + (rows.complete ? "" : ", as far as counted");
}

std::string asked(const Bisection& b) {
  std::string text = "dsakit " + b.environment.version + " bisect " + b.file;
  if (!b.against.empty()) text += " against " + b.against;
  if (!b.device.empty()) text += " on " + b.environment.device;
  if (b.device == "host") text += ": a model of AMD lanes on this CPU, no AMD hardware";
  return text;
}

std::vector<const Growth*> largest_growth(const Bisection& b, std::size_t most) {
  std::vector<const Growth*> shown;
  for (const Growth& growth : b.growth)
    shown.push_back(&growth);
  const auto factor = [](const Growth* g) { return g->chained_abs / std::max(g->fed_abs, 1e-300); };
  std::stable_sort(shown.begin(), shown.end(),
                   [&](const Growth* x, const Growth* y) { return factor(x) > factor(y); });
  shown.resize(std::min(shown.size(), most));
  std::sort(shown.begin(), shown.end()); // back to causal order: they lie in one list
  return shown;
}

} // namespace dsakit::harness
