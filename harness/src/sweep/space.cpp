// Spaces of a sweep: problems, axes and constraints, as a list of candidates.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "../bench/problem.hpp"
#include "../compare/rule_json.hpp"
#include "../golden/manifest.hpp"
#include "../import/json.hpp"
#include "../recording/text.hpp"
#include "constraint.hpp"
#include "dsakit/harness/sweep.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

constexpr const char* kSpaceSchema = "dsakit.sweep-space/1";
constexpr std::size_t kMostCandidates = 1'000'000;

/// SpaceValues by name: of a shape, or of the axes.
using SpaceValues = std::map<std::string, json>;
using SpaceLists = std::map<std::string, std::vector<json>>;

/// A problem of a space, all of its dimensions known.
struct SweepProblem {
  std::string operation;
  SpaceValues shape;                  ///< whose numbers constraints may name
  json identity;                      ///< that goes into the key
  std::vector<std::string> arguments; ///< of dsakit bench
  BenchRequest request;               ///< what they say
};

Status at_place(const std::string& place, const Status& status) {
  return {status.code(), place + ": " + status.what()};
}

bool is_space_number(const json& value) {
  return value.is_number_integer() && value >= 1 && value <= (std::int64_t{1} << 40);
}

bool is_space_word(const json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && text.find_first_of(",= \n\t") == std::string::npos;
}

/// A whole number from 1 on, or a word if `words` may be there, or a list of them.
Result<std::vector<json>> space_values(const json& value, bool words) {
  const std::vector<json> values =
      value.is_array() ? value.get<std::vector<json>>() : std::vector<json>{value};
  for (const json& item : values)
    if (!is_space_number(item) && !(words && is_space_word(item)))
      return bad_input("found " + in_quotes(item.dump()) + ", want whole numbers from 1 to 2^40" +
                       (words ? " or words" : ""));
  if (values.empty()) return bad_input("found an empty list, want at least one value");
  if (std::set(values.begin(), values.end()).size() != values.size())
    return bad_input("found a value twice in " + in_quotes(value.dump()) + ", want it once");
  return values;
}

/// Every choice of one value a name, the last name's values running fastest.
Result<std::vector<SpaceValues>> space_combinations(const SpaceLists& axes) {
  std::vector<SpaceValues> all = {{}};
  for (const auto& [name, values] : axes) {
    if (all.size() * values.size() > kMostCandidates)
      return bad_input("found more than " + std::to_string(kMostCandidates) +
                       " combinations, want fewer");
    std::vector<SpaceValues> longer;
    for (const SpaceValues& so_far : all)
      for (const json& value : values) {
        longer.push_back(so_far);
        longer.back()[name] = value;
      }
    all = std::move(longer);
  }
  return all;
}

/// The object `value`, each member a value or a list of them.
Result<SpaceLists> space_lists(const json& value, bool words) {
  if (!value.is_object() || value.empty())
    return bad_input("found " + in_quotes(value.dump()) + ", want an object with names and values");
  SpaceLists lists;
  for (const auto& [name, item] : value.items()) {
    auto values = space_values(item, words);
    if (!values) return at_place(name, values.status());
    lists[name] = std::move(*values);
  }
  return lists;
}

Result<std::vector<SweepProblem>> shapes_of(const std::string& operation, const json& shape) {
  const auto lists = space_lists(shape, true);
  if (!lists) return at_place("shape", lists.status());
  const auto shapes = space_combinations(*lists);
  if (!shapes) return at_place("shape", shapes.status());
  std::vector<SweepProblem> problems;
  for (const SpaceValues& values : *shapes) {
    std::string text;
    BenchDims dims;
    for (const auto& [name, value] : values) {
      dims[name] = value.is_string() ? value.get<std::string>() : value.dump();
      text += (text.empty() ? "" : ",") + name + "=" + dims[name];
    }
    problems.push_back({operation,
                        values,
                        {{"operation", operation}, {"shape", values}},
                        {"--op", operation, "--shape", text},
                        {operation, std::move(dims), "", 0, 0}});
  }
  return problems;
}

/// `folder`: of the space, for a recording with a relative name.
Result<SweepProblem> recorded_problem(const std::string& operation, const json& problem,
                                      const std::filesystem::path& folder) {
  const auto name = text_member(problem, "recording");
  DSAKIT_TRY(name);
  const std::string path = (folder / *name).string();
  const auto hash = sha256_of(path);
  DSAKIT_TRY(hash);
  SweepProblem recorded{operation,
                        {},
                        {{"operation", operation},
                         {"recording", std::filesystem::path(path).filename().string()},
                         {"sha256", *hash}},
                        {path, "--op", operation},
                        {operation, {}, path, 0, 0}};
  if (!problem.contains("tile")) return recorded;
  const json& tile = problem["tile"];
  if (!is_space_number(tile))
    return bad_input("tile: found " + in_quotes(tile.dump()) + ", want a number of rows");
  recorded.shape["tile"] = tile;
  recorded.identity["tile"] = tile;
  recorded.request.tile = tile.get<std::int64_t>();
  recorded.arguments.insert(recorded.arguments.end(), {"--tile", "rows=" + tile.dump()});
  return recorded;
}

Result<std::vector<SweepProblem>> problems_of(const json& problem,
                                              const std::filesystem::path& folder) {
  if (!problem.is_object())
    return bad_input("found " + in_quotes(problem.dump()) + ", want an object");
  DSAKIT_TRY(only_keys(problem, {"operation", "shape", "recording", "tile"}));
  const auto operation = text_member(problem, "operation");
  DSAKIT_TRY(operation);
  if (problem.contains("shape") == problem.contains("recording"))
    return bad_input("found both or none of shape and recording, want one of them");
  if (problem.contains("shape")) {
    if (problem.contains("tile")) return bad_input("found tile, want it with a recording alone");
    return shapes_of(*operation, problem["shape"]);
  }
  auto recorded = recorded_problem(*operation, problem, folder);
  DSAKIT_TRY(recorded);
  return std::vector<SweepProblem>{std::move(*recorded)};
}

/// Whether some kernel of the operation lists these keys and values; a library's takes any.
Status check_axes(const std::string& operation, const SpaceLists& axes, bool foreign) {
  for (const auto& [axis, values] : axes)
    for (const json& value : values)
      if (value > std::numeric_limits<std::int32_t>::max())
        return bad_input("axes: " + axis + ": found " + value.dump() + ", want less than 2^31");
      else if (foreign && axis.find_first_of(",= ") != std::string::npos)
        return bad_input("axes: found " + in_quotes(axis) + ", want a name without , = and blanks");
      else if (const Status status = foreign ? Status{}
                                             : optimized::check_configuration(
                                                   operation, {{axis, value.get<std::int32_t>()}});
               !status)
        return at_place("axes", status);
  return {};
}

/// Whether bench will understand the problem; whether there is room for it is another matter.
Status check_bench_takes(const SweepProblem& problem) {
  BenchRequest request = problem.request;
  if (request.recording.empty()) {
    auto shape = complete_shape(request.operation, request.shape);
    DSAKIT_TRY(shape);
    request.shape = std::move(*shape);
    return check_problem(request, {});
  }
  const auto recorded = requests_of_recording(request.recording, request.operation, request.tile);
  if (!recorded) return bad_input(recorded.status().what());
  if (recorded->size() == 1) return {};
  return bad_input(request.recording + ": found " + request.operation + " in " +
                   std::to_string(recorded->size()) + " steps, want it in one");
}

SweepCandidate candidate_of(const SweepProblem& problem, const SpaceValues& values, bool foreign,
                            bool is_default) {
  SweepCandidate candidate{
      problem.identity.dump(), problem.operation, {}, problem.arguments, foreign};
  for (const auto& [axis, value] : values)
    candidate.configuration[axis] = is_default ? 0 : value.get<std::int32_t>();
  if (!values.empty())
    candidate.arguments.insert(
        candidate.arguments.end(),
        {"--configuration", optimized::configuration_text(candidate.configuration)});
  return candidate;
}

Status add_problem(const SweepProblem& problem, const std::vector<SpaceValues>& configurations,
                   const json& constraints, bool foreign, SweepSpace& space) {
  space.candidates.push_back(candidate_of(problem, configurations.front(), foreign, true));
  for (const SpaceValues& configuration : configurations) {
    if (configuration.empty()) continue; // without axes there is the default alone
    std::map<std::string, std::int64_t, std::less<>> values;
    for (const auto& [name, value] : problem.shape)
      if (value.is_number()) values[name] = value.get<std::int64_t>();
    for (const auto& [axis, value] : configuration)
      if (!values.emplace(axis, value.get<std::int64_t>()).second)
        return bad_input("found " + axis + " as an axis and in the shape, want it once");
    bool wanted = true;
    for (std::size_t i = 0; i < constraints.size(); ++i) {
      const std::string place = "constraints[" + std::to_string(i) + "]";
      if (!constraints[i].is_string()) return bad_input(place + ": found no text, want one");
      const auto fulfilled = holds(constraints[i].get<std::string>(), values);
      if (!fulfilled) return at_place(place, fulfilled.status());
      wanted = wanted && *fulfilled;
    }
    if (!wanted) ++space.excluded;
    if (wanted) space.candidates.push_back(candidate_of(problem, configuration, foreign, false));
    if (space.candidates.size() > kMostCandidates)
      return bad_input("found more than " + std::to_string(kMostCandidates) +
                       " candidates, want fewer");
  }
  return {};
}

Status add_sweep(const json& entry, const std::filesystem::path& folder,
                 const std::vector<std::string>& foreign_operations, SweepSpace& space) {
  if (!entry.is_object()) return bad_input("found " + in_quotes(entry.dump()) + ", want an object");
  DSAKIT_TRY(only_keys(entry, {"problems", "axes", "constraints"}));
  const bool without_axes = !entry.contains("axes");
  const auto axes =
      without_axes ? Result<SpaceLists>(SpaceLists{}) : space_lists(entry["axes"], false);
  if (!axes) return at_place("axes", axes.status());
  const auto configurations = space_combinations(*axes);
  if (!configurations) return at_place("axes", configurations.status());
  const json constraints = entry.value("constraints", json::array());
  if (!constraints.is_array()) return bad_input("constraints: found no list, want one");
  const json problems = entry.value("problems", json());
  if (!problems.is_array() || problems.empty())
    return bad_input("problems: found no list with problems, want one");
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const std::string place = "problems[" + std::to_string(i) + "]";
    const auto expanded = problems_of(problems[i], folder);
    if (!expanded) return at_place(place, expanded.status());
    for (const SweepProblem& problem : *expanded) {
      const bool foreign = std::find(foreign_operations.begin(), foreign_operations.end(),
                                     problem.operation) != foreign_operations.end();
      if (without_axes && !foreign)
        return bad_input("axes: found none, want an object with names and values");
      Status status = check_axes(problem.operation, *axes, foreign);
      if (status) status = add_problem(problem, *configurations, constraints, foreign, space);
      if (status) status = check_bench_takes(problem);
      if (!status) return at_place(place, status);
    }
  }
  return {};
}

} // namespace

bool SweepCandidate::is_default() const {
  return std::all_of(configuration.begin(), configuration.end(),
                     [](const auto& item) { return item.second == 0; });
}

Result<SweepSpace> read_sweep_space(const std::string& path,
                                    const std::vector<std::string>& foreign) {
  const auto text = read_text_file(path);
  DSAKIT_TRY(text);
  const auto parsed = parse_json(path, *text, 8);
  DSAKIT_TRY(parsed);
  const json& file = *parsed;
  if (!file.is_object() || file.value("schema", json()) != kSpaceSchema)
    return bad_input(path + ": schema: found another, want " + kSpaceSchema);
  if (const Status status = only_keys(file, {"schema", "sweeps"}); !status)
    return at_place(path, status);
  const json sweeps = file.value("sweeps", json());
  if (!sweeps.is_array() || sweeps.empty())
    return bad_input(path + ": sweeps: found no list with sweeps, want one");
  SweepSpace space;
  std::set<std::pair<std::string, optimized::Configuration>> seen;
  for (std::size_t i = 0; i < sweeps.size(); ++i) {
    const std::string place = path + ": sweeps[" + std::to_string(i) + "]";
    const std::size_t before = space.candidates.size();
    if (const Status status =
            add_sweep(sweeps[i], std::filesystem::path(path).parent_path(), foreign, space);
        !status)
      return at_place(place, status);
    for (std::size_t c = before; c < space.candidates.size(); ++c)
      if (const SweepCandidate& candidate = space.candidates[c];
          !seen.emplace(candidate.problem, candidate.configuration).second)
        return bad_input(place + ": found " + candidate.problem + " with " +
                         optimized::configuration_text(candidate.configuration) +
                         " twice, want it once");
  }
  return space;
}

} // namespace dsakit::harness
