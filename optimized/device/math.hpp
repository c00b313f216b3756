// Functions whose accuracy the attention gate covers (spec 8): a few ulp on every target.
#pragma once

#include "device/vector.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr float kMinusInfinity = -__builtin_inff();

/// The larger of two; NaN where either is.
DSAKIT_DEVICE float larger_or_nan(float a, float b) {
  return a > b || a != a ? a : b;
}

DSAKIT_DEVICE float exponential(float x) {
#if DSAKIT_NVIDIA
  return expf(x);
#else
  return __builtin_expf(x);
#endif
}

DSAKIT_DEVICE float logarithm(float x) {
#if DSAKIT_NVIDIA
  return logf(x);
#else
  return __builtin_logf(x);
#endif
}

} // namespace dsakit::optimized::DSAKIT_ARCH
