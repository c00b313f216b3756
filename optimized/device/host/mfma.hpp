// The matrix instructions of one wave, on the exchange's operands:
// word[0] = A, word[1] = B, acc[r] = register r of C and D. fp32, one fused multiply-add a step,
// k ascending (the hardware's order is not published; kernels are held to the fp32 gate).
// Of 128-bit operands, word[2] and word[3] are the upper halves of A and B.
#pragma once

#include "dsakit/core/contract_enums.hpp"
#include "runtime/host_executor.hpp"

namespace dsakit::optimized::host {

/// v_mfma_f32_16x16x32_fp8_fp8: lane l holds row (column) l % 16, k = 8 (l / 16) ... + 7.
void mfma_16x16x32_fp8(Exchange& exchange, Fp8Encoding encoding);

/// v_mfma_f32_16x16x16_bf16: lane l holds row (column) l % 16, k = 4 (l / 16) ... + 3.
void mfma_16x16x16_bf16(Exchange& exchange);

/// v_mfma_scale_f32_16x16x128_f8f6f4 with both formats e2m1: lane l holds row (column) l % 16 and
/// k = 32 (l / 16) ... + 31, low nibble first; byte 0 of word[4] and of its upper half is the e8m0
/// of the lane's 32 elements of A and of B. The 32 products are summed exactly and scaled with one
/// rounding, groups are added in ascending order. A scale 0xFF is NaN.
/// Sources: AMD Instinct CDNA4 ISA, 7.2.1; where Triton's AMD backend places operands and scales
/// (chooseScaledMfmaScaleLayout); Modular's mxfp4_matmul_amd, which states both for this shape.
void mfma_scale_16x16x128_fp4(Exchange& exchange);

} // namespace dsakit::optimized::host
