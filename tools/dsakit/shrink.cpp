// dsakit shrink: the smallest part of a recorded operation that still fails.
#include "dsakit/harness/shrink.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>

#include "complain.hpp"
#include "device_options.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "rule_options.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

struct ShrinkArguments {
  DeviceOptions device;
  harness::ShrinkOptions shrink;
  RuleOptions rules;
  int threads = 0;
};

std::string in_bytes(std::int64_t bytes) {
  char text[32];
  if (bytes < 10'000)
    std::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes));
  else if (bytes < 10'000'000)
    std::snprintf(text, sizeof text, "%.1f kB", static_cast<double>(bytes) / 1e3);
  else
    std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

void show_progress(std::int64_t trials, std::int64_t bytes) {
  std::fprintf(stderr, "\r\033[K%lld trials, %s left", static_cast<long long>(trials),
               in_bytes(bytes).c_str());
}

Result<harness::Shrunk> run_shrink(ShrinkArguments& o) {
  DSAKIT_TRY(check_dispatch());
  auto rules = o.rules.load();
  DSAKIT_TRY(rules);
  auto overrides = o.device.overrides();
  DSAKIT_TRY(overrides);
  o.shrink.overrides = std::move(*overrides);
  o.shrink.device = o.device.kind();
  o.shrink.host = o.device.host();
  o.shrink.time_limit_s = o.device.time_limit_s;
  o.shrink.kernel_library = o.device.kernel_library;
  o.shrink.repeat = joined(o.device.repeat(), o.rules.repeat());
  const int threads = o.threads > 0 ? o.threads : tbb::info::default_concurrency();
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  const bool terminal = isatty(STDERR_FILENO);
  auto shrunk =
      harness::shrink(o.shrink, *rules, terminal ? show_progress : harness::ShrinkProgress{});
  if (terminal) std::fprintf(stderr, "\r\033[K");
  return shrunk;
}

int say_shrunk(const Result<harness::Shrunk>& shrunk, const ShrinkArguments& o) {
  if (!shrunk) {
    complain(shrunk.status().what(), "shrink");
    return exit_code(shrunk.status().code());
  }
  if (!shrunk->not_written.empty()) {
    complain(o.shrink.input + ": " + shrunk->not_written + "; nothing was written", "shrink");
    return kExitInconclusive;
  }
  std::printf("%s step %lld %s: %s against %s %s\n", o.shrink.operation.c_str(),
              static_cast<long long>(shrunk->step), harness::escaped(shrunk->tensor).c_str(),
              shrunk->subject.c_str(), shrunk->against.c_str(),
              shrunk->reason.empty() ? "fails" : harness::escaped(shrunk->reason).c_str());
  for (const auto& extent : shrunk->extents)
    std::printf("  %s: %lld of %lld\n", extent.name.c_str(), static_cast<long long>(extent.to),
                static_cast<long long>(extent.from));
  if (shrunk->seed)
    std::printf("  values: scrambled with --seed %llu\n",
                static_cast<unsigned long long>(*shrunk->seed));
  std::printf("wrote %s: tensors of %s instead of %s, after %lld trials\n",
              harness::escaped(o.shrink.output).c_str(), in_bytes(shrunk->bytes_after).c_str(),
              in_bytes(shrunk->bytes_before).c_str(), static_cast<long long>(shrunk->trials));
  std::printf("reproduce: %s\n", shrunk->reproduce.c_str());
  return kExitPass;
}

} // namespace

void add_shrink(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "shrink", "write the smallest part of a recorded operation that still fails");
  auto options = std::make_shared<ShrinkArguments>();
  ShrinkArguments& o = *options;
  verb->add_option("file", o.shrink.input, "a recording in which the operation fails")
      ->required()
      ->type_name("FILE");
  verb->add_option("-o,--output", o.shrink.output, "the recording to write")
      ->required()
      ->type_name("FILE");
  verb->add_option("--operation", o.shrink.operation, "which one")->required()->type_name("NAME");
  auto* synthesize =
      verb->add_flag("--synthesize", o.shrink.synthesize,
                     "write scrambled values that still fail, and none of the recorded ones");
  verb->add_option("--seed", o.shrink.seed, "first seed of the scrambled values")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max() - 8))
      ->needs(synthesize)
      ->capture_default_str();
  o.device.add_to(*verb);
  o.rules.add_to(*verb);
  verb->add_option("--threads", o.threads, "CPU threads at most; 0: one per core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  verb->footer(
      "Exit codes: 0 written; 2 usage or bad input; 3 no such kernel or a device failed;\n"
      "4 nothing fails, or nothing with scrambled values: nothing was written; 77 no such\n"
      "device or operation; 130 interrupted: nothing was written.");
  verb->callback([options, &exit_code] { exit_code = say_shrunk(run_shrink(*options), *options); });
}
