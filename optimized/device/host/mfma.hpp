// The matrix instructions of one wave, on the exchange's operands:
// word[0] = A, word[1] = B, acc[r] = register r of C and D. fp32, one fused multiply-add a step,
// k ascending (the hardware's order is not published; kernels are held to the fp32 gate).
#pragma once

#include "dsakit/core/contract_enums.hpp"
#include "runtime/host_executor.hpp"

namespace dsakit::optimized::host {

/// v_mfma_f32_16x16x32_fp8_fp8: lane l holds row (column) l % 16, k = 8 (l / 16) ... + 7.
void mfma_16x16x32_fp8(Exchange& exchange, Fp8Encoding encoding);

/// v_mfma_f32_16x16x16_bf16: lane l holds row (column) l % 16, k = 4 (l / 16) ... + 3.
void mfma_16x16x16_bf16(Exchange& exchange);

} // namespace dsakit::optimized::host
