#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>

#include "activation.hpp"
#include "dsakit/reference/dense.hpp"

namespace dsakit::reference {

Status output_gate(const OutputGate& in, std::uint16_t* attn_gated) {
  tbb::parallel_for(std::int64_t{0}, in.elements, [&](std::int64_t i) {
    float sigmoid = 1 / (1 + std::exp(-activation_to_float(in.dtype, in.gate[i])));
    if (in.rounding == GateRounding::two) sigmoid = round_to_activation(in.dtype, sigmoid);
    attn_gated[i] =
        float_to_activation(in.dtype, activation_to_float(in.dtype, in.attn_value[i]) * sigmoid);
  });
  return {};
}

Status output_gate_exact(const OutputGate& in, double* attn_gated, double* bound) {
  tbb::parallel_for(std::int64_t{0}, in.elements, [&](std::int64_t i) {
    const double gate = activation_to_float(in.dtype, in.gate[i]);
    const double magnitude = std::fabs(activation_to_float(in.dtype, in.attn_value[i]));
    const double sigmoid = 1 / (1 + std::exp(-gate));
    const double size = std::min(std::fabs(gate), 128.0); // beyond, the power is below 2^-126
    double error = (16 + 2 * size) * 0x1p-24 * sigmoid + 0x1p-126;
    if (in.rounding == GateRounding::two) error += ulp_of(in.dtype, sigmoid + error) / 2;
    attn_gated[i] = activation_to_float(in.dtype, in.attn_value[i]) * sigmoid;
    const double largest = magnitude * (sigmoid + error); // may lie in the next binade
    bound[i] = magnitude * error + ulp_of(in.dtype, largest) / 2;
  });
  return {};
}

} // namespace dsakit::reference
