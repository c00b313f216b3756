// dsakit bench: how fast kernels are, after a gate says that they are right.
#include "dsakit/harness/bench.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>

#include <cstdio>
#include <memory>

#include "bench_sampler.hpp"
#include "complain.hpp"
#include "device_options.hpp"
#include "exit_codes.hpp"
#include "interrupt.hpp"
#include "progress_bar.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct BenchVerb {
  DeviceOptions device;
  ReportOptions report; // of which bench has --format, -o and --threads
  harness::BenchOptions bench;
  std::string recording, tile, operation, shape, axes, configuration;
  bool explain = false;
};

Result<std::int64_t> parse_tile(const std::string& text) {
  const std::string prefix = "rows=";
  const std::string digits = text.starts_with(prefix) ? text.substr(prefix.size()) : "";
  if (digits.empty() || digits.size() > 9 ||
      digits.find_first_not_of("0123456789") != std::string::npos || std::stoll(digits) == 0)
    return bad_input("--tile: found '" + text + "', want rows=N, 0 < N < 10^9");
  return std::stoll(digits);
}

Result<std::vector<harness::BenchRequest>> requests_of(const BenchVerb& o) {
  if (!o.tile.empty() && o.recording.empty())
    return bad_input("--tile: found no recording, want a file whose rows are tiled");
  if (!o.shape.empty() && (!o.recording.empty() || !o.axes.empty()))
    return bad_input("--shape: found " + (o.recording.empty() ? o.axes : o.recording) +
                     " beside it, want --op alone");
  if (!o.recording.empty() && !o.axes.empty())
    return bad_input("--axes: found " + o.recording + " beside it, want one of the two");
  if (!o.recording.empty()) {
    std::int64_t rows = 0;
    if (!o.tile.empty()) {
      const auto parsed = parse_tile(o.tile);
      DSAKIT_TRY(parsed);
      rows = *parsed;
    }
    return harness::requests_of_recording(o.recording, o.operation, rows);
  }
  if (!o.axes.empty()) return harness::requests_of_axes(o.axes, o.operation);
  if (o.operation.empty())
    return bad_input("bench: found nothing to time, want FILE.h5, --op REGEX or --axes FILE.json");
  return harness::requests_by_shape(o.operation, o.shape);
}

std::string contents(const BenchVerb& o, const harness::BenchReport& report) {
  if (o.report.format == "json") return to_json(report);
  if (o.report.format == "csv") return to_csv(report);
  if (o.report.format == "md") return to_markdown(report);
  return to_text(report, {.explain = o.explain});
}

std::string repeat_options(const BenchVerb& o) {
  std::string text = o.device.repeat();
  const auto add = [&](const std::string& option) { text += (text.empty() ? "" : " ") + option; };
  if (!o.configuration.empty()) add("--configuration " + harness::shell_word(o.configuration));
  if (o.bench.copies != 0) add("--copies " + std::to_string(o.bench.copies));
  if (o.bench.seed != 0) add("--seed " + std::to_string(o.bench.seed));
  return text;
}

Result<harness::BenchReport> run_bench(BenchVerb& o) {
  DSAKIT_TRY(check_dispatch());
  std::vector<std::string> inputs;
  for (const std::string* input : {&o.recording, &o.axes})
    if (!input->empty()) inputs.push_back(*input);
  auto rules = prepare(o.report, inputs);
  DSAKIT_TRY(rules);
  auto overrides = o.device.overrides();
  DSAKIT_TRY(overrides);
  if (!o.configuration.empty()) {
    auto configuration = optimized::parse_configuration(o.configuration);
    DSAKIT_TRY(configuration);
    o.bench.configuration = std::move(*configuration);
  }
  const auto requests = requests_of(o);
  DSAKIT_TRY(requests);
  o.bench.overrides = std::move(*overrides);
  o.bench.device = o.device.kind();
  o.bench.host = o.device.host();
  o.bench.time_limit_s = o.device.time_limit_s;
  o.bench.kernel_library = o.device.kernel_library;
  o.bench.repeat = repeat_options(o);
  o.bench.interrupted = &catch_interrupt();
  ProgressBar bar;
  o.bench.progress = bar.progress();

  const int threads = o.report.threads > 0 ? o.report.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  auto report = harness::bench(o.bench, *requests, *rules, sample_by_google_benchmark);
  if (report) report->environment.threads = threads;
  return report;
}

int finish_bench(BenchVerb& o) {
  const auto report = run_bench(o);
  Status status = report.status();
  if (report) status = print_report(contents(o, *report), o.report);
  if (!status) {
    complain(status.what());
    return exit_code(status.code());
  }
  return report->exit_code();
}

} // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "bench", "time kernels that pass against the reference: of a recording, or by shape");
  auto options = std::make_shared<BenchVerb>();
  BenchVerb& o = *options;
  verb->add_option("recording", o.recording, "time its operations, the reference's, too")
      ->type_name("FILE");
  verb->add_option("--tile", o.tile,
                   "repeat the recording's rows up to N, each repetition on pages of its own")
      ->type_name("rows=N");
  verb->add_option("--op", o.operation, "the operations whose whole name it matches")
      ->type_name("REGEX");
  verb->add_option("--shape", o.shape, "dimensions of --op; what is missing has its default")
      ->type_name("K=V,...");
  verb->add_option("--axes", o.axes, "the problems of a file, as bench/axes has them")
      ->type_name("FILE");
  verb->add_option("--configuration", o.configuration,
                   "of the kernel, in the place of its own choice")
      ->type_name("K=V,...");
  verb->add_option("--samples", o.bench.samples, "of each time; 0: 30, 10 on host")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  verb->add_option(
          "--copies", o.bench.copies,
          "of all tensors, taken in turn for cold times; 0: as many as outrun the last cache")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{2048}))
      ->capture_default_str();
  verb->add_option("--seed", o.bench.seed, "of the values, and of the rows that are compared")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  verb->add_flag("--explain", o.explain, "how bytes and flops are counted, what the limit is");
  o.device.add_to(*verb);
  verb->add_option("--format", o.report.format, "text, json, csv or md")
      ->check(CLI::IsMember({"text", "json", "csv", "md"}))
      ->capture_default_str();
  verb->add_option("-o,--output", o.report.output, "write the report to FILE, whole or not at all")
      ->type_name("FILE");
  verb->add_option("--threads", o.report.threads, "CPU threads at most; 0: one per core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  std::string shapes = "Dimensions of --shape, with their defaults or their choice:\n";
  for (const std::string& line : harness::shape_help())
    shapes += "  " + line + "\n";
  verb->footer(shapes + "A kernel that does not pass is not timed: exit 1.\n" + kExitCodesHelp);
  verb->callback([options, &exit_code] { exit_code = finish_bench(*options); });
}
