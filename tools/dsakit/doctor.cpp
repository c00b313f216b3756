// dsakit doctor: what this build and this machine can run, and why not the rest.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "complain.hpp"
#include "dsakit/harness/environment.hpp"
#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/configuration.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/selftest.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

void line(const char* label, const std::string& text) {
  std::printf("%-12s %s\n", label, text.c_str());
}

struct DoctorArguments {
  std::string device;    // empty: all
  std::string host_arch; // empty: both
  bool selftest = false;
};

struct Candidate {
  optimized::DeviceKind kind;
  optimized::HostOptions host;
};

/// The devices that the options ask for.
std::vector<Candidate> candidates(const DoctorArguments& options) {
  using optimized::Arch;
  using optimized::DeviceKind;
  std::vector<Candidate> all;
  if (options.device.empty() || options.device == "host")
    for (const Arch arch : {Arch::gfx942, Arch::gfx950})
      if (options.host_arch.empty() || options.host_arch == optimized::name(arch))
        all.push_back({DeviceKind::host, {.arch = arch}});
  if (options.device.empty() || options.device == "hip") all.push_back({DeviceKind::hip, {}});
  if (options.device.empty() || options.device == "cuda") all.push_back({DeviceKind::cuda, {}});
  return all;
}

/// "1 to 64" or "256, 512, 1024"
std::string values_of(const optimized::ConfigurationKey& key) {
  const auto& values = key.values;
  if (values.size() > 2 && values.back() - values.front() + 1 == static_cast<int>(values.size()))
    return std::to_string(values.front()) + " to " + std::to_string(values.back());
  std::string text;
  for (const std::int32_t value : values)
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

/// What may be tuned, and for which of the devices that are here something was.
Status examine_tuning(const std::vector<std::string>& devices) {
  std::puts("tunable (dsakit sweep)");
  for (const optimized::ConfigurationSpace& space : optimized::configuration_spaces())
    for (const optimized::ConfigurationKey& key : space.keys)
      std::printf("  %s %s: %s = %s (%s)\n", std::string(space.operation).c_str(),
                  std::string(space.kernel).c_str(), std::string(key.key).c_str(),
                  values_of(key).c_str(), std::string(key.meaning).c_str());
  const auto choices = optimized::tuned_choices();
  DSAKIT_TRY(choices);
  std::puts("tuned choices");
  for (const std::string& device : devices) {
    const auto count = std::count_if(
        (*choices)->begin(), (*choices)->end(),
        [&](const optimized::TunedChoice& choice) { return choice.device == device; });
    if (count == 0)
      std::printf("  %s: none, every kernel takes its default\n", device.c_str());
    else
      std::printf("  %s: %lld\n", device.c_str(), static_cast<long long>(count));
  }
  return {};
}

Status examine() {
  const harness::Environment environment = harness::capture_environment();
  line("dsakit", environment.version + " (" + environment.revision + "), " + environment.compiler +
                     ", " + environment.build_type);
  line("cpu", environment.cpu);

  std::puts("devices");
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates({})) {
    const auto device = optimized::open_device(candidate.kind, candidate.host);
    constexpr const char* labels[] = {"  host", "  hip", "  cuda"};
    line(labels[static_cast<int>(candidate.kind)],
         device ? (*device)->description() : "no: " + device.status().what());
    if (device) names.push_back((*device)->description());
  }

  std::puts("code objects for AMD GPUs (compiled and audited; never run on AMD hardware)");
  if (optimized::code_objects().empty()) std::puts("  none: this build found no AMD compiler");
  for (const optimized::CodeObject& object : optimized::code_objects())
    std::printf("  %-10s %-22s %7zu bytes\n", std::string(optimized::name(object.arch)).c_str(),
                std::string(object.operation).c_str(), object.bytes);

  const Status tuning = examine_tuning(names);

  std::puts("environment");
  if (environment.variables.empty()) std::puts("  nothing set that changes a result or a choice");
  for (const auto& [name, value] : environment.variables)
    std::printf("  %s=%s\n", name.c_str(), value.c_str());
  return tuning;
}

/// Prints a line for each primitive. The first wrong one is named again at the end.
int run_selftest(optimized::Device& device) {
  const std::string where =
      device.description() + ", " + std::string(optimized::name(device.arch()));
  std::printf("selftest on %s\n", where.c_str());
  const auto results = optimized::selftest(device);
  if (!results) {
    std::printf("selftest: %s\n", results.status().what().c_str());
    return exit_code(results.status().code());
  }
  const optimized::SelftestResult* first = nullptr;
  std::size_t wrong = 0;
  for (const optimized::SelftestResult& result : *results) {
    if (result.fault.empty())
      std::printf("  pass  %-46s %6zu values\n", result.primitive.c_str(), result.values);
    else
      std::printf("  FAIL  %s: %s\n", result.primitive.c_str(), result.fault.c_str());
    if (result.fault.empty()) continue;
    if (!first) first = &result;
    ++wrong;
  }
  if (!first) {
    std::printf("selftest: pass, %zu primitives\n", results->size());
    return kExitPass;
  }
  std::printf("selftest: FAIL, %zu of %zu primitives; the first: %s: %s\n", wrong, results->size(),
              first->primitive.c_str(), first->fault.c_str());
  return kExitMismatch;
}

int run_doctor(const DoctorArguments& options) {
  if (const Status status = examine(); !status) {
    complain(status.what(), "doctor");
    return exit_code(status.code());
  }
  int code = kExitPass;
  bool any = false;
  for (const Candidate& candidate : candidates(options)) {
    const auto device = optimized::open_device(candidate.kind, candidate.host);
    if (!device) continue;
    any = true;
    if (!options.selftest) continue;
    // A kernel that failed weighs more than one that is wrong.
    code = std::max(code, run_selftest(**device));
  }
  return any ? code : kExitNothingRan;
}

} // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what this build and this machine can run, and why not the rest");
  auto options = std::make_shared<DoctorArguments>();
  verb->add_option("--device", options->device, "only this one; exit 77 unless it is there")
      ->check(CLI::IsMember({"host", "hip", "cuda"}));
  verb->add_option("--host-arch", options->host_arch,
                   "whose lanes `host` models; both if not given")
      ->check(CLI::IsMember({"gfx942", "gfx950"}));
  verb->add_flag("--selftest", options->selftest,
                 "run every primitive that kernels are made of, and name the first wrong one");
  verb->footer(kExitCodesHelp);
  verb->callback([options, &exit_code] { exit_code = run_doctor(*options); });
}
