#include "candidate.hpp"

#include <sys/wait.h>

#include "../import/json.hpp"
#include "../process/child.hpp"
#include "../recording/text.hpp"
#include "dsakit/harness/exit_codes.hpp"
#include "results.hpp"

namespace dsakit::harness {
namespace {

using nlohmann::json;

std::string last_said(std::string text) {
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return escaped(text.substr(text.rfind('\n') + 1).substr(0, 500));
}

/// The one row of a bench report (docs/bench.schema.json).
Result<json> bench_row(const std::string& report) {
  const auto parsed = parse_json("its report", report, 16);
  DSAKIT_TRY(parsed);
  const json rows = parsed->is_object() ? parsed->value("rows", json()) : json();
  if (!rows.is_array() || rows.size() != 1 || !rows[0].is_object())
    return bad_input("its report: found " +
                     (rows.is_array() ? std::to_string(rows.size()) : std::string("no")) +
                     " rows, want one");
  return rows[0];
}

/// Members of the row that are results; times without their samples.
void take_row(const json& row, json& line) {
  for (const char* key : {"kernel", "library", "problem_class", "ran"})
    if (row.contains(key)) line[key] = row[key];
  for (const char* times : {"hot", "cold"}) {
    if (!row.contains(times) || !row[times].is_object()) continue;
    line[times] = row[times];
    line[times].erase("samples");
  }
}

bool has_median(const json& line) {
  const json times = line.value("hot", json());
  return times.is_object() && times.value("median_us", json()).is_number() &&
         times.value("q1_us", json()).is_number() && times.value("q3_us", json()).is_number();
}

} // namespace

Result<json> try_candidate(const SweepCandidate& candidate, const SweepOptions& options) {
  json line = {{"key", sweep_key(candidate, options.identity)},
               {"operation", candidate.operation},
               {"problem", json::parse(candidate.problem)},
               {"configuration", candidate.configuration},
               {"device", options.identity.device},
               {"code_hash", code_hash_of(candidate, options.identity)},
               {"toolchain", options.identity.toolchain}};
  const auto disqualified = [&](const char* verdict, const std::string& reason) {
    for (const char* times : {"hot", "cold"})
      line.erase(times);
    line["verdict"] = verdict;
    line["reason"] = reason;
    return line;
  };
  std::vector<std::string> command = options.command;
  if (candidate.foreign) command.insert(command.end(), {"--kernel-lib", options.kernel_library});
  command.insert(command.end(), candidate.arguments.begin(), candidate.arguments.end());
  const auto end = run_command(command, options.time_limit_s);
  DSAKIT_TRY(end);
  if (const Status status = survived(*end, options.time_limit_s); !status)
    return disqualified(end->in_time ? "crash" : "hang", status.what());
  const int code = WEXITSTATUS(end->status);
  const std::string said = last_said(end->error);
  if (code == kExitBadInput)
    return bad_input(candidate.problem + " with " +
                     optimized::configuration_text(candidate.configuration) + ": " + said);
  if (code == kExitNothingRan) return Status(Code::no_device, said);
  if (code == kExitInterrupted) return Status(Code::interrupted, said);
  auto row = bench_row(end->out);
  if (row) take_row(*row, line);
  const std::string verdict = row ? row->value("verdict", std::string()) : "";
  const std::string reason = row ? row->value("reason", said) : said;
  if (code == kExitMismatch) return disqualified("fail", reason);
  if (code == kExitKernelFailed)
    return disqualified(verdict == "unsupported" ? "unsupported" : "error", reason);
  if (code != 0)
    return disqualified("error", "its process ended with exit code " + std::to_string(code) +
                                     (said.empty() ? "" : ": " + said));
  if (!row) return disqualified("error", row.status().what());
  // No time counts without a gate that says pass.
  if (verdict != "pass")
    return disqualified("error", "its report: found verdict " + in_quotes(verdict) + ", want pass");
  if (!has_median(line))
    return disqualified("error", "its report: found no median and quartiles, want them");
  line["verdict"] = "pass";
  return line;
}

} // namespace dsakit::harness
