#include "json.hpp"

#include <set>
#include <vector>

#include "../recording/text.hpp"

namespace dsakit::harness {

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
  Json json = Json::parse(text, check, false);
  if (!problem.empty()) return bad_input(where + ": " + problem);
  if (json.is_discarded()) return bad_input(where + ": found no valid JSON, want some");
  return json;
}

} // namespace dsakit::harness
