// What a file must be to be written.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// bad_input where `target` is the file `input`, by whatever name, which writing would destroy.
Status check_not_input(const std::string& target, const std::string& input);

/// Removes the temporary files of every output that is being written. For a signal handler that
/// then ends the process.
void remove_unfinished_outputs() noexcept;

} // namespace dsakit::harness
