// Text found in a file, or a file's name, made fit for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsakit::harness {

/// `text` on one line: control characters, those of Unicode included, as \x0a.
std::string escaped(std::string_view text);

/// Bytes of the control character at text[at]; 0 where there is none.
std::size_t control_bytes(std::string_view text, std::size_t at);

/// "\x0a"
std::string hex_escape(char c);

} // namespace dsakit::harness
