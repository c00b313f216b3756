// manifest.json of a golden folder, kept as it is but for what an acceptance changes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

using OrderedJson = nlohmann::ordered_json;

struct GoldenManifest {
  std::string path;
  OrderedJson json;

  static Result<GoldenManifest> read(const std::string& folder);
  /// nullptr where no entry has that id.
  OrderedJson* find(const std::string& id);
  Status write() const;
};

/// bad_input but for letters, digits, '_', '-' and '.', since an id is a file name too.
Status check_golden_id(const std::string& id);

/// SHA-256 of a file in hexadecimal digits.
Result<std::string> sha256_of(const std::string& path);
std::string sha256_of_bytes(std::span<const std::byte> bytes);

} // namespace dsakit::harness
