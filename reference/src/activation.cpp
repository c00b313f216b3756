#include "activation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dsakit/reference/formats.hpp"

namespace dsakit::reference {

float activation_to_float(ActivationDtype dtype, std::uint16_t bits) {
  return dtype == ActivationDtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

std::uint16_t float_to_activation(ActivationDtype dtype, float value) {
  return dtype == ActivationDtype::bf16 ? float_to_bf16(value) : float_to_fp16(value);
}

float round_to_activation(ActivationDtype dtype, float value) {
  return activation_to_float(dtype, float_to_activation(dtype, value));
}

void load_activations(ActivationDtype dtype, const std::uint16_t* bits, std::span<float> values) {
  for (float& value : values)
    value = activation_to_float(dtype, *bits++);
}

float amax_of(std::span<const float> values, float largest_finite, float floor) {
  float amax = 0;
  for (float value : values)
    if (std::fabs(value) > amax) // false for NaN
      amax = std::fabs(value);
  return std::max(std::min(amax, largest_finite), floor);
}

float amax_of(std::span<const float> values, ActivationDtype dtype, float floor) {
  const std::uint16_t largest_finite = dtype == ActivationDtype::bf16 ? 0x7F7F : 0x7BFF;
  return amax_of(values, activation_to_float(dtype, largest_finite), floor);
}

double ulp_of(ActivationDtype dtype, double value) {
  if (dtype == ActivationDtype::bf16) return ulp_of(value, 7);
  return std::ldexp(1.0, std::max(std::ilogb(value), -14) - 10);
}

double ulp_of(double value, int mantissa_bits) {
  return std::ldexp(1.0, std::max(std::ilogb(value), -126) - mantissa_bits);
}

} // namespace dsakit::reference
