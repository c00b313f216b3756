// Indexer queries: quantise, and fold the scales into the head weights (spec 2.2, 2.3).
#pragma once

#include <cstdint>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::reference {

/// s = 2^ceil(log2(max(floor, amax) / qmax)), code = e4m3(clamp(q / s, -qmax, qmax)) for each row
/// of 128; scale_kind fp32: s = max(floor, amax) * fl32(1 / qmax), unrounded. index_q: [rows, 128]
/// bits of the activation dtype; q_fp8: [rows, 128]; q_scale: [rows]. NaN and infinities as in
/// index_cache_write, but the saturated value is qmax.
Status index_query_quant(const IndexQueryQuant& contract, const std::uint16_t* index_q,
                         std::int64_t rows, std::uint8_t* q_fp8, float* q_scale);

/// folded[t, h] = fl32(fl32(w1 * q_scale) * fl32(128^-0.5)),
/// w1 = fl32(w * fl32(heads^-0.5)), for weight_fold bf16_intermediate rounded to the activation
/// dtype (spec 2.3: the projection's).
/// index_weights: [tokens, heads] bits of the activation dtype; q_scale, folded: [tokens, heads].
Status index_weights_fold(WeightFold fold, ActivationDtype dtype,
                          const std::uint16_t* index_weights, const float* q_scale,
                          std::int64_t tokens, std::int64_t heads, float* folded);

} // namespace dsakit::reference
