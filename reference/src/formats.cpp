#include "dsakit/reference/formats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "fp8_table.hpp"

namespace dsakit::reference {
namespace {

/// An e4m3 format: sign, 4 exponent bits, 3 mantissa bits (spec 0.3).
struct E4m3 {
  int min_exponent;       ///< of the smallest normal, and of the subnormals
  int max_code;           ///< of the largest finite value
  std::uint8_t nan;       ///< code that NaN is stored as
  bool has_negative_zero; ///< fnuz uses that code for NaN
};

constexpr E4m3 kFn = {-6, 0x7E, 0x7F, true};
constexpr E4m3 kFnuz = {-7, 0x7F, 0x80, false};

const E4m3& format_of(Fp8Encoding encoding) {
  return encoding == Fp8Encoding::e4m3fn ? kFn : kFnuz;
}

std::array<float, 256> decode_all(const E4m3& format) {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code & 0x7F;
    const int exponent_field = magnitude >> 3;
    const int mantissa = magnitude & 7;
    const float value = exponent_field == 0
                            ? std::ldexp(static_cast<float>(mantissa), format.min_exponent - 3)
                            : std::ldexp(static_cast<float>(8 + mantissa),
                                         format.min_exponent + exponent_field - 1 - 3);
    const bool nan = magnitude > format.max_code || (code == 0x80 && !format.has_negative_zero);
    values[static_cast<std::size_t>(code)] = nan          ? std::numeric_limits<float>::quiet_NaN()
                                             : code < 128 ? value
                                                          : -value;
  }
  return values;
}

/// Magnitudes of the e2m1 codes.
constexpr std::array<float, 8> kE2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// The nearest code without its sign, ties to even, as if the exponent had no upper limit: a value
/// past the format's range gives more than max_code. `magnitude` is finite and not negative.
int nearest_code(const E4m3& format, float magnitude) {
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  // In units of the last mantissa bit: 8 to 16 for a normal, below 8 for a subnormal. Scaling by a
  // power of two is exact here, and 16 carries into the exponent by itself.
  const float units = std::nearbyint(std::scalbn(magnitude, 3 - exponent));
  return 8 * (exponent - format.min_exponent) + static_cast<int>(units);
}

std::uint8_t with_sign(const E4m3& format, int code, bool negative) {
  if (negative && (code != 0 || format.has_negative_zero)) code |= 0x80;
  return static_cast<std::uint8_t>(code);
}

} // namespace

const std::array<float, 256>& fp8_table(Fp8Encoding encoding) {
  static const std::array<float, 256> fn = decode_all(kFn);
  static const std::array<float, 256> fnuz = decode_all(kFnuz);
  return encoding == Fp8Encoding::e4m3fn ? fn : fnuz;
}

float decode_fp8(Fp8Encoding encoding, std::uint8_t code) {
  return fp8_table(encoding)[code];
}

std::uint8_t encode_fp8_saturating(Fp8Encoding encoding, float value) {
  const E4m3& format = format_of(encoding);
  if (std::isnan(value)) return format.nan;
  const float magnitude = std::min(std::fabs(value), fp8_max(encoding));
  return with_sign(format, nearest_code(format, magnitude), std::signbit(value));
}

std::uint8_t encode_fp8_ieee(Fp8Encoding encoding, float value) {
  const E4m3& format = format_of(encoding);
  if (std::isfinite(value)) {
    const int code = nearest_code(format, std::fabs(value));
    if (code <= format.max_code) return with_sign(format, code, std::signbit(value));
  }
  return with_sign(format, format.nan, std::signbit(value));
}

float fp8_max(Fp8Encoding encoding) {
  return encoding == Fp8Encoding::e4m3fn ? 448.0f : 240.0f;
}

std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(bits >> 16 | 0x40); // the payload may lie in the lost bits
  const std::uint32_t odd = bits >> 16 & 1;
  return static_cast<std::uint16_t>((bits + 0x7FFF + odd) >> 16);
}

float fp16_to_float(std::uint16_t bits) {
  const int exponent_field = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent_field == 0x1F)
    return mantissa ? std::numeric_limits<float>::quiet_NaN()
                    : sign * std::numeric_limits<float>::infinity();
  if (exponent_field == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent_field - 25);
}

std::uint16_t float_to_fp16(float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00);
  const float magnitude = std::min(std::fabs(value), 65536.0f); // what the largest rounds up to
  const int exponent = std::max(std::ilogb(magnitude), -14);
  // As in nearest_code: 1024 to 2048 units for a normal; 65536 gives 0x7C00, infinity.
  const float units = std::nearbyint(std::scalbn(magnitude, 10 - exponent));
  return static_cast<std::uint16_t>(sign | (1024 * (exponent + 14) + static_cast<int>(units)));
}

int ue8m0_exponent(float amax, float qmax) {
  // amax / qmax = (a / q) * 2^(amax_exponent - qmax_exponent) with a and q in [1/2, 1), so a / q is
  // in (1/2, 2) and its logarithm rounds up to 0 or 1.
  int amax_exponent = 0;
  int qmax_exponent = 0;
  const float a = std::frexp(amax, &amax_exponent);
  const float q = std::frexp(qmax, &qmax_exponent);
  return amax_exponent - qmax_exponent + (a > q ? 1 : 0);
}

float decode_e2m1(std::uint8_t code) {
  const float magnitude = kE2m1[code & 7];
  return code & 8 ? -magnitude : magnitude;
}

std::uint8_t encode_e2m1(float value) {
  if (std::isnan(value)) return 0;
  const float magnitude = std::fabs(value);
  std::size_t code = 0;
  while (code < 7) {
    const float half_way = (kE2m1[code] + kE2m1[code + 1]) / 2; // exact
    const bool code_is_even = code % 2 == 0;
    if (magnitude < half_way || (magnitude == half_way && code_is_even)) break;
    ++code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

double decode_e8m0(std::uint8_t byte) {
  return byte == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, byte - 127);
}

} // namespace dsakit::reference
