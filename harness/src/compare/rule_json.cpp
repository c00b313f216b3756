#include "rule_json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>

#include "dsakit/core/operations.hpp"
#include "recording/names.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80);
}

/// std::regex takes a stack frame for each parenthesis within another, so a length is set.
constexpr std::size_t kLongestPattern = 256;

Result<std::regex> pattern_of(const std::string& match) {
  if (match.size() > kLongestPattern)
    return bad_input("found a pattern of " + std::to_string(match.size()) +
                     " bytes, want at most " + std::to_string(kLongestPattern));
  try {
    return std::regex(match);
  } catch (const std::regex_error& error) {
    return bad_input(error.what());
  }
}

Result<Gate> gate_of(const std::string& text) {
  for (const Gate gate : {Gate::exact, Gate::derived, Gate::topk_set})
    if (text == name(gate)) return gate;
  return bad_input("found gate '" + text + "', want exact | derived | topk_set");
}

/// Missing: empty.
Result<std::string> subject_of(const json& object) {
  if (!object.contains("subject")) return std::string();
  auto subject = text_member(object, "subject");
  DSAKIT_TRY(subject);
  if (*subject != "kernel" && *subject != "reference" && *subject != "recorded")
    return bad_input("found subject '" + *subject + "', want kernel | reference | recorded");
  return subject;
}

/// A whole number or a decimal one, nothing after it.
template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Status check(const Rule& rule) {
  const Limits& limits = rule.limits;
  if (limits.budget_count < 0 || !(limits.budget_fraction >= 0 && limits.budget_fraction < 1))
    return bad_input("budget: found a count of " + std::to_string(limits.budget_count) +
                     " and a fraction of " + std::to_string(limits.budget_fraction) +
                     ", want a count of 0 or more and a fraction from 0 to below 1");
  if (limits.relative_l2 && !(std::isfinite(*limits.relative_l2) && *limits.relative_l2 >= 0))
    return bad_input("relative_l2: want a number of 0 or more");
  if (rule.band && rule.gate != Gate::topk_set)
    return bad_input("band: found gate " + std::string(name(rule.gate)) + ", want topk_set");
  return {};
}

Status read_limits(const json& object, Rule& rule) {
  if (const auto budget = object.find("budget"); budget != object.end()) {
    const bool sound = budget->is_object() && budget->size() == 2 && budget->contains("count") &&
                       budget->contains("fraction") && (*budget)["count"].is_number_integer() &&
                       (*budget)["fraction"].is_number();
    if (!sound)
      return bad_input("found budget " + shown(*budget) +
                       ", want {\"count\": N, \"fraction\": F}: both hold");
    rule.limits.budget_count = (*budget)["count"].get<std::int64_t>();
    rule.limits.budget_fraction = (*budget)["fraction"].get<double>();
  }
  if (const auto limit = object.find("relative_l2"); limit != object.end()) {
    if (!limit->is_number())
      return bad_input("found relative_l2 " + shown(*limit) + ", want a number");
    rule.limits.relative_l2 = limit->get<double>();
  }
  if (object.contains("band")) {
    const auto band = text_member(object, "band");
    DSAKIT_TRY(band);
    const auto accumulation = parse_accumulation(*band);
    DSAKIT_TRY(accumulation);
    rule.band = *accumulation;
  }
  return check(rule);
}

Status read_option(std::string_view option, Rule& rule) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : option.substr(equals + 1);
  if (key == "budget") {
    const std::size_t colon = value.find(':');
    if (colon == std::string_view::npos ||
        !parse(value.substr(0, colon), rule.limits.budget_count) ||
        !parse(value.substr(colon + 1), rule.limits.budget_fraction))
      return bad_input("found '" + std::string(option) + "', want budget=COUNT:FRACTION");
    return {};
  }
  if (key == "l2") {
    double limit = 0;
    if (!parse(value, limit))
      return bad_input("found '" + std::string(option) + "', want l2=LIMIT");
    rule.limits.relative_l2 = limit;
    return {};
  }
  if (key == "band") {
    const auto accumulation = parse_accumulation(value);
    DSAKIT_TRY(accumulation);
    rule.band = *accumulation;
    return {};
  }
  return bad_input("found '" + std::string(option) + "', want budget=, l2= or band=");
}

Status in_rule(const std::string& match, const Status& status) {
  return {status.code(), "rule \"" + match + "\": " + status.what()};
}

/// YYYY-MM-DD of a day that exists.
bool is_date(const std::string& text) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  return text.size() == 10 && text[4] == '-' && text[7] == '-' &&
         parse(std::string_view(text).substr(0, 4), year) &&
         parse(std::string_view(text).substr(5, 2), month) &&
         parse(std::string_view(text).substr(8, 2), day) &&
         std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(month),
                                     std::chrono::day(day))
             .ok();
}

} // namespace

Result<std::string> text_member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return bad_input(std::string("want a text \"") + key + "\" in " + shown(object));
  return found->get<std::string>();
}

Status only_keys(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& item : object.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      return bad_input("found key \"" + item.key() + "\" in " + shown(object));
  return {};
}

Result<Rule> parse_rule(const json& object) {
  if (!object.is_object()) return bad_input("found rule " + shown(object) + ", want an object");
  DSAKIT_TRY(
      only_keys(object, {"match", "subject", "gate", "why", "budget", "relative_l2", "band"}));
  auto match = text_member(object, "match");
  DSAKIT_TRY(match);
  const auto gate_text = text_member(object, "gate");
  DSAKIT_TRY(gate_text);
  auto why = text_member(object, "why");
  DSAKIT_TRY(why);
  auto subject = subject_of(object);
  if (!subject) return in_rule(*match, subject.status());
  const auto gate = gate_of(*gate_text);
  if (!gate) return in_rule(*match, gate.status());
  auto pattern = pattern_of(*match);
  if (!pattern) return in_rule(*match, pattern.status());
  Rule rule{std::move(*match), std::move(*pattern), std::move(*subject), *gate};
  rule.why = std::move(*why);
  if (const Status status = read_limits(object, rule); !status) return in_rule(rule.match, status);
  return rule;
}

Result<Rule> parse_gate_option(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return bad_input("want REGEX=GATE[,budget=COUNT:FRACTION][,l2=LIMIT][,band=ACCUMULATION]");
  std::string match = text.substr(0, equals);
  std::size_t comma = text.find(',', equals);
  const auto gate = gate_of(text.substr(equals + 1, comma - equals - 1));
  DSAKIT_TRY(gate);
  auto pattern = pattern_of(match);
  DSAKIT_TRY(pattern);
  Rule rule{std::move(match), std::move(*pattern), {}, *gate};
  rule.why = "given on the command line";
  while (comma != std::string::npos) {
    const std::size_t begin = comma + 1;
    comma = text.find(',', begin);
    DSAKIT_TRY(read_option(std::string_view(text).substr(begin, comma - begin), rule));
  }
  DSAKIT_TRY(check(rule));
  return rule;
}

Result<Waiver> parse_waiver(const json& object, const std::string& source,
                            const std::string& operation) {
  if (!object.is_object()) return bad_input("found waiver " + shown(object) + ", want an object");
  DSAKIT_TRY(only_keys(object, {"operation", "match", "subject", "reason", "expires"}));
  Waiver waiver;
  waiver.source = source;
  waiver.operation = operation;
  if (operation.empty()) {
    auto named = text_member(object, "operation");
    DSAKIT_TRY(named);
    if (!causal_position(*named) && *named != kTensors)
      return bad_input("waiver: found operation '" + *named + "', want a known one");
    waiver.operation = std::move(*named);
  } else if (object.contains("operation")) {
    return bad_input("waiver: found an operation, which is that of the file");
  }
  auto match = text_member(object, "match");
  DSAKIT_TRY(match);
  auto reason = text_member(object, "reason");
  DSAKIT_TRY(reason);
  auto expires = text_member(object, "expires");
  DSAKIT_TRY(expires);
  const std::string which = "waiver \"" + *match + "\": ";
  if (reason->empty()) return bad_input(which + "found no reason, want one");
  if (!is_date(*expires))
    return bad_input(which + "found expires '" + *expires + "', want a day as YYYY-MM-DD");
  auto subject = subject_of(object);
  if (!subject) return bad_input(which + subject.status().what());
  auto pattern = pattern_of(*match);
  if (!pattern) return bad_input(which + pattern.status().what());
  waiver.match = std::move(*match);
  waiver.pattern = std::move(*pattern);
  waiver.subject = std::move(*subject);
  waiver.reason = std::move(*reason);
  waiver.expires = std::move(*expires);
  return waiver;
}

} // namespace dsakit::harness
