// How far a long run is.
#pragma once

#include <functional>
#include <string>

namespace dsakit::harness {

/// Told the share of the work that is done, from 0 to 1 and rising, and what is being done.
using Progress = std::function<void(double done, const std::string& what)>;

} // namespace dsakit::harness
