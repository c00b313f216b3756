// dsakit sweep: which configuration of a kernel is the fastest, and the tuned file of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <regex>
#include <thread>

#include "complain.hpp"
#include "device_options.hpp"
#include "dsakit/harness/kernel_library.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/sweep.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "interrupt.hpp"
#include "progress_bar.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct SweepVerb {
  std::string space;
  std::string device = "host";
  std::string host_arch = "gfx942";
  std::string shard = "1/1";
  std::string budget;
  std::string order = "exhaustive";
  int samples = 0; ///< 0: as bench likes
  harness::SweepOptions options;
};

struct SweepFiles {
  std::vector<std::string> inputs;
  std::string output;
  double min_effect_percent = 3;
  std::string times = "hot";
};

int sweep_failed(const Status& status) {
  complain(status.what(), "sweep");
  return exit_code(status.code());
}

/// "90", "90s", "30m", "2h" in seconds; 0 for anything else.
double seconds_of(const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex("([0-9]{1,6}(?:\\.[0-9]{1,3})?)([smh]?)")))
    return 0;
  const double unit = parts[2] == "h" ? 3600 : parts[2] == "m" ? 60 : 1;
  return std::stod(parts[1]) * unit;
}

Status read_sweep_options(SweepVerb& verb) {
  std::smatch parts;
  if (!std::regex_match(verb.shard, parts, std::regex("([0-9]{1,9})/([0-9]{1,9})")) ||
      std::stoll(parts[1]) < 1 || std::stoll(parts[1]) > std::stoll(parts[2]))
    return bad_input("--shard: found '" + verb.shard + "', want I/N with I from 1 to N");
  verb.options.shard = std::stoll(parts[1]);
  verb.options.shards = std::stoll(parts[2]);
  if (!verb.budget.empty()) {
    verb.options.budget_s = seconds_of(verb.budget);
    if (verb.options.budget_s <= 0)
      return bad_input("--budget: found '" + verb.budget + "', want a time such as 90s, 30m or 2h");
  }
  verb.options.random = verb.order == "random";
  return {};
}

/// The same program as `bench`, on the same device.
std::vector<std::string> bench_command(const SweepVerb& verb) {
  std::vector<std::string> command = {
      "/proc/self/exe", "bench",     "--format",     "json",
      "--device",       verb.device, "--time-limit", std::to_string(verb.options.time_limit_s)};
  if (verb.device == "host") command.insert(command.end(), {"--host-arch", verb.host_arch});
  if (verb.samples > 0) command.insert(command.end(), {"--samples", std::to_string(verb.samples)});
  return command;
}

int say_swept(const harness::SweepSummary& summary, const SweepVerb& verb) {
  for (const harness::SweepBest& best : summary.best) {
    std::printf("%s: ", harness::escaped(best.problem).c_str());
    if (!best.configuration.empty())
      std::printf("%s, ", optimized::configuration_text(best.configuration).c_str());
    std::printf("%.1f us", best.median_us);
    if (best.default_us > 0 && !best.configuration.empty())
      std::printf(", default %.1f us", best.default_us);
    std::puts("");
  }
  std::printf("%lld candidates: %lld timed, %lld disqualified, %lld done before, %lld left\n",
              static_cast<long long>(summary.candidates), static_cast<long long>(summary.timed),
              static_cast<long long>(summary.disqualified),
              static_cast<long long>(summary.done_before), static_cast<long long>(summary.left));
  if (verb.device == "host") std::puts("host times are no kernel times");
  if (summary.left > 0)
    std::printf("what is left: the same command with --resume\n");
  else if (verb.options.kernel_library.empty())
    std::printf("to use it: dsakit sweep apply %s -o tuned.json\n",
                harness::shell_word(verb.options.output).c_str());
  if (summary.interrupted) return kExitInterrupted;
  if (summary.best.empty() && summary.candidates > summary.left) return kExitKernelFailed;
  return summary.default_fails ? kExitMismatch : kExitPass;
}

int run_sweep(SweepVerb& verb) {
  if (const Status status = read_sweep_options(verb); !status) return sweep_failed(status);
  if (const Status status = check_dispatch(); !status) return sweep_failed(status);
  std::vector<std::string> foreign;
  if (!verb.options.kernel_library.empty()) {
    auto operations =
        harness::library_operations(verb.options.kernel_library, verb.options.time_limit_s);
    if (!operations) return sweep_failed(operations.status());
    foreign = std::move(*operations);
  }
  const auto space = harness::read_sweep_space(verb.space, foreign);
  if (!space) return sweep_failed(space.status());
  if (!foreign.empty() &&
      std::none_of(space->candidates.begin(), space->candidates.end(),
                   [](const harness::SweepCandidate& candidate) { return candidate.foreign; }))
    return sweep_failed(unsupported(verb.options.kernel_library +
                                    ": found kernels for no operation of " + verb.space));
  DeviceOptions device;
  device.device = verb.device;
  device.host_arch = verb.host_arch;
  auto identity = harness::sweep_identity(device.kind(), device.host(), verb.options.time_limit_s,
                                          verb.options.kernel_library);
  if (!identity) return sweep_failed(identity.status());
  verb.options.identity = std::move(*identity);
  verb.options.command = bench_command(verb);
  verb.options.interrupted = &catch_interrupt();
  Result<harness::SweepSummary> summary = harness::SweepSummary{};
  {
    ProgressBar bar;
    verb.options.progress = bar.progress();
    summary = harness::sweep(*space, verb.options);
  }
  return summary ? say_swept(*summary, verb) : sweep_failed(summary.status());
}

int run_merge(const SweepFiles& files) {
  const auto lines = harness::merge_sweeps(files.inputs, files.output);
  if (!lines) return sweep_failed(lines.status());
  std::printf("%s: %lld candidates\n", harness::escaped(files.output).c_str(),
              static_cast<long long>(*lines));
  return kExitPass;
}

int run_apply(const SweepFiles& files) {
  const auto verdicts = harness::apply_sweep(files.inputs.front(), files.output,
                                             {files.times, files.min_effect_percent / 100});
  if (!verdicts) return sweep_failed(verdicts.status());
  for (const harness::SweepVerdict& v : *verdicts) {
    std::printf("%s %s %s, %s: ", v.kept ? "kept    " : "not kept", v.choice.operation.c_str(),
                harness::escaped(v.choice.problem_class).c_str(),
                harness::escaped(v.choice.device).c_str());
    if (!v.choice.configuration.empty())
      std::printf("%s, %.1f us, default %.1f us",
                  optimized::configuration_text(v.choice.configuration).c_str(), v.median_us,
                  v.default_us);
    std::printf("%s%s\n", v.why_not.empty() ? "" : ": ", harness::escaped(v.why_not).c_str());
  }
  std::printf("to use it: DSAKIT_TUNED=%s\n", harness::shell_word(files.output).c_str());
  return kExitPass;
}

void add_files_verbs(CLI::App& sweep, int& exit_code) {
  const auto files = std::make_shared<SweepFiles>();
  CLI::App* merge =
      sweep.add_subcommand("merge", "join the results of shards: each candidate once");
  merge->add_option("results", files->inputs, "of dsakit sweep")->required()->type_name("FILE");
  merge->add_option("-o,--output", files->output, "written whole or not at all")
      ->required()
      ->type_name("FILE");
  merge->callback([files, &exit_code] { exit_code = run_merge(*files); });

  CLI::App* apply = sweep.add_subcommand(
      "apply", "write the tuned file of the configurations that beat the default");
  apply->add_option("results", files->inputs, "of dsakit sweep")
      ->required()
      ->expected(1)
      ->type_name("FILE");
  apply->add_option("-o,--output", files->output, "written whole or not at all")
      ->required()
      ->type_name("FILE");
  apply
      ->add_option("--min-effect", files->min_effect_percent,
                   "percent by which the median must beat the default's")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  apply->add_option("--by", files->times, "which times decide")
      ->check(CLI::IsMember({"hot", "cold"}))
      ->capture_default_str();
  apply->callback([files, &exit_code] { exit_code = run_apply(*files); });
}

} // namespace

void add_sweep(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "sweep", "time every configuration of a kernel, and write the tuned file of the fastest");
  const auto options = std::make_shared<SweepVerb>();
  SweepVerb& o = *options;
  verb->require_subcommand(0, 1);
  verb->add_option("space", o.space, "problems, axes and constraints (docs/sweep.md)")
      ->type_name("SPACE.json");
  verb->add_option("-o,--output", o.options.output, "results, a line a candidate; only appended to")
      ->type_name("FILE");
  verb->add_flag("--resume", o.options.resume, "add to FILE what it does not hold yet");
  verb->add_option("--device", o.device, "host: for trying a space out; hip; cuda")
      ->check(CLI::IsMember({"host", "hip", "cuda"}))
      ->capture_default_str();
  verb->add_option("--host-arch", o.host_arch, "whose instructions the host device models")
      ->check(CLI::IsMember({"gfx942", "gfx950"}))
      ->capture_default_str();
  verb->add_option("--kernel-lib", o.options.kernel_library,
                   "a plug-in (docs/plugins.md), whose kernels are swept in place of the built-in "
                   "ones")
      ->check(CLI::ExistingFile)
      ->type_name("LIB.so");
  verb->add_option("--jobs", o.options.jobs,
                   "candidates at a time; above 1 they disturb each other's times")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  verb->add_option("--shard", o.shard, "the I-th of N parts of the space")->type_name("I/N");
  verb->add_option("--budget", o.budget, "start no candidate later: 90s, 30m, 2h")
      ->type_name("TIME");
  verb->add_option("--order", o.order, "of candidates; a random one begins with the defaults")
      ->check(CLI::IsMember({"exhaustive", "random"}))
      ->capture_default_str();
  verb->add_option("--seed", o.options.seed, "of the random order")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  verb->add_option("--samples", o.samples, "times a candidate is timed; as dsakit bench")
      ->check(CLI::Range(1, 100000));
  verb->add_option("--time-limit", o.options.time_limit_s,
                   "seconds for a candidate, which is disqualified then")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_files_verbs(*verb, exit_code);
  verb->footer(
      "Each candidate is gated and timed in a process of its own: one that crashes, hangs or is\n"
      "wrong is disqualified and the sweep goes on.\n"
      "Exit codes: 0 swept; 1 a kernel's default is wrong; 2 usage or bad input; 3 nothing could\n"
      "be timed; 77 no such device; 130 interrupted (--resume goes on).");
  verb->callback([verb, options, &exit_code] {
    if (!verb->get_subcommands().empty()) return;
    if (options->space.empty()) throw CLI::RequiredError("space");
    if (options->options.output.empty()) throw CLI::RequiredError("--output");
    exit_code = run_sweep(*options);
  });
}
