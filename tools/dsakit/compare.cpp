// dsakit compare: two recordings of the same inputs.
#include <tbb/global_control.h>
#include <tbb/info.h>

#include <memory>

#include "dsakit/harness/compare_recordings.hpp"
#include "exit_codes.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct Options {
  ReportOptions report;
  harness::CompareOptions compare;
};

Result<harness::Report> run(Options& o) {
  auto rules = prepare(o.report, {o.compare.got, o.compare.want});
  DSAKIT_TRY(rules);
  const int threads = o.report.threads > 0 ? o.report.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  if (const std::string repeat = o.report.repeat(); !repeat.empty())
    o.compare.repeat = repeat.substr(1);
  auto report = harness::compare_recordings(o.compare, *rules);
  if (report) report->environment.threads = threads;
  return report;
}

} // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("compare", "compare the outputs of two recordings of the same inputs");
  auto options = std::make_shared<Options>();
  verb->add_option("got", options->compare.got, "recording to judge")
      ->required()
      ->type_name("FILE");
  verb->add_option("want", options->compare.want, "recording to judge it by")
      ->required()
      ->type_name("FILE");
  verb->add_flag("--allow-missing", options->compare.allow_missing,
                 "skip an output that is on one side only, rather than exit 2");
  options->report.add_to(*verb);
  verb->footer(
      "Contracts and inputs must be the same (exit 2 names the first difference); bounded\n"
      "outputs are held to the sum of both producers' bounds.\n" +
      std::string(kExitCodesHelp));
  verb->callback([options, &exit_code] { exit_code = finish(run(*options), options->report); });
}
