#include "dsakit/harness/rules.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "built_in_rules.hpp"
#include "recording/names.hpp"
#include "recording/text.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

/// Text member `key` of `object`.
Result<std::string> text(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return bad_input(std::string("want a text \"") + key + "\" in " + object.dump().substr(0, 80));
  return found->get<std::string>();
}

Status only_keys(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& item : object.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      return bad_input("found key \"" + item.key() + "\" in " + object.dump().substr(0, 80));
  return {};
}

Result<Rule> parse_rule(const json& object) {
  if (!object.is_object())
    return bad_input("found rule " + object.dump().substr(0, 80) + ", want an object");
  DSAKIT_TRY(only_keys(object, {"match", "subject", "gate", "why"}));
  auto match = text(object, "match");
  DSAKIT_TRY(match);
  auto gate = text(object, "gate");
  DSAKIT_TRY(gate);
  auto why = text(object, "why");
  DSAKIT_TRY(why);
  std::string subject;
  if (object.contains("subject")) {
    auto given = text(object, "subject");
    DSAKIT_TRY(given);
    subject = std::move(*given);
    if (subject != "kernel" && subject != "reference" && subject != "recorded")
      return bad_input("rule \"" + *match + "\": found subject '" + subject +
                       "', want kernel | reference | recorded");
  }
  constexpr std::array gates = {Gate::exact, Gate::derived, Gate::topk_set};
  const auto known =
      std::find_if(gates.begin(), gates.end(), [&](Gate g) { return *gate == name(g); });
  if (known == gates.end())
    return bad_input("rule \"" + *match + "\": found gate '" + *gate +
                     "', want exact | derived | topk_set");
  try {
    return Rule{*match, std::regex(*match), std::move(subject), *known, *why};
  } catch (const std::regex_error& error) {
    return bad_input("rule \"" + *match + "\": " + error.what());
  }
}

constexpr const char* kRuleOfTensors = R"json({"operation": "tensors", "rules": [
  {"match": "[^]*", "gate": "exact", "why": "nothing says how a tensor of no operation was rounded"}]})json";

Status in_file(const std::string& source, const Status& status) {
  return {status.code(), source + ": " + status.what()};
}

} // namespace

Rules Rules::built_in() {
  Rules rules;
  // A test reads every built-in file on its own, so none can fail here.
  for (const auto& [file, contents] : built_in_rules())
    static_cast<void>(rules.add(file, contents, true));
  static_cast<void>(rules.add("built-in rule", kRuleOfTensors, true));
  return rules;
}

Status Rules::replace_from(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error))
      if (entry->path().extension() == ".json") files.push_back(entry->path());
    std::sort(files.begin(), files.end());
    if (files.empty()) return bad_input(path + ": found no .json file, want rules");
  } else {
    files.emplace_back(path);
  }
  for (const fs::path& file : files) {
    const auto contents = read_text_file(file.string());
    DSAKIT_TRY(contents);
    DSAKIT_TRY(add(file.string(), *contents, false));
  }
  return {};
}

Status Rules::add(const std::string& source, const std::string& contents, bool built_in) {
  const json document = json::parse(contents, nullptr, false);
  if (!document.is_object())
    return bad_input(source +
                     ": found no JSON object, want {\"operation\": ..., \"rules\": [...]}");
  if (Status status = only_keys(document, {"operation", "rules"}); !status)
    return in_file(source, status);
  auto operation = text(document, "operation");
  if (!operation) return in_file(source, operation.status());
  if (!causal_position(*operation) && *operation != kTensors)
    return bad_input(source + ": found operation '" + *operation + "', want a known one");
  const auto list = document.find("rules");
  if (list == document.end() || !list->is_array() || list->empty())
    return bad_input(source + ": want a list \"rules\" with at least one rule");
  OperationRules entry{source, {}, built_in, false};
  for (const json& item : *list) {
    auto rule = parse_rule(item);
    if (!rule) return in_file(source, rule.status());
    entry.rules.push_back(std::move(*rule));
  }
  operations_[*operation] = std::move(entry);
  return {};
}

Result<const Rule*> Rules::find(std::string_view operation, std::string_view tensor,
                                std::string_view subject) {
  const auto entry = operations_.find(operation);
  if (entry == operations_.end())
    return bad_input("rules: none for operation " + std::string(operation));
  entry->second.asked = true;
  for (Rule& rule : entry->second.rules)
    if ((rule.subject.empty() || rule.subject == subject) &&
        std::regex_match(tensor.begin(), tensor.end(), rule.pattern)) {
      rule.used = true;
      return &rule;
    }
  return bad_input(entry->second.source + ": no rule matches " + std::string(operation) +
                   " output " + std::string(tensor) + " of the " + std::string(subject));
}

std::vector<std::string> Rules::unused() const {
  std::vector<std::string> lines;
  for (const auto& [operation, entry] : operations_)
    for (const Rule& rule : entry.rules)
      if (entry.asked && !entry.built_in && !rule.used)
        lines.push_back(entry.source + ": rule \"" + rule.match + "\" matched no tensor of " +
                        operation);
  return lines;
}

} // namespace dsakit::harness
