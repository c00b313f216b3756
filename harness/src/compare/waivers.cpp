#include "dsakit/harness/waivers.hpp"

#include <chrono>
#include <cstdio>

#include "import/json.hpp"
#include "recording/text.hpp"
#include "rule_json.hpp"

namespace dsakit::harness {
namespace {

std::string day_of_clock() {
  const std::chrono::year_month_day day(
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  char text[16];
  std::snprintf(text, sizeof text, "%04d-%02u-%02u", static_cast<int>(day.year()),
                static_cast<unsigned>(day.month()), static_cast<unsigned>(day.day()));
  return text;
}

} // namespace

Status Waivers::add_file(const std::string& path) {
  const auto contents = read_text_file(path);
  DSAKIT_TRY(contents);
  const auto parsed = parse_json(path, *contents, 3);
  DSAKIT_TRY(parsed);
  const nlohmann::json& document = *parsed;
  const auto list = document.is_object() ? document.find("waivers") : document.end();
  if (list == document.end() || !list->is_array())
    return bad_input(path + ": found no {\"waivers\": [...]}");
  if (const Status status = only_keys(document, {"waivers"}); !status)
    return {status.code(), path + ": " + escaped(status.what())};
  for (const auto& item : *list) {
    auto waiver = parse_waiver(item, path, {});
    if (!waiver) return {waiver.status().code(), path + ": " + escaped(waiver.status().what())};
    add(std::move(*waiver));
  }
  return {};
}

void Waivers::apply(ReportLine& line) {
  for (Waiver& waiver : waivers_)
    waiver.asked |= waiver.operation == line.operation;
  if (line.verdict != Verdict::fail) return;
  const std::string day = today.empty() ? day_of_clock() : today;
  for (Waiver& waiver : waivers_) {
    if (waiver.operation != line.operation ||
        (!waiver.subject.empty() && waiver.subject != line.subject) ||
        !std::regex_match(line.tensor, waiver.pattern))
      continue;
    waiver.used = true;
    // Days as text are in the order of time.
    if (waiver.expires < day) {
      line.reason = "the waiver expired on " + waiver.expires + ": " + waiver.reason;
      continue;
    }
    line.verdict = Verdict::waived;
    line.reason = "until " + waiver.expires + ": " + waiver.reason;
    return;
  }
}

std::vector<std::string> Waivers::unused() const {
  std::vector<std::string> lines;
  for (const Waiver& waiver : waivers_)
    if (waiver.asked && !waiver.used)
      lines.push_back(waiver.source + ": waiver \"" + waiver.match + "\" of " + waiver.operation +
                      " met no failure: it can go");
  return lines;
}

} // namespace dsakit::harness
