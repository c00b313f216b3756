// What becomes of results: one file of several, and the tuned file of the fastest configurations.
#include <algorithm>
#include <map>
#include <optional>

#include "dsakit/harness/output.hpp"
#include "dsakit/harness/report.hpp"
#include "results.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

/// The lines of one problem on one device, by one build.
struct SweptProblem {
  json problem;
  std::string code_hash;
  optimized::TunedChoice choice; ///< but for its configuration
  std::optional<json> standard;
  std::optional<json> best; ///< not the default
};

/// Which times decide; every line that is taken has them.
struct SweepTimes {
  std::string name; ///< hot | cold
  double of(const json& line, const char* which) const { return line[name][which].get<double>(); }
};

std::string share_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

/// "libmine.so", whose kernel a line is of; empty: ours.
std::string library_of(const json& line) {
  const auto found = line.find("library");
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Empty where the best is kept.
std::string why_not_kept(const SweptProblem& problem, const SweepTimes& times, double min_effect) {
  if (!problem.standard) return "its default was not timed";
  const double gain =
      1 - times.of(*problem.best, "median_us") / times.of(*problem.standard, "median_us");
  if (gain < min_effect)
    return "found a gain of " + share_text(gain) + ", want at least " + share_text(min_effect);
  if (times.of(*problem.best, "q3_us") >= times.of(*problem.standard, "q1_us"))
    return "its quartiles reach into the default's: noise";
  return "";
}

/// By device, operation, kernel and class; of several builds the lines of the last one in the file.
Result<std::vector<SweptProblem>> swept_problems(const std::vector<json>& lines,
                                                 const SweepTimes& times, const std::string& path) {
  std::vector<SweptProblem> groups;
  for (const json& line : lines) {
    if (hot_median(line) == 0 || !library_of(line).empty()) continue;
    for (const char* key : {"operation", "kernel", "problem_class"})
      if (!line.contains(key) || !line[key].is_string())
        return bad_input(path + ": " + line["key"].get<std::string>() + ": " + key +
                         ": found no text, want one");
    if (!line.contains(times.name))
      return bad_input(path + ": " + line["key"].get<std::string>() + ": found no " + times.name +
                       " times, want some");
    optimized::TunedChoice choice{
        line["device"], line["operation"], line["kernel"], line["problem_class"], {}};
    const std::string code_hash = line["code_hash"];
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const SweptProblem& g) { return g.choice == choice; });
    if (found == groups.end())
      found = groups.insert(groups.end(), {line["problem"], code_hash, choice, {}, {}});
    if (found->code_hash != code_hash) *found = {line["problem"], code_hash, choice, {}, {}};
    if (found->problem != line["problem"])
      return bad_input(path + ": found " + found->problem.dump() + " and " +
                       line["problem"].dump() + ", which are of one class, " +
                       choice.problem_class + ", want one problem a class");
    auto& slot = is_default(line) ? found->standard : found->best;
    if (!slot || times.of(line, "median_us") < times.of(*slot, "median_us")) slot = line;
  }
  return groups;
}

} // namespace

Result<std::int64_t> merge_sweeps(const std::vector<std::string>& inputs,
                                  const std::string& output) {
  std::map<std::string, std::string> lines; // by key
  for (const std::string& input : inputs) {
    DSAKIT_TRY(check_not_input(output, input));
    const auto results = read_sweep_results(input);
    DSAKIT_TRY(results);
    for (const json& line : results->lines)
      lines.emplace(line["key"].get<std::string>(), line.dump());
  }
  std::string text;
  for (const auto& [key, line] : lines)
    text += line + "\n";
  DSAKIT_TRY(write_report(output, text));
  return static_cast<std::int64_t>(lines.size());
}

Result<std::vector<SweepVerdict>> apply_sweep(const std::string& input, const std::string& output,
                                              const SweepApplyOptions& options) {
  if (!(options.min_effect >= 0 && options.min_effect <= 1)) // NaN, too
    return bad_input("--min-effect: found " + share_text(options.min_effect) +
                     ", want 0 to 100 percent");
  const SweepTimes times{options.times};
  DSAKIT_TRY(check_not_input(output, input));
  const auto results = read_sweep_results(input);
  DSAKIT_TRY(results);
  if (!results->lines.empty() &&
      std::none_of(results->lines.begin(), results->lines.end(),
                   [](const json& line) { return library_of(line).empty(); }))
    return bad_input(input + ": found kernels of " + library_of(results->lines.front()) +
                     " alone, want some of dsakit: a tuned file is for its dispatch");
  const auto groups = swept_problems(results->lines, times, input);
  DSAKIT_TRY(groups);
  std::vector<SweepVerdict> verdicts;
  json choices = json::array();
  for (const SweptProblem& problem : *groups) {
    SweepVerdict verdict;
    verdict.choice = problem.choice;
    if (problem.standard) verdict.default_us = times.of(*problem.standard, "median_us");
    if (problem.best) {
      verdict.choice.configuration =
          (*problem.best)["configuration"].get<optimized::Configuration>();
      verdict.median_us = times.of(*problem.best, "median_us");
      verdict.why_not = why_not_kept(problem, times, options.min_effect);
    } else {
      verdict.why_not = "the default alone was timed";
    }
    verdict.kept = verdict.why_not.empty();
    if (verdict.kept)
      choices.push_back({{"device", verdict.choice.device},
                         {"operation", verdict.choice.operation},
                         {"kernel", verdict.choice.kernel},
                         {"problem_class", verdict.choice.problem_class},
                         {"configuration", verdict.choice.configuration}});
    verdicts.push_back(std::move(verdict));
  }
  const std::string text = json{{"schema", "dsakit.tuned/1"}, {"choices", choices}}.dump(2) + "\n";
  DSAKIT_TRY(optimized::parse_tuned(output, text)); // what dispatch would refuse is not written
  DSAKIT_TRY(write_report(output, text));
  return verdicts;
}

} // namespace dsakit::harness
