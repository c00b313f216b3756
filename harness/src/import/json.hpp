// JSON from a file that may be damaged or hostile.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// bad_input, one line that begins with `where`, for text that is not JSON (with line, column and
/// byte, from 1 on), is nested deeper than
/// `depth` objects or arrays, or has an object with the same key twice.
Result<nlohmann::json> parse_json(const std::string& where, const std::string& text, int depth);

} // namespace dsakit::harness
