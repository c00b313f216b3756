// sparse_attention: MLA over the selected records of the fp8_ds_mla cache (spec 5.2 to 5.4).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// k_j    = bf16(code * scale) [512] | k_pe [64]            of the record in slot j
/// s_hj   = (q_h . k_j) * softmax_scale
/// latent = bf16(sum_j p_hj k_j[0:512] / sum_j p_hj),  p = exp(s - max s), bf16 in the sum above
/// lse    = ln(sum_j exp(s_hj));  no valid slot: latent 0, lse -inf
/// Slots below 0 or past the pool are skipped wherever they stand and not read. A slot that recurs
/// counts each time. `splits` contiguous parts of the slots are worked on apart and merged in fp32:
/// the bits depend on their number and on nothing else.
struct SparseAttentionParams {
  const std::uint16_t* q;      // [tokens, heads, 576] bf16, rows 16-byte aligned
  const std::uint8_t* cache;   // [pages, page_size] records of 656 bytes, 16-byte aligned
  const std::int32_t* slots;   // [tokens, k]
  std::uint16_t* latent;       // [tokens, heads, 512] bf16
  float* lse;                  // [tokens, heads]
  std::int64_t q_token_stride; // ELEMENTS between tokens of q, a multiple of 8
  std::int64_t slots_stride;   // ELEMENTS between rows of slots
  std::int64_t page_stride;    // BYTES between pages, a multiple of 16
  std::int64_t record_stride;  // BYTES between records of a page, a multiple of 16
  std::int64_t tokens;
  std::int64_t pages;
  std::int32_t heads;     // 1 to 128
  std::int32_t k;         // slots a token
  std::int32_t page_size; // slot = page * page_size + token
  std::int32_t splits;    // 1 to 64; 0: for choose() (kernel.hpp) to set
  float softmax_scale;
  Fp8Encoding encoding;
  MlaScaleRead scale_read;
  LseBase lse_base;
  float* part_latent; // [tokens, splits, heads, 512] and
  float* part_lse; // [tokens, splits, heads], natural: the launcher points them into its workspace
};

} // namespace dsakit::optimized
