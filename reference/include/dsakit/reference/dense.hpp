// Dense operations of the layer: projections, absorption of W_UK and W_UV, the output gate, the
// softmax scale (spec 1). Each simulated result has an exact one with a derived bound (spec 8).
#pragma once

#include <cstdint>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::reference {

inline constexpr std::int64_t kWeightBlock = 128; ///< edge of an fp8_block

/// W [outputs, inputs], row-major.
struct Weight {
  WeightFormat format;
  Fp8Encoding encoding; ///< of the fp8 formats
  const void* values;   ///< bf16 bits or e4m3 codes
  /// fp8_channel: [outputs]; fp8_block: [ceil(outputs / 128), ceil(inputs / 128)]; bf16: nullptr.
  /// W = code * scale.
  const float* scales;
  std::int64_t outputs;
  std::int64_t inputs;
};

/// bf16(code * scale), the product rounded to fp32; bf16 values as they are. [outputs, inputs].
/// bad_input for a weight without values, or fp8 without scales.
Status weight_dequant(const Weight& weight, std::uint16_t* bf16);

/// y[r, o] = sum_i x[r, i] W[o, i]
struct Projection {
  const std::uint16_t* x; ///< [rows, weight.inputs] bits of dtype
  std::int64_t rows;
  Weight weight;
  ActivationDtype dtype;
};

/// Tier simulated: W rounded to fp32, fp32 sums, one rounding to dtype. A row's bits depend on that
/// row and W alone: neither on the other rows nor on the number of threads. y: [rows, outputs].
/// bad_input for a weight without values, or fp8 without scales.
Status project(const Projection& in, std::uint16_t* y);

/// Tier exact: double. bound: the largest right |producer - exact| (spec 8),
///   gamma(n) sum_i |x W| + n 2^-126 + half an ulp of dtype,
///   gamma(n) = n 2^-24 / (1 - n 2^-24),   n = inputs + 2
/// for inputs products and sums in any order, the weight's and the scale's rounding; a term may be
/// flushed to 0 below 2^-126. y, bound: [rows, outputs].
Status project_exact(const Projection& in, double* y, double* bound);

/// dy[r, o] = sum_i dx[r, i] |W[o, i]|: how far y moves where x[r, i] moves by dx[r, i] >= 0.
/// dx: [rows, inputs]; dy: [rows, outputs].
Status project_difference(const Weight& weight, const double* dx, std::int64_t rows, double* dy);

/// Sizes of an attention head.
struct HeadDims {
  std::int64_t nope;   ///< of q and k, absorbed
  std::int64_t pe;     ///< of q and k, beside the latent
  std::int64_t value;  ///< of v
  std::int64_t latent; ///< kv_lora_rank
};

/// kv_b holds for each head nope rows W_UK, then value rows W_UV; [heads * (nope + value), latent].
struct Absorption {
  const std::uint16_t*
      x; ///< absorb_q: q [tokens, heads, nope + pe]; absorb_v: [tokens, heads, latent]
  std::int64_t tokens;
  std::int64_t heads;
  HeadDims dims;
  Weight kv_b;
  ActivationDtype dtype;
};

/// mla_query[t, n] = (sum_p q[t, n, p] W_UK[n, p, :]) | q_pe[t, n]: rounded as project rounds, then
/// the pe bits as they are. [tokens, heads, latent + pe]. bad_input where kv_b has other extents.
Status absorb_q(const Absorption& in, std::uint16_t* mla_query);
/// As project_exact with nope inputs; the bound of the pe elements is 0.
Status absorb_q_exact(const Absorption& in, double* mla_query, double* bound);
/// As project_difference; dq: [tokens, heads, nope + pe], d_query: [tokens, heads, latent + pe].
Status absorb_q_difference(const Absorption& in, const double* dq, double* d_query);

/// attn_value[t, n, v] = sum_l latent[t, n, l] W_UV[n, v, l]. [tokens, heads * value]
Status absorb_v(const Absorption& in, std::uint16_t* attn_value);
/// As project_exact with latent inputs.
Status absorb_v_exact(const Absorption& in, double* attn_value, double* bound);
/// As project_difference; d_latent: [tokens, heads, latent], d_value: [tokens, heads * value].
Status absorb_v_difference(const Absorption& in, const double* d_latent, double* d_value);

/// gated[i] = value[i] * sigmoid(gate[i]), elementwise over `elements`.
struct OutputGate {
  const std::uint16_t* attn_value; ///< bits of dtype
  const std::uint16_t* gate;       ///< raw output of g_proj
  std::int64_t elements;
  GateRounding rounding;
  ActivationDtype dtype;
};

/// sigmoid in fp32 as 1 / (1 + exp(-g)); rounding two: rounded to dtype, then the product too;
/// one: the product alone.
Status output_gate(const OutputGate& in, std::uint16_t* attn_gated);
/// Tier exact: double, without a rounding. bound: |value| * e + half an ulp of dtype of the
/// product,
///   e = (16 + 2 min(|g|, 128)) 2^-24 sigmoid + 2^-126
/// for exp (3 ulp, and |g| twice rounded on the way to a power of two), the sum, a fast quotient
/// and the product; rounding two: plus half an ulp of sigmoid in e.
Status output_gate_exact(const OutputGate& in, double* attn_gated, double* bound);

/// 0.1 * mscale * ln(factor) + 1; 1 for a factor up to 1.
double yarn_mscale(double factor, double mscale);
/// head_dim^-0.5 * mscale^2 in double; mscale 1 without YaRN. head_dim = nope + pe.
double softmax_scale(std::int64_t head_dim, double mscale);

/// Columns [first, first + width) of x [rows, columns], contiguous in y.
void take_columns(const std::uint16_t* x, std::int64_t rows, std::int64_t columns,
                  std::int64_t first, std::int64_t width, std::uint16_t* y);

} // namespace dsakit::reference
