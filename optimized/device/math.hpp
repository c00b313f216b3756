// Functions whose accuracy the attention gate covers (spec 8): a few ulp on every target.
#pragma once

#include "device/lane.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr float kMinusInfinity = -__builtin_inff();

/// x * 2^e, rounded once; |x| in [2^-23, 2^23] or 0, any e.
DSAKIT_DEVICE float times_power_of_two(float x, int e) {
#if DSAKIT_NVIDIA
  // Beyond 252 nothing changes: x is at the end of its range. Half of e at a time, so that the
  // first product is exact.
  const int clamped = e < -252 ? -252 : e > 252 ? 252 : e;
  const int half = clamped / 2;
  const auto power = [](int n) { return from_bits(static_cast<std::uint32_t>(127 + n) << 23); };
  return x * power(half) * power(clamped - half);
#else
  return amd::ldexp_f32(x, e);
#endif
}

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
