// What a reader needs to place a result: versions, machine, settings. No host name, no path.
#pragma once

#include <map>
#include <string>

namespace dsakit::harness {

struct Environment {
  std::string version;    ///< of dsakit
  std::string revision;   ///< git revision at configure time; "unknown" outside a checkout
  std::string compiler;   ///< "GNU 12.2.0"
  std::string build_type; ///< "Release"
  std::string cpu;        ///< model name
  std::string device;     ///< "host lanes (gfx942)", "AMD Instinct MI300X"; empty: none was opened
  int threads = 0;        ///< that the reference and the host device may use
  std::map<std::string, std::string> variables; ///< those that change a result or a choice
};

/// Everything but `device` and `threads`, which belong to a run.
Environment capture_environment();

} // namespace dsakit::harness
