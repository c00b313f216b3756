// .safetensors to recording (docs/recordings.md).
#pragma once

#include <string>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::harness {

struct ImportOptions {
  std::string input;
  std::string output;
  /// Key to value for what the file does not say; "accumulation:logits" for one output.
  /// bad_input where the file, or the producer it names, says otherwise.
  ContractValues contract;
  std::string contract_preset; ///< "" or "kimi-k3.1": fills what is missing after that
  std::string manifest;        ///< "" or a JSON file that names operations and tensors
  bool deflate = false;
  std::string command; ///< for /provenance: the command line without paths
};

/// Contract keys that the preset filled, and tensors of the file that a manifest does not name.
struct ImportSummary {
  std::vector<std::string> assumed;
  std::vector<std::string> left_out;
  /// Config keys and attributes that were kept and that nothing reads: "config: top_k".
  std::vector<std::string> unknown;
};

/// The result is checked as RecordingReader checks it before anything appears under `output`.
Result<ImportSummary> import_safetensors(const ImportOptions& options);

} // namespace dsakit::harness
