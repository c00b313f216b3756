// Text found in a file, or a file's name, made fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace dsakit::harness {

/// `text` on one line: control characters, those of Unicode included, and what is no UTF-8 as \x0a.
std::string escaped(std::string_view text);

/// "\x0a"
std::string hex_escape(char c);

} // namespace dsakit::harness
