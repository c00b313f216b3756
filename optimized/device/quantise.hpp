// Dynamic quantisation of rows to e4m3: 16 lanes hold a row of 128, 8 elements each.
#pragma once

#include "device/fp8.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kLanesPerRow = 16;

/// Bits of the largest magnitude, which order as integers; NaN takes no part.
DSAKIT_DEVICE std::uint32_t largest_magnitude(const float (&x)[8]) {
  std::uint32_t amax = 0;
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t magnitude = bits(x[i]) & 0x7FFFFFFFu;
    if (magnitude <= 0x7F800000u && magnitude > amax) amax = magnitude;
  }
  return amax;
}

/// The largest magnitude of the 16 lanes' elements; NaN takes no part.
DSAKIT_DEVICE float amax_of_row(const float (&x)[8]) {
  return from_bits(max_of_16(largest_magnitude(x)));
}

/// e of 2^ceil(log2(amax / qmax)): qmax is 1.75 * 2^8, 1.75 * 2^7 or 1.875 * 2^7 (spec 2.2), or 1.5
/// * 2^2 (spec 3.1). An infinite amax gives the exponent of the largest finite one.
DSAKIT_DEVICE int scale_exponent(float amax, float qmax) {
  const std::uint32_t amax_bits = bits(amax);
  const std::uint32_t qmax_bits = bits(qmax);
  const int exponent = static_cast<int>(amax_bits >> 23) - static_cast<int>(qmax_bits >> 23);
  return exponent + ((amax_bits & 0x7FFFFFu) > (qmax_bits & 0x7FFFFFu) ? 1 : 0);
}

/// 2^e for a normal result.
DSAKIT_DEVICE float power_of_two(int e) {
  return from_bits(static_cast<std::uint32_t>(127 + e) << 23);
}

/// Eight elements as codes; NaN as the format's NaN, saturating.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE Bytes8 convert_fp8x8(const float (&x)[8]) {
  return {{convert_fp8<kEncoding>({x[0], x[1], x[2], x[3]}),
           convert_fp8<kEncoding>({x[4], x[5], x[6], x[7]})}};
}

} // namespace dsakit::optimized::DSAKIT_ARCH
