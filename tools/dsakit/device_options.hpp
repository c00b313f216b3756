// Where kernels run and under which contract: what replay, bisect and shrink share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/replay.hpp"

/// What the environment says of dispatch, DSAKIT_FORCE_KERNEL and DSAKIT_TUNED: bad_input where a
/// verb that runs kernels must not even start.
dsakit::Status check_dispatch();

/// Options --device, --host-arch, --host-schedule, --lds-pattern, --contract, --time-limit,
/// --kernel-lib.
struct DeviceOptions {
  std::string device = "host";
  std::string host_arch = "gfx942";
  std::uint64_t schedule_seed = 0;
  unsigned lds_pattern = dsakit::optimized::HostOptions{}.lds_pattern;
  std::vector<std::string> contract;
  int time_limit_s = 60;
  std::string kernel_library;

  void add_to(CLI::App& verb);

  dsakit::optimized::DeviceKind kind() const;
  dsakit::optimized::HostOptions host() const;
  dsakit::Result<std::vector<dsakit::harness::ContractOverride>> overrides() const;
  /// Those that have to be said again to see the same result.
  std::string repeat() const;
};
