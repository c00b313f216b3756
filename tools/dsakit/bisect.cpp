// dsakit bisect: the first wrong operation, or where two recordings of one run part.
#include "dsakit/harness/bisect.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>

#include <cstdio>
#include <memory>

#include "complain.hpp"
#include "device_options.hpp"
#include "exit_codes.hpp"
#include "interrupt.hpp"
#include "progress_bar.hpp"
#include "run_report.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct BisectArguments {
  DeviceOptions device;
  ReportOptions report;
  harness::BisectOptions bisect;
};

Result<harness::Bisection> run_bisect(BisectArguments& o) {
  std::vector<std::string> inputs = {o.bisect.file};
  if (!o.bisect.against.empty()) inputs.push_back(o.bisect.against);
  DSAKIT_TRY(check_dispatch());
  auto rules = prepare(o.report, inputs);
  DSAKIT_TRY(rules);
  auto overrides = o.device.overrides();
  DSAKIT_TRY(overrides);
  o.bisect.overrides = std::move(*overrides);
  o.bisect.device = o.device.kind();
  o.bisect.host = o.device.host();
  o.bisect.time_limit_s = o.device.time_limit_s;
  o.bisect.kernel_library = o.device.kernel_library;
  o.bisect.repeat = joined(o.device.repeat(), o.report.rules.repeat());
  const int threads = o.report.threads > 0 ? o.report.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  o.bisect.interrupted = &catch_interrupt();
  ProgressBar bar;
  o.bisect.progress = bar.progress();
  auto bisection = harness::bisect(o.bisect, *rules);
  if (bisection) bisection->environment.threads = threads;
  return bisection;
}

std::string contents_of(const harness::Bisection& found, const std::string& format) {
  return format == "json"    ? harness::to_json(found)
         : format == "junit" ? harness::to_junit(found)
         : format == "md"    ? harness::to_markdown(found)
                             : harness::to_text(found);
}

int fail(const Status& status) {
  complain(status.what(), "bisect");
  return exit_code(status.code());
}

int say_bisection(const Result<harness::Bisection>& bisection, const BisectArguments& o) {
  if (!bisection) return fail(bisection.status());
  const bool nothing = bisection->verdict == harness::Verdict::skipped && !bisection->partial;
  if (!nothing || o.report.format != "text") // a program still asks why
    if (const Status written = print_report(contents_of(*bisection, o.report.format), o.report);
        !written)
      return fail(written);
  say_waived(bisection->waived());
  if (bisection->partial) return kExitInterrupted;
  switch (bisection->verdict) {
  case harness::Verdict::skipped:
    fail(bad_input(o.bisect.file + ": " + bisection->reason));
    return kExitNothingRan;
  case harness::Verdict::pass:
  case harness::Verdict::waived:
    return kExitPass;
  case harness::Verdict::fail:
    return kExitMismatch;
  default:
    return kExitKernelFailed;
  }
}

} // namespace

void add_bisect(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "bisect", "find the first operation that is wrong, or where two recordings of a run part");
  auto options = std::make_shared<BisectArguments>();
  BisectArguments& o = *options;
  verb->add_option("file", o.bisect.file, "a recording")->required()->type_name("FILE");
  verb->add_option("--against", o.bisect.against,
                   "another recording of the same run: name the first tensor in which the two "
                   "part, and whether its inputs explain it. Asks no device")
      ->type_name("OTHER");
  o.device.add_to(*verb);
  o.report.add_to(*verb);
  verb->footer("Every operation is fed from the recording, so that a wrong one does not make the\n"
               "next one wrong, and then from the kernels before it, to see where errors grow.\n" +
               std::string(kExitCodesHelp));
  verb->callback(
      [options, &exit_code] { exit_code = say_bisection(run_bisect(*options), *options); });
}
