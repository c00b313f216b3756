// The AMD code objects that this library was built with: plain ELF files, one per operation and
// arch.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "dsakit/optimized/kernel.hpp"

namespace dsakit::optimized {

struct CodeObject {
  Arch arch;
  std::string_view operation;
  const std::byte* data; ///< page-aligned; what hipModuleLoadData takes
  std::size_t bytes;
};

/// Empty where the build found no AMD compiler.
const std::vector<CodeObject>& code_objects();

} // namespace dsakit::optimized
