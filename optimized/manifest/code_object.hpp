// What a code object says of its kernels: the metadata note that the real runtime reads, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dsakit::code_object {

struct Argument {
  std::size_t offset;
  std::size_t bytes;
  std::string kind; ///< "by_value", "global_buffer", "hidden_..."
};

struct KernelInfo {
  std::string name;
  std::vector<Argument> arguments; ///< without the hidden ones
  std::size_t kernarg_bytes;       ///< with the hidden ones
  std::size_t lds_bytes;
  unsigned max_lanes;
  unsigned wave_size;

  /// Bytes that a caller packs.
  std::size_t argument_bytes() const {
    return arguments.empty() ? 0 : arguments.back().offset + arguments.back().bytes;
  }
};

struct CodeObjectInfo {
  unsigned mach; ///< EF_AMDGPU_MACH of the header's flags
  std::map<std::string, KernelInfo> kernels;
};

/// Nothing where `image` is no AMD code object, or has no metadata.
std::optional<CodeObjectInfo> read_code_object(const void* image);

} // namespace dsakit::code_object
