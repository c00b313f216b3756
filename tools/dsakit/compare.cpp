// dsakit compare: two runs, as recordings, tensor files or folders of them.
#include <tbb/global_control.h>
#include <tbb/info.h>

#include <memory>

#include "dsakit/harness/compare_paths.hpp"
#include "exit_codes.hpp"
#include "interrupt.hpp"
#include "progress_bar.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct CompareArguments {
  ReportOptions report;
  harness::CompareOptions compare;
  std::vector<std::string> maps;
};

Result<harness::Report> run_compare(CompareArguments& o) {
  auto rules = prepare(o.report, {o.compare.got, o.compare.want});
  DSAKIT_TRY(rules);
  for (const std::string& text : o.maps) {
    auto map = harness::parse_map(text);
    DSAKIT_TRY(map);
    o.compare.maps.push_back(std::move(*map));
  }
  const int threads = o.report.threads > 0 ? o.report.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  if (const std::string repeat = o.report.repeat(); !repeat.empty())
    o.compare.repeat = repeat.substr(1);
  o.compare.interrupted = &catch_interrupt();
  ProgressBar bar;
  o.compare.progress = bar.progress();
  auto report = harness::compare_paths(o.compare, *rules);
  if (report) report->environment.threads = threads;
  return report;
}

} // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "compare", "compare two runs of the same inputs: recordings, .safetensors files, or folders");
  auto options = std::make_shared<CompareArguments>();
  verb->add_option("got", options->compare.got, "what to judge")->required()->type_name("FILE|DIR");
  verb->add_option("want", options->compare.want, "what to judge it by")
      ->required()
      ->type_name("FILE|DIR");
  verb->add_option(
          "--map", options->maps,
          "replace every match in the tensor names of want before they are matched; may be "
          "repeated")
      ->type_name("REGEX=REPLACEMENT")
      ->expected(1)
      ->take_all();
  verb->add_flag("--allow-missing", options->compare.allow_missing,
                 "skip what is on one side only, rather than exit 2");
  options->report.add_to(*verb);
  verb->footer(
      "Recordings: contracts and inputs must be the same (exit 2 names the first difference);\n"
      "bounded outputs are held to the sum of both producers' bounds. Tensors of other files must\n"
      "have the same bytes, unless rules for the operation `tensors` say otherwise.\n" +
      std::string(kExitCodesHelp));
  verb->callback(
      [options, &exit_code] { exit_code = finish(run_compare(*options), options->report); });
}
