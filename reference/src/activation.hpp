// Activations: 16-bit elements as floats and back, and the magnitude that a quantiser scales a row
// by.
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/contract.hpp"

namespace dsakit::reference {

float activation_to_float(ActivationDtype dtype, std::uint16_t bits);
/// Nearest element, ties to even.
std::uint16_t float_to_activation(ActivationDtype dtype, float value);
/// `value` rounded to the dtype.
float round_to_activation(ActivationDtype dtype, float value);

/// Distance of two neighbours of the dtype at `value`.
double ulp_of(ActivationDtype dtype, double value);
/// The same of a format with fp32's exponents and that mantissa.
double ulp_of(double value, int mantissa_bits);

/// Widens values.size() elements.
void load_activations(ActivationDtype dtype, const std::uint16_t* bits, std::span<float> values);

/// max |value|, at least `floor`. NaN takes no part; an infinity counts as `largest_finite`, or the
/// dtype's largest finite value (spec 11).
float amax_of(std::span<const float> values, float largest_finite, float floor);
float amax_of(std::span<const float> values, ActivationDtype dtype, float floor);

} // namespace dsakit::reference
