// Tuned files: what sweeps found, read once.
#include "runtime/tuned.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "dsakit/optimized/configuration.hpp"

namespace dsakit::optimized {
namespace {

using Json = nlohmann::json;

constexpr const char* kTunedSchema = "dsakit.tuned/1";

/// Joins what `name_of` says of each, for "want one of ...".
template <class Range, class NameOf>
std::string listed(const Range& range, const NameOf& name_of) {
  std::string text;
  for (const auto& item : range)
    text += (text.empty() ? "" : ", ") + name_of(item);
  return text;
}

/// The member `key`, a text of at most a line.
Result<std::string> tuned_text(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_string())
    return bad_input(std::string(key) + ": found no text, want one");
  return found->get<std::string>();
}

Status check_value(const ConfigurationSpace& space, const std::string& key, const Json& value) {
  const auto found = std::find_if(space.keys.begin(), space.keys.end(),
                                  [&](const auto& k) { return k.key == key; });
  if (found == space.keys.end())
    return bad_input("configuration: found " + key + ", want one of " +
                     listed(space.keys, [](const auto& k) { return std::string(k.key); }));
  if (!value.is_number_integer() ||
      std::find(found->values.begin(), found->values.end(), value) == found->values.end())
    return bad_input("configuration " + key + ": found " + value.dump() + ", want one of " +
                     listed(found->values, [](std::int32_t v) { return std::to_string(v); }));
  return {};
}

Result<TunedChoice> parse_choice(const Json& entry) {
  if (!entry.is_object()) return bad_input("found no object, want one");
  constexpr const char* kMembers[] = {"device", "operation", "kernel", "problem_class"};
  for (const auto& [key, value] : entry.items())
    if (key != "configuration" &&
        std::none_of(std::begin(kMembers), std::end(kMembers),
                     [&, &found = key](const char* known) { return found == known; }))
      return bad_input("found the key " + key +
                       ", want device, operation, kernel, problem_class "
                       "and configuration");
  TunedChoice choice;
  std::string* texts[] = {&choice.device, &choice.operation, &choice.kernel, &choice.problem_class};
  for (std::size_t i = 0; i < std::size(kMembers); ++i) {
    auto text = tuned_text(entry, kMembers[i]);
    DSAKIT_TRY(text);
    *texts[i] = std::move(*text);
  }
  const auto& spaces = configuration_spaces();
  const auto space = std::find_if(spaces.begin(), spaces.end(), [&](const auto& s) {
    return s.operation == choice.operation && s.kernel == choice.kernel;
  });
  if (space == spaces.end())
    return bad_input("found operation " + choice.operation + ", kernel " + choice.kernel +
                     ", want one of " + listed(spaces, [](const auto& s) {
                       return std::string(s.operation) + " " + std::string(s.kernel);
                     }));
  const auto configuration = entry.find("configuration");
  if (configuration == entry.end() || !configuration->is_object() || configuration->empty())
    return bad_input("configuration: found no object with keys, want one");
  for (const auto& [key, value] : configuration->items()) {
    DSAKIT_TRY(check_value(*space, key, value));
    choice.configuration[key] = value.get<std::int32_t>();
  }
  return choice;
}

/// Of two values of one key, which JSON allows, nobody could say which was meant.
Result<Json> parse_tuned_json(const std::string& source, const std::string& text) {
  std::string twice;
  std::vector<std::set<std::string>> keys; // of the objects that are open
  const auto note = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && twice.empty() &&
        !keys.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  try {
    Json json = Json::parse(text, note);
    if (!twice.empty())
      return bad_input(source + ": found the key " + twice + " twice, want it once");
    return json;
  } catch (const Json::parse_error& error) {
    return bad_input(source + ": byte " + std::to_string(error.byte) +
                     ": found no valid JSON, want some");
  } catch (const Json::out_of_range&) {
    return bad_input(source + ": found a number beyond 1.8e308, want smaller ones");
  }
}

Result<TunedChoices> read_tuned(const std::string& path) {
  TunedChoices all;
  const auto add = [&](const std::string& source, const std::string& text) -> Status {
    auto choices = parse_tuned(source, text);
    DSAKIT_TRY(choices);
    std::move(choices->begin(), choices->end(), std::back_inserter(all));
    return {};
  };
  if (!path.empty()) {
    std::error_code error; // of what is not there, and the stream says so
    if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error))
      return bad_input("DSAKIT_TUNED: " + path + ": found no ordinary file, want one");
    std::ifstream file(path);
    std::stringstream text;
    if (!(text << file.rdbuf()))
      return bad_input("DSAKIT_TUNED: " + path + ": cannot be read, or is empty");
    DSAKIT_TRY(add("DSAKIT_TUNED: " + path, text.str()));
  }
  for (const BuiltInTuned& file : built_in_tuned())
    DSAKIT_TRY(add(file.source, file.text));
  return all;
}

} // namespace

Result<TunedChoices> parse_tuned(const std::string& source, const std::string& text) {
  const auto parsed = parse_tuned_json(source, text);
  DSAKIT_TRY(parsed);
  const Json& json = *parsed;
  if (!json.is_object() || json.value("schema", Json()) != kTunedSchema)
    return bad_input(source + ": schema: found another, want " + kTunedSchema);
  const auto entries = json.find("choices");
  if (entries == json.end() || !entries->is_array())
    return bad_input(source + ": choices: found no list, want one");
  TunedChoices choices;
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const std::string place = source + ": choices[" + std::to_string(i) + "]: ";
    auto choice = parse_choice((*entries)[i]);
    if (!choice) return bad_input(place + choice.status().what());
    if (find_tuned(choices, choice->device, choice->operation, choice->kernel,
                   choice->problem_class))
      return bad_input(place + "found " + choice->operation + " " + choice->problem_class + " on " +
                       choice->device + " twice, want it once");
    choices.push_back(std::move(*choice));
  }
  return choices;
}

Result<std::shared_ptr<const TunedChoices>> tuned_choices() {
  static std::mutex mutex;
  static std::map<std::string, Result<std::shared_ptr<const TunedChoices>>> read; // by path
  const char* variable = std::getenv("DSAKIT_TUNED");
  const std::string path = variable ? variable : "";
  const std::lock_guard lock(mutex);
  if (const auto found = read.find(path); found != read.end()) return found->second;
  auto choices = read_tuned(path);
  Result<std::shared_ptr<const TunedChoices>> result =
      choices ? Result<std::shared_ptr<const TunedChoices>>(
                    std::make_shared<const TunedChoices>(std::move(*choices)))
              : Result<std::shared_ptr<const TunedChoices>>(choices.status());
  return read.emplace(path, std::move(result)).first->second;
}

} // namespace dsakit::optimized
