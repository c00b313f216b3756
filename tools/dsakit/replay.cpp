// dsakit replay: recorded operations through the reference and the kernels.
#include "dsakit/harness/replay.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>

#include <cstdint>
#include <limits>
#include <memory>

#include "device_options.hpp"
#include "exit_codes.hpp"
#include "interrupt.hpp"
#include "progress_bar.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct ReplayArguments {
  ReportOptions report;
  harness::ReplayOptions replay;
  DeviceOptions device;
  std::string mode = "fed";
  std::vector<std::string> determinism; ///< levels, count
};

/// What has to be said again to see the same result.
std::string repeat(const ReplayArguments& o) {
  std::string text = o.device.repeat();
  const auto add = [&](const std::string& option) { text += (text.empty() ? "" : " ") + option; };
  if (o.mode != "fed") add("--mode " + o.mode);
  if (o.replay.rows != 0)
    add("--rows " + std::to_string(o.replay.rows) + " --seed " + std::to_string(o.replay.seed));
  if (o.replay.attribute) add("--attribute");
  if (!o.determinism.empty()) add("--determinism " + o.determinism[0] + " " + o.determinism[1]);
  if (const std::string rules = o.report.rules.repeat(); !rules.empty()) add(rules);
  return text;
}

Result<harness::Report> run_replay(ReplayArguments& o) {
  DSAKIT_TRY(check_dispatch());
  auto rules = prepare(o.report, o.replay.paths);
  DSAKIT_TRY(rules);
  auto overrides = o.device.overrides();
  DSAKIT_TRY(overrides);
  if (!o.determinism.empty()) {
    const auto wanted = harness::parse_determinism(o.determinism[0], o.determinism[1]);
    DSAKIT_TRY(wanted);
    o.replay.determinism = *wanted;
    if (o.mode == "chained")
      return bad_input("--determinism: found --mode chained, want fed: bits of one operation");
  }
  o.replay.overrides = std::move(*overrides);
  o.replay.device = o.device.kind();
  o.replay.host = o.device.host();
  o.replay.time_limit_s = o.device.time_limit_s;
  o.replay.kernel_library = o.device.kernel_library;
  o.replay.mode = o.mode == "chained" ? harness::ReplayMode::chained : harness::ReplayMode::fed;
  o.replay.repeat = repeat(o);
  o.replay.interrupted = &catch_interrupt();
  ProgressBar bar;
  o.replay.progress = bar.progress();

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
  auto options = std::make_shared<ReplayArguments>();
  ReplayArguments& o = *options;

  verb->add_option("paths", o.replay.paths, "recordings, or folders whose *.h5 are replayed")
      ->required()
      ->type_name("FILE|DIR");
  o.device.add_to(*verb);
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
  verb->add_option("--operation", o.replay.operation, "replay only this one")->type_name("NAME");
  verb->add_flag("--attribute", o.replay.attribute,
                 "say which rounding point explains an error: of attention and FP8 index logits");
  verb->add_option("--determinism", o.determinism,
                   "compare the bits of N runs (run), of N rows alone and in their batch (batch), "
                   "and of other splits (split), where a kernel claims them: run,batch 3")
      ->expected(2)
      ->type_name("LEVEL,... N");
  verb->add_flag("-k,--keep-going", o.replay.keep_going,
                 "go on after a file that is bad or does not pass");
  o.report.add_to(*verb);
  verb->footer("Times are microseconds (us) or as printed; used is the worst error in units of its "
               "gate.\nA hip or cuda device that is not there: exit 77, after the files were "
               "checked.\n" +
               std::string(kExitCodesHelp));
  verb->callback(
      [options, &exit_code] { exit_code = finish(run_replay(*options), options->report); });
}
