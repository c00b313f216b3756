#include "dsakit/harness/environment.hpp"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "build_info.hpp"

namespace dsakit::harness {
namespace {

/// "unknown" where the system does not say.
std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name"))
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown";
}

constexpr std::array kVariables = {"DSAKIT_FORCE_KERNEL", "DSAKIT_HOST_SCHEDULE",
                                   "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                   "CUDA_VISIBLE_DEVICES"};

} // namespace

Environment capture_environment() {
  Environment environment;
  environment.version = DSAKIT_VERSION;
  environment.revision = DSAKIT_REVISION;
  environment.compiler = DSAKIT_COMPILER;
  environment.build_type = DSAKIT_BUILD_TYPE;
  environment.cpu = cpu_model();
  for (const char* variable : kVariables)
    if (const char* value = std::getenv(variable)) environment.variables[variable] = value;
  // A choice of kernels' configurations; the folder is nobody's business.
  if (const char* tuned = std::getenv("DSAKIT_TUNED"); tuned && *tuned)
    environment.variables["DSAKIT_TUNED"] = std::filesystem::path(tuned).filename().string();
  return environment;
}

} // namespace dsakit::harness
