// Number formats of the indexer: e4m3fn, e4m3fnuz, bf16, power-of-two scales (spec 0.3, 2.2), and
// those of MXFP4, e2m1 and e8m0 (spec 3.1).
#pragma once

#include <bit>
#include <cstdint>

#include "dsakit/core/contract.hpp"

namespace dsakit::reference {

/// Exact value of an e4m3 byte; NaN for 0x7F and 0xFF (fn) or 0x80 (fnuz).
float decode_fp8(Fp8Encoding encoding, std::uint8_t code);

/// Nearest e4m3 code, ties to even, beyond the largest finite value that value: Triton's rule.
/// NaN gives 0x7F (fn) or 0x80 (fnuz). fnuz has no -0: a negative underflow gives 0x00.
std::uint8_t encode_fp8_saturating(Fp8Encoding encoding, float value);

/// As above, but beyond the half-way point after the largest finite value, and for infinities,
/// NaN (fn: 0x7F with the value's sign; fnuz: 0x80): torch's `.to(float8)`.
std::uint8_t encode_fp8_ieee(Fp8Encoding encoding, float value);

/// Largest finite value: 448 or 240.
float fp8_max(Fp8Encoding encoding);

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
/// Nearest bf16, ties to even; NaN stays NaN.
std::uint16_t float_to_bf16(float value);
float fp16_to_float(std::uint16_t bits);
/// Nearest fp16, ties to even; NaN stays NaN, from the half-way point past 65504 on infinity.
std::uint16_t float_to_fp16(float value);

/// e of the scale 2^e = 2^ceil(log2(amax / qmax)) for a finite amax > 0, in exact arithmetic.
/// qmax is 448, 240, 224, or 6 for MXFP4.
int ue8m0_exponent(float amax, float qmax);

/// Value of an e2m1 code, 0 to 15: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negated.
float decode_e2m1(std::uint8_t code);
/// Nearest e2m1 code, ties to even, beyond 6 the code of 6. Negative values that round to 0, and
/// -0, give 8; NaN gives 0 (spec 11).
std::uint8_t encode_e2m1(float value);

/// 2^(byte - 127), exact; NaN for 0xFF. A double: the product of two leaves fp32.
double decode_e8m0(std::uint8_t byte);

} // namespace dsakit::reference
