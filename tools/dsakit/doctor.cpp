// dsakit doctor: what this build and this machine can run, and why not the rest.
#include <cstdio>
#include <memory>
#include <string>

#include "dsakit/harness/environment.hpp"
#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/device.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

void line(const char* label, const std::string& text) {
  std::printf("%-12s %s\n", label, text.c_str());
}

/// Prints one device, or why it is not there. True where it is.
bool device_line(const char* label, optimized::DeviceKind kind,
                 const optimized::HostOptions& host = {}) {
  const auto device = optimized::open_device(kind, host);
  line(label, device ? (*device)->description() : "no: " + device.status().what());
  return static_cast<bool>(device);
}

int examine(const std::string& wanted) {
  const harness::Environment environment = harness::capture_environment();
  line("dsakit", environment.version + " (" + environment.revision + "), " + environment.compiler +
                     ", " + environment.build_type);
  line("cpu", environment.cpu);

  std::puts("devices");
  bool host = true;
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950})
    host &= device_line("  host", optimized::DeviceKind::host, {.arch = arch});
  const bool hip = device_line("  hip", optimized::DeviceKind::hip);
  const bool cuda = device_line("  cuda", optimized::DeviceKind::cuda);

  std::puts("code objects for AMD GPUs (compiled and audited; never run on AMD hardware)");
  if (optimized::code_objects().empty()) std::puts("  none: this build found no AMD compiler");
  for (const optimized::CodeObject& object : optimized::code_objects())
    std::printf("  %-10s %-22s %7zu bytes\n", std::string(optimized::name(object.arch)).c_str(),
                std::string(object.operation).c_str(), object.bytes);

  std::puts("environment");
  if (environment.variables.empty()) std::puts("  nothing set that changes a result or a choice");
  for (const auto& [name, value] : environment.variables)
    std::printf("  %s=%s\n", name.c_str(), value.c_str());

  const bool there = wanted.empty() || (wanted == "host" && host) || (wanted == "hip" && hip) ||
                     (wanted == "cuda" && cuda);
  return there ? kExitPass : kExitNothingRan;
}

} // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what this build and this machine can run, and why not the rest");
  auto device = std::make_shared<std::string>();
  verb->add_option("--device", *device, "exit 77 unless this one is there")
      ->check(CLI::IsMember({"host", "hip", "cuda"}));
  verb->footer(kExitCodesHelp);
  verb->callback([device, &exit_code] { exit_code = examine(*device); });
}
