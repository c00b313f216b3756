// The order of scores that every selection follows (spec 11).
#pragma once

#include <cmath>

namespace dsakit::reference {

/// NaN of either sign last; -0 equals +0.
inline bool scores_higher(float a, float b) {
  return a > b || (std::isnan(b) && !std::isnan(a));
}

} // namespace dsakit::reference
