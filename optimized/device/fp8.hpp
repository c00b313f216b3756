// e4m3 in both encodings on every target. The hardware converts and multiplies one of them; bytes
// of the other are misread by exactly a power of two, but for a few codes:
//
//                         read as          but 0x80    and 0x7F, 0xFF
//   OCP on FNUZ hardware  half the value   -0 as NaN   NaN as +-240
//   FNUZ on OCP hardware  twice the value  NaN as -0   +-240 as NaN
//
// Source: spec 0.3; AMD Instinct MI300 ISA, "8-bit floating point"; OCP 8-bit floating point 1.0.
#pragma once

#include "device/lane.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

template <Fp8Encoding kEncoding>
struct Fp8 {
  static constexpr bool kNative = kEncoding == kNativeFp8;
  static constexpr bool kOcp = kEncoding == Fp8Encoding::e4m3fn;
  static constexpr float kMax = kOcp ? 448.0f : 240.0f;
  /// (what the hardware reads) / (the value).
  static constexpr float kMisread = kNative ? 1.0f : kOcp ? 0.5f : 2.0f;
};

// ---- writing ------------------------------------------------------------------------------------

/// Four floats as e4m3 of the hardware's encoding, ties to even; |x| at most its largest finite
/// value.
DSAKIT_DEVICE std::uint32_t convert_native_fp8(const float (&x)[4]) {
#if DSAKIT_NVIDIA
  std::uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  return low | static_cast<std::uint32_t>(high) << 16;
#else
  const int low = amd::cvt_pk_fp8_f32<false>(x[0], x[1], 0);
  return static_cast<std::uint32_t>(amd::cvt_pk_fp8_f32<true>(x[2], x[3], low));
#endif
}

/// One code that the native conversion of x * kMisread cannot give, or the one it gave.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE std::uint32_t repair_code(float x, std::uint32_t converted) {
  using Format = Fp8<kEncoding>;
  if (x != x) return Format::kOcp ? 0x7Fu : 0x80u;
  if (Format::kNative) return converted;
  const std::uint32_t sign = bits(x) >> 31 << 7;
  if (Format::kOcp) return converted == 0 ? sign : converted; // FNUZ hardware has no -0
  // OCP hardware: no code is twice 240 (the tie at 232 goes to the even 224), and FNUZ has no -0.
  if (x > 232.0f || x < -232.0f) return sign | 0x7Fu;
  return converted == 0x80u ? 0u : converted;
}

/// Four floats as e4m3: ties to even, saturating, NaN as the format's NaN (0x7F; 0x80 for FNUZ).
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE std::uint32_t convert_fp8(const float (&x)[4]) {
  using Format = Fp8<kEncoding>;
  // What x * kMisread may reach: FNUZ 240 has no OCP code of twice its value, repair_code sets it.
  constexpr float limit = Format::kNative || Format::kOcp ? Format::kMax : 224.0f;
  float native[4];
  for (int i = 0; i < 4; ++i) {
    const float clamped = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
    native[i] = clamped * Format::kMisread;
  }
  const std::uint32_t converted = convert_native_fp8(native);
  std::uint32_t codes = 0;
  for (int i = 0; i < 4; ++i)
    codes |= repair_code<kEncoding>(x[i], converted >> 8 * i & 0xFFu) << 8 * i;
  return codes;
}

// ---- reading ------------------------------------------------------------------------------------

/// 0x80 in each byte of `codes` whose low seven bits are 0x7F.
DSAKIT_DEVICE std::uint32_t bytes_of_magnitude_7f(std::uint32_t codes) {
  return ((codes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
}

/// 0x80 in each byte of `codes` that is 0x80.
DSAKIT_DEVICE std::uint32_t bytes_of_80(std::uint32_t codes) {
  return ~((codes & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) & codes & 0x80808080u;
}

/// Nonzero where four codes hold one that the hardware would not read as value * kMisread.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE std::uint32_t misread_codes(std::uint32_t codes) {
  using Format = Fp8<kEncoding>;
  if (Format::kNative) return 0;
  const std::uint32_t odd = bytes_of_magnitude_7f(codes);
  return Format::kOcp ? odd : odd | bytes_of_80(codes);
}

/// Four codes as the hardware may read them: OCP's -0 becomes 0 on FNUZ hardware.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE std::uint32_t readable_codes(std::uint32_t codes) {
  using Format = Fp8<kEncoding>;
  return !Format::kNative && Format::kOcp ? codes ^ bytes_of_80(codes) : codes;
}

/// The value of a code, exact for every code; NaN for NaN.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE float fp8_to_float(std::uint32_t code) {
  using Format = Fp8<kEncoding>;
  const std::uint32_t magnitude = code & 0x7Fu;
  const bool nan = Format::kOcp ? magnitude == 0x7Fu : code == 0x80u;
  // The code's exponent and mantissa on top of a float's, then its bias: exact, subnormals
  // included.
  const float value = from_bits(magnitude << 20) * (Format::kOcp ? 0x1p120f : 0x1p119f);
  return from_bits(nan ? 0x7FC00000u : bits(value) | (code & 0x80u) << 24);
}

/// bf16 bits of a code's value * kMisread, exact as well.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE std::uint32_t fp8_to_bf16(std::uint32_t code) {
  return bits(fp8_to_float<kEncoding>(code) * Fp8<kEncoding>::kMisread) >> 16;
}

} // namespace dsakit::optimized::DSAKIT_ARCH
