#include "device/host/conversions.hpp"

#include <bit>

namespace dsakit::optimized::host {

std::uint8_t convert_fp8(float value, Fp8Encoding encoding) {
  const bool ocp = encoding == Fp8Encoding::e4m3fn;
  const int bias = ocp ? 7 : 8;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 7;
  const auto nan = static_cast<std::uint8_t>(ocp ? sign | 0x7Fu : 0x80u);
  const int float_exponent = static_cast<int>(bits >> 23 & 0xFF);
  if (float_exponent == 0xFF) return nan;

  // The significand with its hidden one, and how far below the code's last bit it reaches: codes
  // below 2^(1 - bias) are fixed point with the same last bit.
  const std::uint32_t significand = (bits & 0x7FFFFFu) | (float_exponent ? 0x800000u : 0);
  const int exponent = (float_exponent ? float_exponent : 1) - 127;
  const int code_exponent = exponent + bias > 1 ? exponent + bias : 1;
  const int shift = 20 + (code_exponent - bias - exponent);
  if (shift > 24) return static_cast<std::uint8_t>(ocp ? sign : 0);

  const std::uint32_t last = 1u << shift;
  const std::uint32_t below = significand & (last - 1);
  std::uint32_t rounded = significand >> shift;
  if (below > last / 2 || (below == last / 2 && (rounded & 1u))) ++rounded;

  // A significand without its hidden one (8) is subnormal; a carry moves into the exponent.
  const std::uint32_t code = rounded + (static_cast<std::uint32_t>(code_exponent - 1) << 3);
  if (code > (ocp ? 0x7Eu : 0x7Fu)) return nan;
  if (code == 0 && !ocp) return 0;
  return static_cast<std::uint8_t>(sign | code);
}

} // namespace dsakit::optimized::host
