// "splits*32 <= k": what candidates of a sweep must fulfil.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// Whether the constraint holds for these values: two products of names and numbers, with <=, <,
/// >=, >, == or != between them. bad_input, naming what was found, for anything else.
Result<bool> holds(std::string_view constraint,
                   const std::map<std::string, std::int64_t, std::less<>>& values);

} // namespace dsakit::harness
