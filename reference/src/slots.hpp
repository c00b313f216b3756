// What the writers of both caches ask of a slot mapping.
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/status.hpp"

namespace dsakit::reference {

/// Every entry is -1 or below `slots`, and `input` has a row for each.
Status check_slot_mapping(std::span<const std::int64_t> slot_mapping, std::int64_t slots,
                          const char* input, std::int64_t rows);

} // namespace dsakit::reference
