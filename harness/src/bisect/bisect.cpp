#include "dsakit/harness/bisect.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "../recording/tensor_rules.hpp"
#include "../replay/command.hpp"
#include "../replay/names.hpp"
#include "../replay/trial.hpp"
#include "part.hpp"

namespace dsakit::harness {
namespace {

bool is_wrong(const ReportLine& line) {
  return line.verdict == Verdict::fail || line.verdict == Verdict::error;
}

using LineKey = std::tuple<std::int64_t, std::string, std::string>;

LineKey key_of(const ReportLine& line) {
  return {line.step, line.operation, line.tensor};
}

/// The lines of our kernels against what was recorded.
std::map<LineKey, const ReportLine*> by_tensor(const Report& report) {
  std::map<LineKey, const ReportLine*> lines;
  for (const ReportLine& line : report.lines)
    if (line.subject == "kernel" && line.against == "recorded" && line.worst_abs)
      lines[key_of(line)] = &line;
  return lines;
}

std::vector<Growth> growth_of(const Report& fed, const Report& chained) {
  const auto alone = by_tensor(fed);
  std::vector<Growth> all;
  for (const ReportLine& line : chained.lines) {
    const auto found = alone.find(key_of(line));
    if (found == alone.end() || line.subject != "kernel" || line.against != "recorded" ||
        !line.worst_abs)
      continue;
    const ReportLine& before = *found->second;
    const Growth growth{line.step,
                        line.operation,
                        line.tensor,
                        *before.worst_abs,
                        before.used.value_or(0),
                        *line.worst_abs,
                        line.used.value_or(0),
                        line.moved};
    if (growth.chained_abs > growth.fed_abs || growth.moved > 0) all.push_back(growth);
  }
  return all;
}

/// Some step has more than one operation.
bool has_chain(const Report& fed) {
  std::map<std::int64_t, std::set<std::string>> operations;
  for (const ReportLine& line : fed.lines)
    operations[line.step].insert(line.operation);
  return std::any_of(operations.begin(), operations.end(),
                     [](const auto& step) { return step.second.size() > 1; });
}

/// The name of the first axis of an output in kTensorRules.
std::string first_axis(const OperationData& data, const std::string& output) {
  for (const TensorRule& rule : kTensorRules)
    if (applies(rule, data.operation()) && rule.tensor == output)
      return split_names(rule.shape).front();
  return "rows";
}

WrongRows rows_of(const Comparison& comparison, const Shape& shape, const std::string& axis) {
  std::set<std::int64_t> wrong;
  for (const std::int64_t flat : comparison.wrong)
    wrong.insert(coordinates(shape, flat)[0]);
  WrongRows rows{axis,           *wrong.begin(),
                 *wrong.begin(), std::ssize(wrong),
                 shape[0],       comparison.mismatches <= std::ssize(comparison.wrong)};
  while (wrong.contains(rows.last + 1))
    ++rows.last;
  return rows;
}

/// Judges that line once more, for the places of all its mismatches.
Result<std::optional<WrongRows>> find_rows(const BisectOptions& options, Rules& rules,
                                           const ReportLine& line) {
  std::optional<WrongRows> none;
  // A layer as a whole has no reference of its own.
  if (line.mismatches == 0 || line.first_at.empty() || !find_adapter(line.operation)) return none;
  const auto reader = RecordingReader::open(options.file);
  DSAKIT_TRY(reader);
  const Overrides overrides(options.overrides);
  const ContractValues contract = overrides.contract(*reader, line.step);
  const OperationId id{line.step, line.operation};
  const auto tensors = reader->read(id, contract);
  DSAKIT_TRY(tensors);
  KernelRunner kernels(options.device, options.host, options.time_limit_s, options.kernel_library);
  DSAKIT_TRY(kernels.open());
  const Trial trial(*reader, overrides, rules, kernels);
  const OperationData data{id, contract, *tensors, reader->config()};
  const auto pairs = pairs_of(data, overrides);
  DSAKIT_TRY(pairs);
  for (const Pair& pair : *pairs) {
    if (pair.tensor != line.tensor || name(pair.got) != line.subject ||
        name(pair.want) != line.against)
      continue;
    const auto outcome = trial.run(data, pair);
    DSAKIT_TRY(outcome);
    if (outcome->comparison && !outcome->comparison->wrong.empty())
      return std::optional(
          rows_of(*outcome->comparison, outcome->shape, first_axis(data, pair.output)));
  }
  return none;
}

/// `begin`, `share`: of the bisection's progress.
ReplayOptions replay_options(const BisectOptions& options, ReplayMode mode, double begin,
                             double share) {
  ReplayOptions replay;
  replay.paths = {options.file};
  replay.device = options.device;
  replay.host = options.host;
  replay.overrides = options.overrides;
  replay.time_limit_s = options.time_limit_s;
  replay.kernel_library = options.kernel_library;
  replay.repeat = options.repeat;
  replay.mode = mode;
  replay.interrupted = options.interrupted;
  if (options.progress)
    replay.progress = [&options, begin, share](double done, const std::string& what) {
      options.progress(begin + share * done, what);
    };
  return replay;
}

/// The operations, and the lines that tell of the wrong ones.
void take_lines(const Report& fed, Bisection& result) {
  std::map<std::pair<std::int64_t, std::string>, std::size_t> places;
  std::vector<Report> of_operation;
  std::set<std::pair<std::int64_t, std::string>> told;
  for (const ReportLine& line : fed.lines) {
    const std::pair operation(line.step, line.operation);
    const auto [place, is_new] = places.emplace(operation, of_operation.size());
    if (is_new) of_operation.emplace_back();
    of_operation[place->second].lines.push_back(line);
    if (line.verdict == Verdict::waived) result.waived_lines.push_back(line);
    if (!is_wrong(line) || !told.insert(operation).second) continue;
    if (result.first)
      result.others.push_back(line);
    else
      result.first = line;
  }
  for (const ReportLine& line : fed.lines)
    if (!result.first && line.verdict == Verdict::unsupported) result.first = line;
  for (const Report& report : of_operation) {
    const Verdict verdict = report.verdict();
    const auto line = std::find_if(report.lines.begin(), report.lines.end(),
                                   [&](const ReportLine& each) { return each.verdict == verdict; });
    result.judged.push_back({line->step, line->operation, verdict, line->reason});
  }
}

Result<Bisection> judge_file(const BisectOptions& options, Rules& rules) {
  const auto fed = replay(replay_options(options, ReplayMode::fed, 0, 0.5), rules);
  DSAKIT_TRY(fed);
  if (fed->files[0].bad_input) return bad_input(fed->files[0].reason);
  Bisection result;
  result.file = options.file;
  result.device = fed->device;
  result.host_arch = fed->host_arch;
  result.environment = fed->environment;
  result.verdict = fed->verdict();
  result.reason = fed->files[0].reason;
  result.operations = fed->summary().operations;
  result.partial = fed->partial;

  take_lines(*fed, result);
  if (result.first && !result.partial) {
    auto rows = find_rows(options, rules, *result.first);
    DSAKIT_TRY(rows);
    result.rows = *rows;
  }
  if (result.first) {
    result.reproduce = result.first->reproduce;
    // shrink takes no whole layer, and what no kernel takes does not fail.
    if (find_adapter(result.first->operation) && is_wrong(*result.first))
      result.next =
          next_command(result.environment, options, options.file, result.first->operation);
  }
  if (has_chain(*fed) && !result.partial) {
    const auto chained = replay(replay_options(options, ReplayMode::chained, 0.5, 0.5), rules);
    DSAKIT_TRY(chained);
    result.partial = chained->partial;
    result.growth = growth_of(*fed, *chained);
  }
  result.warnings = rules.unused();
  return result;
}

} // namespace

std::string_view name(Parting::Cause cause) {
  constexpr std::string_view kNames[] = {"given", "stale", "itself", "inputs"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string next_command(const Environment& environment, const BisectOptions& options,
                         const std::string& file, const std::string& operation) {
  return command(environment, "shrink", file, operation,
                 "-o small.h5" + (options.repeat.empty() ? "" : " " + options.repeat));
}

std::int64_t Bisection::waived() const {
  return std::ssize(waived_lines) +
         std::count_if(partings.begin(), partings.end(),
                       [](const Parting& parting) { return !parting.waived.empty(); });
}

Result<Bisection> bisect(const BisectOptions& options, Rules& rules) {
  return options.against.empty() ? judge_file(options, rules) : part(options, rules);
}

} // namespace dsakit::harness
