// Text found in a file, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

#include "dsakit/harness/text.hpp"

namespace dsakit::harness {

/// 'text' on one line, clipped.
std::string in_quotes(std::string_view text);

} // namespace dsakit::harness
