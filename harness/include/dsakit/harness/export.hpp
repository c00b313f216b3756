// Recording to .safetensors: every tensor under "steps.<n>.<operation>.<inputs|outputs>.<name>" or
// "weights.<name>", and the rest of the recording as JSON in the metadata, so that an import gives
// the same recording again.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

inline constexpr const char* kExportMetadata = "dsakit-recording";

Status export_safetensors(const std::string& recording, const std::string& output);

} // namespace dsakit::harness
