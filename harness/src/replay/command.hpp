// Command lines that are printed, to be said again.
#pragma once

#include <string>

#include "dsakit/harness/environment.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// "dsakit VERB FILE --operation NAME OPTIONS", behind the variable that forces a kernel.
inline std::string command(const Environment& environment, const std::string& verb,
                           const std::string& file, const std::string& operation,
                           const std::string& options) {
  std::string text;
  const auto forced = environment.variables.find("DSAKIT_FORCE_KERNEL");
  if (forced != environment.variables.end())
    text = forced->first + "=" + shell_word(forced->second) + " ";
  text += "dsakit " + verb + " " + shell_word(file) + " --operation " + operation;
  return options.empty() ? text : text + " " + options;
}

} // namespace dsakit::harness
