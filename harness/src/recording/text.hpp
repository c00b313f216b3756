// Text found in a file, made fit for a one-line message.
#pragma once

#include <string>
#include <string_view>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/text.hpp"

namespace dsakit::harness {

/// 'text' on one line, clipped.
std::string in_quotes(std::string_view text);

/// A whole file; bad_input for a folder, a device or a FIFO, which may never end.
Result<std::string> read_text_file(const std::string& path);

} // namespace dsakit::harness
