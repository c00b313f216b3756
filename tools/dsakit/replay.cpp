// dsakit replay: recorded operations through the reference and the kernels.
#include "dsakit/harness/replay.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <limits>
#include <memory>

#include "exit_codes.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

/// The first Ctrl-C ends the run after the current operation, the second at once.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

struct Options {
  ReportOptions report;
  harness::ReplayOptions replay;
  std::string device = "host";
  std::string host_arch = "gfx942";
  std::string mode = "fed";
  unsigned lds_pattern = optimized::HostOptions{}.lds_pattern;
  std::vector<std::string> contract;
};

/// What has to be said again to see the same result.
std::string repeat(const Options& o) {
  std::string text;
  const auto add = [&](const std::string& option) { text += (text.empty() ? "" : " ") + option; };
  if (o.device != "host")
    add("--device " + o.device);
  else if (o.host_arch != "gfx942")
    add("--host-arch " + o.host_arch);
  if (o.replay.host.schedule_seed != 0)
    add("--host-schedule " + std::to_string(o.replay.host.schedule_seed));
  if (o.lds_pattern != optimized::HostOptions{}.lds_pattern)
    add("--lds-pattern " + std::to_string(o.lds_pattern));
  if (o.mode != "fed") add("--mode " + o.mode);
  if (o.replay.rows != 0)
    add("--rows " + std::to_string(o.replay.rows) + " --seed " + std::to_string(o.replay.seed));
  for (const std::string& item : o.contract)
    add("--contract " + harness::shell_word(item));
  text += o.report.repeat();
  return text.starts_with(' ') ? text.substr(1) : text;
}

Result<harness::Report> run(Options& o) {
  auto rules = prepare(o.report, o.replay.paths);
  DSAKIT_TRY(rules);
  for (const std::string& text : o.contract) {
    const auto parsed = harness::parse_override(text);
    DSAKIT_TRY(parsed);
    o.replay.overrides.push_back(*parsed);
  }
  o.replay.device = o.device == "hip"    ? optimized::DeviceKind::hip
                    : o.device == "cuda" ? optimized::DeviceKind::cuda
                                         : optimized::DeviceKind::host;
  o.replay.host.arch = o.host_arch == "gfx950" ? optimized::Arch::gfx950 : optimized::Arch::gfx942;
  o.replay.host.lds_pattern = static_cast<std::uint8_t>(o.lds_pattern);
  o.replay.mode = o.mode == "chained" ? harness::ReplayMode::chained : harness::ReplayMode::fed;
  o.replay.repeat = repeat(o);
  o.replay.interrupted = &interrupted;
  std::signal(SIGINT, on_interrupt);

  const int threads = o.report.threads > 0 ? o.report.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  auto report = harness::replay(o.replay, *rules);
  if (report) report->environment.threads = threads;
  return report;
}

} // namespace

void add_replay(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "replay", "feed recorded operations to the reference and the kernels, and compare");
  auto options = std::make_shared<Options>();
  Options& o = *options;

  verb->add_option("paths", o.replay.paths, "recordings, or folders whose *.h5 are replayed")
      ->required()
      ->type_name("FILE|DIR");
  verb->add_option("--device", o.device,
                   "host: the AMD lane code on this CPU; hip: an AMD GPU; "
                   "cuda: an NVIDIA GPU")
      ->check(CLI::IsMember({"host", "hip", "cuda"}))
      ->capture_default_str();
  verb->add_option("--host-arch", o.host_arch, "whose instructions the host device models")
      ->check(CLI::IsMember({"gfx942", "gfx950"}))
      ->capture_default_str();
  verb->add_option("--host-schedule", o.replay.host.schedule_seed,
                   "seed of the order of waves between barriers; 0: ascending")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->envname("DSAKIT_HOST_SCHEDULE")
      ->capture_default_str();
  verb->add_option("--lds-pattern", o.lds_pattern,
                   "byte that LDS of the host device holds when a workgroup starts")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  verb->add_option("--contract", o.contract,
                   "override a contract key, or accumulation or mla_scale_read of one tensor")
      ->type_name("KEY[:TENSOR]=VALUE")
      ->expected(1)
      ->take_all();
  verb->add_option("--mode", o.mode,
                   "fed: each operation gets what was recorded; chained: what our kernels made of "
                   "the operations before it")
      ->check(CLI::IsMember({"fed", "chained"}))
      ->capture_default_str();
  auto* rows =
      verb->add_option("--rows", o.replay.rows, "replay at most N rows of each operation; 0: all")
          ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
          ->type_name("N")
          ->capture_default_str();
  verb->add_option("--seed", o.replay.seed, "which rows --rows takes")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->needs(rows)
      ->capture_default_str();
  verb->add_option("--time-limit", o.replay.time_limit_s,
                   "seconds for each operation on a GPU, which runs in a process of its own")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  verb->add_option("--operation", o.replay.operation, "replay only this one")->type_name("NAME");
  verb->add_flag("-k,--keep-going", o.replay.keep_going,
                 "go on after a file that is bad or does not pass");
  o.report.add_to(*verb);
  verb->footer("Times are microseconds (us) or as printed; used is the worst error in units of its "
               "gate.\nA hip or cuda device that is not there: exit 77, after the files were "
               "checked.\n" +
               std::string(kExitCodesHelp));
  verb->callback([options, &exit_code] { exit_code = finish(run(*options), options->report); });
}
