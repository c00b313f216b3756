// Text found in a file, made fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace dsakit::harness {

/// `text` on one line: control characters as \x0a.
std::string escaped(std::string_view text);

} // namespace dsakit::harness
