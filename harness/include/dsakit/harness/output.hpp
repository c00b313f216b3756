// What a file must be to be written.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// bad_input where `target` is the file `input`, by whatever name, which writing would destroy.
Status check_not_input(const std::string& target, const std::string& input);

} // namespace dsakit::harness
