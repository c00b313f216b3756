// weight_dequant: an fp8 weight as the bf16 that the library's projections take (spec 1). Not an
// operation of the layer: it serves those with a weight.
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// weight[o, i] = bf16(code[o, i] * scale), the product rounded to fp32
/// fp8_channel: scale = scales[o];  fp8_block: scale = scales[o / 128, i / 128]
struct WeightDequantParams {
  const std::uint8_t* codes; // [outputs, inputs] e4m3, 8-byte aligned
  const float* scales;       // [outputs], or [ceil(outputs / 128), ceil(inputs / 128)]
  std::uint16_t* weight;     // [outputs, inputs] bf16, 16-byte aligned
  std::int64_t outputs;
  std::int64_t inputs; // a multiple of 8
  WeightFormat format; // fp8_channel | fp8_block
  Fp8Encoding encoding;
};

} // namespace dsakit::optimized
