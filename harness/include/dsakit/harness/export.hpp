// What a recording holds, for other programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

inline constexpr const char* kExportMetadata = "dsakit-recording";

/// The whole recording as .safetensors: every tensor under
/// "steps.<n>.<operation>.<inputs|outputs>.<name>" or "weights.<name>", and the rest as JSON in the
/// metadata, so that an import gives the same recording again.
Status export_safetensors(const std::string& recording, const std::string& output);

struct ExportTensorOptions {
  std::string recording;
  std::string operation;
  std::string tensor; ///< "logits.vllm"; "inputs/NAME" or "outputs/NAME" where both sides have one
  std::optional<std::int64_t> step; ///< none: the only one that has the operation
  std::string slice;                ///< "0:4,:,17", as parse_slice takes it; empty: all
  std::string output;               ///< its ending is the format: .npy, .safetensors or .csv
};

/// One tensor, or a part of it. The output appears only when whole; memory holds one block.
/// .safetensors keeps the dtype (packed fp4 as U8). .npy and .csv have bfloat16, fp8, e8m0 and fp4
/// as float32, two elements for each byte of fp4, low nibble first; .csv has a row for each
/// element: its coordinates in the whole tensor, under the names of the axes, and its value.
/// Returns what was written: "float32 [4, 128], decoded from bfloat16".
Result<std::string> export_tensor(const ExportTensorOptions& options);

} // namespace dsakit::harness
