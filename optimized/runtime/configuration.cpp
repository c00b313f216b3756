#include "dsakit/optimized/configuration.hpp"

#include <charconv>
#include <limits>
#include <set>

namespace dsakit::optimized {

std::string configuration_text(const Configuration& configuration) {
  std::string text;
  for (const auto& [key, value] : configuration)
    text += (text.empty() ? "" : ",") + key + "=" +
            (value == 0 ? std::string("default") : std::to_string(value));
  return text;
}

Result<Configuration> parse_configuration(std::string_view text) {
  Configuration configuration;
  for (std::string_view rest = text;;) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const auto equals = item.find('=');
    const std::string key(item.substr(0, equals));
    const std::string_view number =
        equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    std::int32_t value = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool fine = number == "default" || (parsed.ec == std::errc{} && value >= 0 &&
                                              parsed.ptr == number.data() + number.size());
    if (key.empty() || !fine)
      return bad_input("configuration: found '" + std::string(item) +
                       "', want KEY=VALUE with a number or default");
    if (!configuration.emplace(key, value).second)
      return bad_input("configuration: found " + key + " twice, want it once");
    if (item.size() == rest.size()) return configuration;
    rest.remove_prefix(item.size() + 1);
  }
}

Status check_configuration(std::string_view operation, const Configuration& configuration) {
  std::string operations;
  std::map<std::string_view, std::set<std::int32_t>> listed;
  for (const ConfigurationSpace& space : configuration_spaces()) {
    operations += (operations.empty() ? "" : ", ") + std::string(space.operation);
    if (space.operation != operation) continue;
    for (const ConfigurationKey& key : space.keys)
      listed[key.key].insert(key.values.begin(), key.values.end());
  }
  if (listed.empty())
    return bad_input("found " + std::string(operation) +
                     ", which has nothing to tune, want one of " + operations);
  std::string keys;
  for (const auto& [key, values] : listed)
    keys += (keys.empty() ? "" : ", ") + std::string(key);
  for (const auto& [key, value] : configuration) {
    const auto found = listed.find(key);
    if (found == listed.end())
      return bad_input("found " + key + ", want one of " + keys + " for " + std::string(operation));
    if (value != 0 && !found->second.contains(value))
      return bad_input(key + ": found " + std::to_string(value) + ", which no kernel of " +
                       std::string(operation) + " lists (dsakit doctor does)");
  }
  return {};
}

std::string class_of(std::initializer_list<std::pair<std::string_view, std::int64_t>> extents) {
  std::string text;
  for (const auto& [name, extent] : extents) {
    std::int64_t rounded = 1;
    while (rounded < extent && rounded <= std::numeric_limits<std::int64_t>::max() / 2)
      rounded *= 2;
    text += (text.empty() ? "" : " ") + std::string(name) + "=" +
            std::to_string(extent < 1 ? 0 : rounded);
  }
  return text;
}

const Configuration* find_tuned(const TunedChoices& choices, std::string_view device,
                                std::string_view operation, std::string_view kernel,
                                std::string_view problem_class) {
  for (const TunedChoice& choice : choices)
    if (choice.device == device && choice.operation == operation && choice.kernel == kernel &&
        choice.problem_class == problem_class)
      return &choice.configuration;
  return nullptr;
}

} // namespace dsakit::optimized
