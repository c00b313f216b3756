// output_gate: the attention's values times the sigmoid of the gate projection (spec 1.11).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// s = sigmoid(gate) in fp32
/// rounding two: gated = bf16(value * bf16(s));  one: gated = bf16(value * s)
/// A row that sees no key is 0, whatever its gate: that of a graph's padding may be NaN.
struct OutputGateParams {
  const std::uint16_t* attn_value; // [rows, width] bf16, rows 16-byte aligned
  const std::uint16_t* gate;       // [rows, width] bf16, rows 16-byte aligned
  const std::int32_t* row_lens;    // [rows] keys that a row sees; nullptr: each sees some
  std::uint16_t* attn_gated;       // [rows, width] bf16, rows 16-byte aligned; may be attn_value
  std::int64_t attn_value_stride;  // ELEMENTS between rows, a multiple of 8; so the next two
  std::int64_t gate_stride;
  std::int64_t attn_gated_stride;
  std::int64_t rows;
  std::int32_t width; // heads * value dim, a multiple of 8
  GateRounding rounding;
};

} // namespace dsakit::optimized
