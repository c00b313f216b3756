// Indexer logits over the paged cache (spec 2.8), in two tiers, with derived error bounds (spec 8).
#pragma once

#include <cstdint>

#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

/// Inputs of index_logits_decode.
/// logit[r, p] = (sum_h max(sum_d q[r,h,d] k[p,d], 0) * w[r,h]) * s_k[p]   for p < row_lens[r]
struct IndexLogitsDecode {
  const std::uint8_t* index_q_fp8;   ///< [rows, heads, 128] codes of index_fp8_encoding
  const float* index_weights_folded; ///< [rows, heads]
  IndexCache<const std::uint8_t> cache;
  BlockTable block_table;
  const std::int32_t* row_lens;    ///< [rows] keys a row sees; negative counts as 0
  const std::int32_t* row_request; ///< [rows] line of block_table; not read where a row has no key
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t columns; ///< extent of a row of logits, at least every row_lens
};

/// Tier `exact`: double throughout, no rounding point.
struct Exact {
  using Value = double;
};
/// Tier `simulated`: the dot in fp32 with d ascending, then heads in fp32 with h ascending, then
/// the scale; every sum and product rounds to fp32.
struct Simulated {
  using Value = float;
};

/// Where a producer may round to bf16 as well; the simulated tier rounds at none of these.
struct LogitsRounding {
  bool weight = false; ///< a head's weight
  bool dot = false;    ///< the sum over d, before ReLU
  bool term = false;   ///< ReLU(dot) * weight
  bool logit = false;  ///< the result
};

/// logits: [rows, columns]; columns at or beyond a row's length are left as they are. A key on an
/// invalid page (beyond the table or the pool, or negative) gives -inf. max(NaN, 0) is NaN.
template <class Tier>
Status index_logits_decode(const IndexPages& contract, const IndexLogitsDecode& in,
                           typename Tier::Value* logits);

extern template Status index_logits_decode<Exact>(const IndexPages&, const IndexLogitsDecode&,
                                                  double*);
extern template Status index_logits_decode<Simulated>(const IndexPages&, const IndexLogitsDecode&,
                                                      float*);

/// Tier `simulated` with roundings more.
Status index_logits_decode_rounded(const IndexPages& contract, const IndexLogitsDecode& in,
                                   const LogitsRounding& rounding, float* logits);

/// bound: [rows, columns], the largest |producer - exact| that a right producer of that
/// accumulation can have (spec 8, "Logits"); 0 at and beyond the row length and for a key on an
/// invalid page.
///   fp32:            2^-18 * S2 + 1e-30,  S2 = sum_h |w_h| s_k sum_d |q_d k_d|
///   sm90_wgmma_fp8:  2^-13 * sum_h |w_h| s_k sum_{j=1..4} max(|P_{j-1}|, |P_j|, max_d |q_d k_d|)
///                    with P_j the dot over the first j steps of 32
///   exact:           2^-24 * |exact| + 2^-45 * S2 + 2^-149 (rounded once to fp32)
Status index_logits_decode_bound(const IndexPages& contract, const IndexLogitsDecode& in,
                                 Accumulation accumulation, double* bound);

/// Inputs of index_logits_prefill: row r scores keys n in [ks[r], ke[r]), clamped to [0, keys),
/// into column n - column_origin[r] (nullptr: column n).
struct IndexLogitsPrefill {
  const std::uint8_t* index_q_fp8;   ///< [rows, heads, 128]
  const float* index_weights_folded; ///< [rows, heads]
  const std::uint8_t* k_fp8;         ///< [keys, 128]
  const float* k_scale;              ///< [keys]
  const std::int32_t* ks;            ///< [rows]
  const std::int32_t* ke;            ///< [rows]
  const std::int32_t* column_origin; ///< [rows] or nullptr
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t keys;
  std::int64_t columns;
  Fp8Encoding index_fp8_encoding;
};

/// As index_logits_decode; columns outside a row's window are left as they are.
template <class Tier>
Status index_logits_prefill(const IndexLogitsPrefill& in, typename Tier::Value* logits);

extern template Status index_logits_prefill<Exact>(const IndexLogitsPrefill&, double*);
extern template Status index_logits_prefill<Simulated>(const IndexLogitsPrefill&, float*);

Status index_logits_prefill_rounded(const IndexLogitsPrefill& in, const LogitsRounding& rounding,
                                    float* logits);

/// As index_logits_decode_bound; 0 outside the window.
Status index_logits_prefill_bound(const IndexLogitsPrefill& in, Accumulation accumulation,
                                  double* bound);

} // namespace dsakit::reference
