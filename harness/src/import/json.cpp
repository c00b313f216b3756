#include "json.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

/// Where the text stops being JSON, and what the parser says of it.
std::string no_json(const std::string& text, const nlohmann::json::parse_error& error) {
  const std::size_t bytes = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
  const std::string_view before = std::string_view(text).substr(0, bytes);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n') + 1; // of the line; npos + 1 is 0
  const std::string_view what = error.what();
  constexpr std::size_t kLongest = 160; // it may quote what it read
  constexpr std::string_view kCause = "syntax error ";
  const std::size_t cause = what.find(kCause);
  std::string said = cause == std::string_view::npos
                         ? ""
                         : ": " + escaped(what.substr(cause + kCause.size(), kLongest));
  return "line " + std::to_string(lines + 1) + ", column " + std::to_string(bytes - start + 1) +
         " (byte " + std::to_string(bytes + 1) + "): found no valid JSON, want some" + said;
}

} // namespace

Result<nlohmann::json> parse_json(const std::string& where, const std::string& text, int depth) {
  using Json = nlohmann::json;
  std::string problem;
  std::vector<std::set<std::string>> keys; // of the objects that are open, by depth
  const auto check = [&](int level, Json::parse_event_t event, Json& value) {
    if (level >= depth + 1 || !problem.empty()) {
      if (problem.empty())
        problem = "found JSON nested deeper than " + std::to_string(depth) + ", want less";
      return false;
    }
    keys.resize(static_cast<std::size_t>(depth) + 2);
    if (event == Json::parse_event_t::object_start)
      keys[static_cast<std::size_t>(level) + 1].clear();
    if (event == Json::parse_event_t::key &&
        !keys[static_cast<std::size_t>(level)].insert(value.get<std::string>()).second)
      problem = "found the key " + in_quotes(value.get<std::string>()) + " twice, want it once";
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    if (problem.empty()) return bad_input(where + ": " + no_json(text, error));
  } catch (const Json::exception& error) { // a number beyond double
    if (problem.empty())
      return bad_input(where + ": found no valid JSON: " + escaped(error.what()));
  }
  if (!problem.empty()) return bad_input(where + ": " + problem);
  return json;
}

} // namespace dsakit::harness
