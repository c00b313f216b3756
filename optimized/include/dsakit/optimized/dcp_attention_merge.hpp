// dcp_attention_merge: one attention of what every rank attended to in its own keys (spec 6).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::optimized {

/// How the ranks' latents are stored.
enum class RankLatentDtype : std::uint8_t { bf16, fp32 };

/// M = max_r lse_r,  S = sum_r exp(lse_r - M),  w_r = exp(lse_r - M) / S
/// corrected_r = latent_r * w_r,  latent = bf16(sum_r latent_r * w_r),  lse = M + ln(S)
/// fp32, ranks ascending; exp and ln to lse_base. An lse of NaN or +inf is one of -inf: that rank
/// has no key, and whatever its latent holds, its share is 0; so is a share whose weight is 0.
/// Without a key: latent 0, lse -inf.
struct DcpAttentionMergeParams {
  const void* rank_latent;         // [world, rows, heads, dim] of latent_dtype
  const float* rank_lse;           // [world, rows, heads]
  std::uint16_t* latent;           // [rows, heads, dim] bf16
  float* lse;                      // [rows, heads]
  void* corrected;                 // as rank_latent, or nullptr: each rank's share, rounded once
  std::int64_t latent_rank_stride; // ELEMENTS between ranks of rank_latent and corrected
  std::int64_t lse_rank_stride;    // ELEMENTS between ranks of rank_lse
  std::int64_t rows;
  std::int32_t world; // 1 to 64
  std::int32_t heads;
  std::int32_t dim;
  RankLatentDtype latent_dtype;
  LseBase lse_base;
};

} // namespace dsakit::optimized
