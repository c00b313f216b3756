// Reader and writer of .safetensors files, the usual dump of PyTorch users.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

class SafetensorsReader {
public:
  struct Entry {
    Dtype dtype; ///< U8 is uint8, F8_E4M3 float8_e4m3fn, F8_E8M0 float8_e8m0fnu, ...
    Shape shape;
    std::uint64_t offset; ///< BYTES from the start of the file
  };

  /// bad_input for a header that is not JSON of the right form, an unknown dtype, a name that
  /// occurs twice, and payloads that overlap, leave gaps or do not fill the file exactly.
  static Result<SafetensorsReader> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  /// "__metadata__"
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  Result<Tensor> read(const std::string& name) const;
  /// The payload front to back; `name` exists.
  BlockSource source(const std::string& name) const;

private:
  std::string path_;
  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsOutput {
  std::string name;
  Dtype dtype = Dtype::uint8;
  Shape shape;
  std::function<Status(const BlockSink&)> payload; ///< pushes it front to back
};

/// Appears under `path` only when whole. float4_e2m1fn_x2 is written as U8.
Status write_safetensors(const std::string& path,
                         const std::map<std::string, std::string>& metadata,
                         const std::vector<SafetensorsOutput>& tensors);

} // namespace dsakit::harness
