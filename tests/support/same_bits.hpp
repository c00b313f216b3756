// Equality of representations: a NaN equals itself, and -0 is not 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace dsakit::testing {

/// T has no padding.
template <class T>
bool same_bits(const T& a, const T& b) {
  return std::ranges::equal(std::as_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)));
}

} // namespace dsakit::testing
