// The first bytes of a recording, before libhdf5 sees it.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// Judges the superblock before libhdf5 sees the file: byte-mutated files of the old format crash
/// it.
Status check_superblock(const std::string& path);

} // namespace dsakit::harness
