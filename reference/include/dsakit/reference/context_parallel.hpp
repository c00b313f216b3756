// Decode context parallelism: which rank holds a key, and what the ranks' answers give together
// (spec 6). One process simulates the ranks: tensors of all of them lie side by side.
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/core/dtype.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

/// A rank's share of a request's keys: of the blocks of `interleave` positions every world-th,
/// beginning with number `rank`. Its own caches and block tables count these keys without gaps.
struct DcpRank {
  std::int64_t world = 1;
  std::int64_t interleave = 1;
  std::int64_t rank = 0;
};

/// bad_input unless world and interleave are at least 1 and rank is one of the world.
Status check_dcp_rank(const DcpRank& dcp);

/// The rank that holds a position: (position / interleave) % world.
std::int64_t dcp_owner(const DcpRank& dcp, std::int64_t position);
/// Where its owner holds it: (position / (world * interleave)) * interleave + position %
/// interleave.
std::int64_t dcp_local_index(const DcpRank& dcp, std::int64_t position);
/// The position that dcp.rank holds at local_index.
std::int64_t dcp_global_position(const DcpRank& dcp, std::int64_t local_index);
/// How many of the positions [0, length) dcp.rank holds. Of every causal bound separately: a row's
/// own length is localised, never its request's.
std::int64_t dcp_local_length(const DcpRank& dcp, std::int64_t length);

/// slots[t]: where dcp.rank writes the token at positions[t] of request row_request[t], by its own
/// block table; -1 where another rank holds it, or it has no page.
Status dcp_slot_mapping(const DcpRank& dcp, std::span<const std::int32_t> positions,
                        const std::int32_t* row_request, BlockTable block_table,
                        std::int64_t page_size, std::int64_t* slots);

/// The k best of the candidates of all ranks. rank_scores, rank_indices: [world, rows, k]; indices
/// are global positions, each at most once in a row, negative: padding. Order: score descending,
/// -0 as +0, NaN below -inf and above padding, then the smaller position; or
/// ascending positions. topk_indices: [rows, k], -1 beyond the candidates.
void dcp_topk_merge(const float* rank_scores, const std::int32_t* rank_indices, std::int64_t world,
                    std::int64_t rows, std::int64_t k, TopkOrder order, std::int32_t* topk_indices);

/// What the ranks' attention over their own keys gave, and its weights w_r in the attention over
/// all:  M = max_r lse_r,  S = sum_r exp(lse_r - M),  w_r = exp(lse_r - M) / S,
///   corrected_r = latent_r * w_r,  latent = sum_r corrected_r,  lse = M + ln(S)
/// An lse of NaN or +inf is one of -inf: that rank has no key, and whatever its latent holds, its
/// share is exactly 0. So is a share whose weight is 0 in fp32. Without a key: latent 0, lse -inf.
struct DcpAttention {
  const void* rank_latent; ///< [world, rows, heads, dim] of latent_dtype
  Dtype latent_dtype;      ///< bfloat16 or float32
  const float* rank_lse;   ///< [world, rows, heads] in lse_base
  std::int64_t world;
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t dim;
  LseBase lse_base;
};

/// Tier exact. latent: [rows, heads, dim]; lse: [rows, heads]; corrected: [world, rows, heads, dim]
/// or nullptr.
Status dcp_attention_merge_exact(const DcpAttention& in, double* latent, double* lse,
                                 double* corrected);

/// Tier simulated: fp32 throughout, ranks ascending, latent rounded once to bf16.
Status dcp_attention_merge(const DcpAttention& in, std::uint16_t* latent, float* lse);

/// The shares as vLLM's ranks correct their own outputs, in fp32: w_r = exp(lse_r - lse) with the
/// merged lse already rounded. corrected: of latent_dtype, one rounding.
Status dcp_attention_correct(const DcpAttention& in, float* lse, void* corrected);

/// Largest right error of a producer that computes with roundings of u: 2^-24 under fp32; under
/// exact 2^-52, which is a double's and the reference's.  With d_r = |lse_r - M| as a natural
/// logarithm:
///   e_r = (3 d_r + 4) u               the difference, its change of base, exp within 2 ulp
///   E   = sum_r w_r e_r + (world - 1) u                                  S
///   latent:    sum_r |corrected_r| (e^(e_r + E + (world + 2) u) - 1)     quotient, product, sum
///   lse:       E + 8 u |ln(S)| (times log2(e) for base two)
///   corrected: |corrected_r| (e^(e_r + E + L + 2 u) - 1),  L = u |lse| + the error of lse:
///              a producer may take the weights from the rounded lse (spec 6); at most
///              |latent_r| max(w_r, 1 - w_r), since a weight lies between 0 and 1
/// and each half an ulp of its storage. A rank with a key also adds 2^-125 (1 + |latent_r|), since
/// below 2^-126 a weight or a product may become 0. corrected: as above, or nullptr.
Status dcp_attention_merge_bound(const DcpAttention& in, Accumulation accumulation, double* latent,
                                 double* lse, double* corrected);

} // namespace dsakit::reference
