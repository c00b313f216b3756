// Quantisation of rows to MXFP4 (spec 3.1): 16 lanes hold a row of 128, 8 elements each, 4 lanes a
// group of 32.
#pragma once

#include "device/quantise.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

/// Nearest e2m1 code, ties to even, saturating; NaN gives code 0.
DSAKIT_DEVICE std::uint32_t convert_e2m1(float x) {
  if (x != x) return 0;
  const std::uint32_t sign = bits(x) >> 31 << 3;
  const std::uint32_t magnitude = bits(x) & 0x7FFFFFFFu;
  // Below 1 a code counts halves, which is what is left of a float beside 2^22.
  if (magnitude < 0x3F800000u) return sign | (bits(from_bits(magnitude) + 0x1p22f) & 3u);
  // From 1 on it is exponent and first bit of the significand; 1 is code 2.
  const std::uint32_t code = ((magnitude + 0x1FFFFFu + (magnitude >> 22 & 1u)) >> 22) - 252;
  return sign | (code > 7 ? 7 : code);
}

namespace detail {

/// Butterflies of elements kStride apart, across lanes.
template <int kStride>
DSAKIT_DEVICE void butterfly_across(float (&x)[8]) {
  constexpr int kMask = kStride / 8;
  const bool second = lane_id() & kMask;
  for (int i = 0; i < 8; ++i) {
    const float other = from_lane_xor<kMask>(x[i]);
    x[i] = second ? other - x[i] : x[i] + other;
  }
}

} // namespace detail

/// The row times the normalised Hadamard matrix: butterflies (a, b) -> (a + b, a - b) of elements
/// 1, 2, 4, ..., 64 apart, then times fl32(128^-0.5).
DSAKIT_DEVICE void rotate_row(float (&x)[8]) {
  for (int stride = 1; stride < 8; stride *= 2)
    for (int i = 0; i < 8; ++i)
      if ((i & stride) == 0) {
        const float a = x[i];
        const float b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
  detail::butterfly_across<8>(x);
  detail::butterfly_across<16>(x);
  detail::butterfly_across<32>(x);
  detail::butterfly_across<64>(x);
  for (int i = 0; i < 8; ++i)
    x[i] *= 0.0883883461356163f;
}

/// A lane's 8 codes, element i in nibble i, and the e8m0 byte of its group.
struct Mxfp4Codes {
  std::uint32_t codes;
  std::uint8_t scale;
};

/// x: elements 8 * part ... + 7 of the row, of which all 16 lanes take part.
DSAKIT_DEVICE Mxfp4Codes quantise_mxfp4(float (&x)[8], bool hadamard) {
  constexpr float kLargest = 6;
  constexpr float kFloor = kLargest * 0x1p-126f;
  if (hadamard) rotate_row(x);
  const float amax = from_bits(max_of_4(largest_magnitude(x)));
  const int exponent = scale_exponent(amax > kFloor ? amax : kFloor, kLargest);
  std::uint32_t codes = 0;
  for (int i = 0; i < 8; ++i)
    codes |= convert_e2m1(x[i] * power_of_two(-exponent)) << 4 * i;
  return {codes, static_cast<std::uint8_t>(127 + exponent)};
}

} // namespace dsakit::optimized::DSAKIT_ARCH
