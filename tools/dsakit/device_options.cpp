#include "device_options.hpp"

#include <cstdint>
#include <limits>

#include "dsakit/harness/report.hpp"
#include "dsakit/optimized/kernel.hpp"

using namespace dsakit;

Status check_dispatch() {
  DSAKIT_TRY(optimized::forced_kernel());
  DSAKIT_TRY(optimized::tuned_choices());
  return {};
}

void DeviceOptions::add_to(CLI::App& verb) {
  verb.add_option("--device", device,
                  "host: the AMD lane code on this CPU; hip: an AMD GPU; "
                  "cuda: an NVIDIA GPU")
      ->check(CLI::IsMember({"host", "hip", "cuda"}))
      ->capture_default_str();
  verb.add_option("--host-arch", host_arch, "whose instructions the host device models")
      ->check(CLI::IsMember({"gfx942", "gfx950"}))
      ->capture_default_str();
  verb.add_option("--host-schedule", schedule_seed,
                  "seed of the order of waves between barriers; 0: ascending")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()))
      ->envname("DSAKIT_HOST_SCHEDULE")
      ->capture_default_str();
  verb.add_option("--lds-pattern", lds_pattern,
                  "byte that LDS of the host device holds when a workgroup starts")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  verb.add_option("--contract", contract,
                  "override a contract key, or accumulation or mla_scale_read of one tensor")
      ->type_name("KEY[:TENSOR]=VALUE")
      ->expected(1)
      ->take_all();
  verb.add_option("--time-limit", time_limit_s,
                  "seconds for each operation on a GPU or of --kernel-lib, which runs in a process "
                  "of its own")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  verb.add_option("--kernel-lib", kernel_library,
                  "a plug-in (docs/plugins.md), whose kernels go before the built-in ones")
      ->check(CLI::ExistingFile)
      ->type_name("LIB.so");
}

optimized::DeviceKind DeviceOptions::kind() const {
  return device == "hip"    ? optimized::DeviceKind::hip
         : device == "cuda" ? optimized::DeviceKind::cuda
                            : optimized::DeviceKind::host;
}

optimized::HostOptions DeviceOptions::host() const {
  optimized::HostOptions host;
  host.arch = host_arch == "gfx950" ? optimized::Arch::gfx950 : optimized::Arch::gfx942;
  host.schedule_seed = schedule_seed;
  host.lds_pattern = static_cast<std::uint8_t>(lds_pattern);
  return host;
}

Result<std::vector<harness::ContractOverride>> DeviceOptions::overrides() const {
  std::vector<harness::ContractOverride> list;
  for (const std::string& text : contract) {
    const auto parsed = harness::parse_override(text);
    DSAKIT_TRY(parsed);
    list.push_back(*parsed);
  }
  return list;
}

std::string DeviceOptions::repeat() const {
  std::string text;
  const auto add = [&](const std::string& option) { text += (text.empty() ? "" : " ") + option; };
  if (device != "host")
    add("--device " + device);
  else if (host_arch != "gfx942")
    add("--host-arch " + host_arch);
  if (schedule_seed != 0) add("--host-schedule " + std::to_string(schedule_seed));
  if (lds_pattern != optimized::HostOptions{}.lds_pattern)
    add("--lds-pattern " + std::to_string(lds_pattern));
  for (const std::string& item : contract)
    add("--contract " + harness::shell_word(item));
  if (!kernel_library.empty()) add("--kernel-lib " + harness::shell_word(kernel_library));
  return text;
}
