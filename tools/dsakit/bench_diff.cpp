// dsakit bench-diff: what became slower between two benchmarks.
#include "dsakit/harness/bench_diff.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "complain.hpp"
#include "exit_codes.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

constexpr int kRounds = 2; // of BASE and NEW in turn

struct DiffVerb {
  std::string base, now, min_effect = "3%", rerun, rerun_base;
  ReportOptions report; // of which it has --format and -o
};

/// "3%" or "0.03"
Result<double> parse_effect(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (unit == "%") value /= 100;
  if (end == text.c_str() || (unit != "%" && !unit.empty()) || !(value > 0 && value < 1))
    return bad_input("--min-effect: found '" + text +
                     "', want a part above 0 and below 1, as 3% or 0.03");
  return value;
}

/// What the shell command prints. Its exit code is that of the benchmark: 1 and 3 are said by rows.
Result<std::string> output_of(const std::string& option, const std::string& command) {
  std::fflush(stdout);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return bad_input(option + ": no shell could be started");
  std::string text;
  char block[1 << 16];
  while (const std::size_t count = std::fread(block, 1, sizeof block, pipe))
    text.append(block, count);
  const int status = ::pclose(pipe);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  if (code == 128 + SIGINT) // as a shell tells it, and our own exit code
    return Status(Code::interrupted, option + ": interrupted");
  if (text.empty())
    return bad_input(option + ": found no output and exit code " + std::to_string(code) + " of '" +
                     command + "', want a benchmark as JSON");
  return text;
}

/// BASE and NEW in turn, so that both see the machine as it is; without a command for BASE its file
/// stands.
Result<harness::BenchDiff> run_again(const DiffVerb& o, const harness::BenchDiff& first) {
  std::string base, now;
  const auto append = [](const std::string& name, std::string& all,
                         const std::string& more) -> Status {
    if (all.empty()) {
      all = more;
      return {};
    }
    auto joined = harness::join_samples(name, all, more);
    DSAKIT_TRY(joined);
    all = std::move(*joined);
    return {};
  };
  for (int round = 0; round < (o.rerun_base.empty() ? 1 : kRounds); ++round) {
    if (!o.rerun_base.empty()) {
      const auto text = output_of("--rerun-base", o.rerun_base);
      DSAKIT_TRY(text);
      DSAKIT_TRY(append("--rerun-base", base, *text));
    }
    const auto text = output_of("--rerun", o.rerun);
    DSAKIT_TRY(text);
    DSAKIT_TRY(append("--rerun", now, *text));
  }
  if (!o.rerun_base.empty())
    return harness::diff_benchmark_texts("--rerun-base", base, "--rerun", now, first.min_effect);
  return harness::diff_with_text(o.base, "--rerun", now, first.min_effect);
}

Result<harness::BenchDiff> run_diff(const DiffVerb& o) {
  const auto effect = parse_effect(o.min_effect);
  DSAKIT_TRY(effect);
  DSAKIT_TRY(prepare(o.report, {o.base, o.now}));
  auto diff = harness::diff_benchmarks(o.base, o.now, *effect);
  DSAKIT_TRY(diff);
  const bool slower =
      std::any_of(diff->rows.begin(), diff->rows.end(), [](const harness::DiffRow& row) {
        return row.change == harness::BenchChange::slower;
      });
  if (o.rerun.empty() || !slower) return diff;
  const auto again = run_again(o, *diff);
  DSAKIT_TRY(again);
  harness::keep_repeated(*diff, *again);
  return diff;
}

int finish_diff(const DiffVerb& o) {
  const auto diff = run_diff(o);
  Status status = diff.status();
  if (diff) {
    const bool colour = o.report.output.empty() && ::isatty(STDOUT_FILENO) != 0;
    status = print_report(o.report.format == "json" ? to_json(*diff)
                          : o.report.format == "md" ? to_markdown(*diff)
                                                    : to_text(*diff, colour),
                          o.report);
  }
  if (!status) {
    complain(status.what());
    return exit_code(status.code());
  }
  return diff->exit_code();
}

} // namespace

void add_bench_diff(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "bench-diff", "compare two benchmarks of the same problems: SAME, FASTER, SLOWER, AMBIGUOUS");
  auto options = std::make_shared<DiffVerb>();
  DiffVerb& o = *options;
  verb->add_option("base", o.base, "what bench --format json said before")
      ->required()
      ->type_name("BASE.json");
  verb->add_option("new", o.now, "what it says now")->required()->type_name("NEW.json");
  verb->add_option("--min-effect", o.min_effect, "changes below it are none: 3% or 0.03")
      ->capture_default_str();
  auto* rerun =
      verb->add_option("--rerun", o.rerun,
                       "where a row is SLOWER: a shell command that prints NEW's benchmark "
                       "once more; what does not repeat is AMBIGUOUS")
          ->type_name("CMD");
  verb->add_option("--rerun-base", o.rerun_base,
                   "the same for BASE: both run twice, in turn; without it BASE's file stands")
      ->needs(rerun)
      ->type_name("CMD");
  verb->add_option("--format", o.report.format, "text, json or md")
      ->check(CLI::IsMember({"text", "json", "md"}))
      ->capture_default_str();
  verb->add_option("-o,--output", o.report.output, "write the report to FILE, whole or not at all")
      ->type_name("FILE");
  verb->footer(
      "Exit codes: 0 nothing is slower; 1 a row is SLOWER or its gate fails; 2 usage or bad "
      "input;\n4 nothing is SLOWER and something AMBIGUOUS; 77 the two have no row in common.");
  verb->callback([options, &exit_code] { exit_code = finish_diff(*options); });
}
