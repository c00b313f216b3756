// Command lines that are printed, to be said again.
#pragma once

#include <string>

#include "dsakit/harness/environment.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// The variable that forces a kernel, before a command; empty where it is not set.
inline std::string forced_kernel_word(const Environment& environment) {
  const auto forced = environment.variables.find("DSAKIT_FORCE_KERNEL");
  return forced == environment.variables.end()
             ? ""
             : forced->first + "=" + shell_word(forced->second) + " ";
}

/// "dsakit VERB FILE --operation NAME OPTIONS", behind the variable that forces a kernel.
inline std::string command(const Environment& environment, const std::string& verb,
                           const std::string& file, const std::string& operation,
                           const std::string& options) {
  const std::string text = forced_kernel_word(environment) + "dsakit " + verb + " " +
                           shell_word(file) + " --operation " + operation;
  return options.empty() ? text : text + " " + options;
}

} // namespace dsakit::harness
