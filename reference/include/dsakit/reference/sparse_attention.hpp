// Sparse MLA over selected cache records (spec 5.2 to 5.4), with derived bounds (spec 8).
#pragma once

#include <cstdint>

#include "dsakit/reference/mla_cache.hpp"

namespace dsakit::reference {

struct SparseAttention {
  const std::uint16_t* mla_query; ///< [tokens, heads, 576] bits of activation_dtype
  MlaCache<const std::uint8_t> cache;
  const std::int32_t* slots; ///< [tokens, k]; negative or past the pool: skipped
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t k;
  double softmax_scale;
  Fp8Encoding mla_fp8_encoding;
  MlaScaleRead mla_scale_read;
  LseBase lse_base;
  /// Of the query, the keys, the probabilities and the latent.
  ActivationDtype activation_dtype = ActivationDtype::bf16;
  /// bf16_576: rows of 512 latents and 64 of k_pe, read as they are, without encoding and scales.
  MlaRecord mla_record = MlaRecord::fp8_ds_mla;
};

/// Tier exact: scores, softmax and sums in double over the bf16 records.
/// latent: [tokens, heads, 512]; lse: [tokens, heads] in lse_base; a row without a valid slot: 0,
/// -inf.
Status sparse_attention_exact(const SparseAttention& in, double* latent, double* lse);

/// Where the simulated tier rounds to bf16, and where another producer may.
struct AttentionRounding {
  bool probability = true;         ///< p in P V
  bool score = false;              ///< q k * scale
  bool summed_probability = false; ///< p in the sum that divides
  bool weighted_sum = false;       ///< the sum of p v, after each block
};

/// Tier simulated: fp32 scores and sums, online softmax over blocks of 16 keys, bf16(p) in P V, one
/// rounding to bf16. latent: bf16 bits. With fp16 activations fp16 stands for bf16.
Status sparse_attention(const SparseAttention& in, std::uint16_t* latent, float* lse,
                        const AttentionRounding& rounding = {});

/// Largest right error of a producer (spec 8), eps = 578 * 2^-24 * max_j sum_d |q_d k_jd| * scale:
/// lse:    eps + 4 ulp (times log2(e) for base two)
/// latent: 2^-8 (|o| + sum_j p_j |v_j|)
///         + min((e^(2 eps) - 1) sum_j p_j |v_j|, max_j v_j - min_j v_j + 2^-7 max_j |v_j|)
///         + 2^-124 sum_j (1 + |v_j|)
/// The minimum: whatever the scores, both outputs are weighted means of the same values. The last
/// term: below 2^-126 a probability, a split's weight, a product or a sum may become 0. With fp16
/// activations 2^-24: a probability below 2^-14, or the latent, is a subnormal fp16.
Status sparse_attention_bound(const SparseAttention& in, double* latent, double* lse);

/// The same for a producer that computes in double and rounds at the end, the latent to fp32 and
/// then to bf16: half an ulp of each storage, and twice the rounding of double sums of 578 and k
/// terms, for the producer's and for the reference's: lse:    half a fp32 ulp + noise (times
/// log2(e) for base two) + 2^-50 |lse|,
///         noise = 2 * 2^-53 * (578 max_j sum_d |q_d k_jd| * scale + k + 8)
/// latent: half a bf16 and half a fp32 ulp + (e^(2 noise) - 1) sum_j p_j |v_j|, the last with the
///         same minimum
Status sparse_attention_exact_bound(const SparseAttention& in, double* latent, double* lse);

} // namespace dsakit::reference
