// Where the shared recordings are. They are not part of the repository, so tests skip without them.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace dsakit::testing {

/// Path of recordings/<name>.safetensors below DSAKIT_SHARED (environment), else below the folder
/// beside the source tree.
inline std::string recording_path(const std::string& name) {
  const char* shared = std::getenv("DSAKIT_SHARED");
  return std::string(shared ? shared : DSAKIT_DEFAULT_SHARED) + "/recordings/" + name +
         ".safetensors";
}

} // namespace dsakit::testing

/// First line of a test that needs the recording.
#define DSAKIT_NEED_RECORDING(name)                                                                \
  if (!std::filesystem::exists(::dsakit::testing::recording_path(name)))                           \
  GTEST_SKIP() << "NOT CHECKED: " << ::dsakit::testing::recording_path(name)                       \
               << " is missing; set DSAKIT_SHARED to the folder that holds recordings/"
