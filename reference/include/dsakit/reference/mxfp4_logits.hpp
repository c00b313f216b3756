// Indexer logits from MXFP4 queries and keys (spec 3.3), in two tiers, with derived error bounds
// (spec 8).
#pragma once

#include <cstdint>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::reference {

/// fl32(heads^-0.5 * 128^-0.5)
float mxfp4_weight_scale(std::int64_t heads);

/// Inputs of index_logits_decode_mxfp4.
/// logit[r, p] = (sum_h max(dot[h], 0) * w[r,h]) * mxfp4_weight_scale(heads)   for p < row_lens[r],
/// dot[h] = sum_g 2^(eq[r,h,g] - 127) * 2^(ek[p,g] - 127) * sum of group g's 32 products of codes.
struct IndexLogitsDecodeMxfp4 {
  const std::uint8_t* index_q_packed; ///< [rows, heads, 64] two e2m1 codes a byte
  const std::uint8_t* index_q_scale;  ///< [rows, heads, 4] e8m0
  const std::uint16_t* index_weights; ///< [rows, heads] bits of activation_dtype
  IndexCache<const std::uint8_t> cache;
  BlockTable block_table;
  const std::int32_t* row_lens;    ///< [rows] keys a row sees; negative counts as 0
  const std::int32_t* row_request; ///< [rows] line of block_table; not read where a row has no key
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t columns; ///< extent of a row of logits, at least every row_lens
  ActivationDtype activation_dtype;
};

/// As index_logits_decode. Tier `simulated`: a group's sum of products is exact, scaled it is
/// rounded only where it leaves fp32's range; groups ascend in fp32, then heads, then weight_scale.
template <class Tier>
Status index_logits_decode_mxfp4(const Mxfp4Pages& contract, const IndexLogitsDecodeMxfp4& in,
                                 typename Tier::Value* logits);

extern template Status index_logits_decode_mxfp4<Exact>(const Mxfp4Pages&,
                                                        const IndexLogitsDecodeMxfp4&, double*);
extern template Status index_logits_decode_mxfp4<Simulated>(const Mxfp4Pages&,
                                                            const IndexLogitsDecodeMxfp4&, float*);

/// bound: [rows, columns], as index_logits_decode_bound, where
///   S2 = weight_scale * sum_h |w_h| sum_d |q_d k_d|, scales included.
/// It holds wherever the producer applies weight_scale (spec 3.3 has two places): one rounding of
/// a sum that S2 bounds. unsupported for sm90_wgmma_fp8.
Status index_logits_decode_mxfp4_bound(const Mxfp4Pages& contract, const IndexLogitsDecodeMxfp4& in,
                                       Accumulation accumulation, double* bound);

/// Inputs of index_logits_prefill_mxfp4: rows, windows and columns as in IndexLogitsPrefill.
struct IndexLogitsPrefillMxfp4 {
  const std::uint8_t* index_q_packed; ///< [rows, heads, 64]
  const std::uint8_t* index_q_scale;  ///< [rows, heads, 4] e8m0
  const std::uint16_t* index_weights; ///< [rows, heads] bits of activation_dtype
  const std::uint8_t* k_packed;       ///< [keys, 64]
  const std::uint8_t* k_scale;        ///< [keys, 4] e8m0
  const std::int32_t* ks;             ///< [rows]
  const std::int32_t* ke;             ///< [rows]
  const std::int32_t* column_origin;  ///< [rows] or nullptr
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t keys;
  std::int64_t columns;
  ActivationDtype activation_dtype;
};

/// As index_logits_decode_mxfp4; columns outside a row's window are left as they are.
template <class Tier>
Status index_logits_prefill_mxfp4(const IndexLogitsPrefillMxfp4& in, typename Tier::Value* logits);

extern template Status index_logits_prefill_mxfp4<Exact>(const IndexLogitsPrefillMxfp4&, double*);
extern template Status index_logits_prefill_mxfp4<Simulated>(const IndexLogitsPrefillMxfp4&,
                                                             float*);

/// As index_logits_decode_mxfp4_bound; 0 outside the window.
Status index_logits_prefill_mxfp4_bound(const IndexLogitsPrefillMxfp4& in,
                                        Accumulation accumulation, double* bound);

} // namespace dsakit::reference
