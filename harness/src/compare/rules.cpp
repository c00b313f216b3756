#include "dsakit/harness/rules.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "built_in_rules.hpp"
#include "import/json.hpp"
#include "recording/names.hpp"
#include "recording/text.hpp"
#include "rule_json.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

constexpr int kDepth = 5; ///< of a file: more than rules, a rule and its budget take
constexpr const char* kRuleOfTensors = R"json({"operation": "tensors", "rules": [
  {"match": "[^]*", "gate": "exact", "why": "nothing says how a tensor of no operation was rounded"}]})json";

Status in_file(const std::string& source, const Status& status) {
  return {status.code(), source + ": " + escaped(status.what())};
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
  const auto parsed = parse_json(source, contents, kDepth);
  DSAKIT_TRY(parsed);
  const json& document = *parsed;
  if (!document.is_object())
    return bad_input(source +
                     ": found no JSON object, want {\"operation\": ..., \"rules\": [...]}");
  if (Status status = only_keys(document, {"operation", "rules", "waivers"}); !status)
    return in_file(source, status);
  auto operation = text_member(document, "operation");
  if (!operation) return in_file(source, operation.status());
  if (!causal_position(*operation) && *operation != kTensors)
    return bad_input(source + ": found operation " + in_quotes(*operation) + ", want a known one");
  const auto list = document.find("rules");
  if (list == document.end() || !list->is_array() || list->empty())
    return bad_input(source + ": want a list \"rules\" with at least one rule");
  OperationRules entry{source, {}, built_in, false};
  for (const json& item : *list) {
    auto rule = parse_rule(item);
    if (!rule) return in_file(source, rule.status());
    entry.rules.push_back(std::move(*rule));
  }
  if (const auto given = document.find("waivers"); given != document.end()) {
    if (!given->is_array()) return bad_input(source + ": \"waivers\": want a list");
    for (const json& item : *given) {
      auto waiver = parse_waiver(item, source, *operation);
      if (!waiver) return in_file(source, waiver.status());
      waivers.add(std::move(*waiver));
    }
  }
  operations_[*operation] = std::move(entry);
  return {};
}

Status Rules::add_override(const std::string& text) {
  auto rule = parse_gate_option(text);
  if (!rule) return {rule.status().code(), "--gate '" + text + "': " + rule.status().what()};
  overrides_.push_back(std::move(*rule));
  return {};
}

const Rule* Rules::find_override(std::string_view operation, std::string_view tensor) {
  const std::string whole = std::string(operation) + "/" + std::string(tensor);
  for (Rule& rule : overrides_)
    if (std::regex_match(whole, rule.pattern) ||
        std::regex_match(tensor.begin(), tensor.end(), rule.pattern)) {
      rule.used = true;
      return &rule;
    }
  return nullptr;
}

Result<const Rule*> Rules::find(std::string_view operation, std::string_view tensor,
                                std::string_view subject) {
  if (const Rule* rule = find_override(operation, tensor)) return rule;
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
  for (const Rule& rule : overrides_)
    if (!rule.used) lines.push_back("--gate: \"" + rule.match + "\" matched no tensor");
  for (std::string& line : waivers.unused())
    lines.push_back(std::move(line));
  return lines;
}

} // namespace dsakit::harness
