// What a file must be to be read.
#pragma once

#include <cstdint>
#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// Bytes of an ordinary file that may be read. bad_input where there is none, for a directory, and
/// for a device or a FIFO, which may never end.
Result<std::uint64_t> size_of_ordinary_file(const std::string& path);

} // namespace dsakit::harness
