// What a kernel's code object says of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// Registers, spills, scratch and LDS of the kernels with these symbols, of each the most; empty
/// where no code object of `arch` has one.
std::map<std::string, std::int64_t> kernel_resources(optimized::Arch arch,
                                                     const std::set<std::string>& symbols);

/// sha256 of what holds the code that ran: for hip the code objects with these symbols, else this
/// program.
Result<std::string> code_hash(optimized::DeviceKind kind, optimized::Arch arch,
                              const std::set<std::string>& symbols);

} // namespace dsakit::harness
