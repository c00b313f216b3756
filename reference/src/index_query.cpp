#include "dsakit/reference/index_query.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {
namespace {

/// The scale of a row with that amax. Unlike a key's, an unrounded one multiplies by the reciprocal
/// (spec 2.2).
float scale_of(const IndexQueryQuant& contract, float amax) {
  if (contract.scale_kind == ScaleKind::ue8m0)
    return std::ldexp(1.0f, ue8m0_exponent(amax, contract.qmax));
  return amax * (1.0f / contract.qmax);
}

void quantise(const IndexQueryQuant& contract, const std::uint16_t* query, std::uint8_t* codes,
              float& scale) {
  std::array<float, kIndexHeadDim> q;
  load_activations(contract.activation_dtype, query, q);
  scale = scale_of(contract, amax_of(q, contract.activation_dtype, contract.index_q_floor));
  for (float value : q)
    *codes++ = encode_fp8_saturating(
        contract.index_fp8_encoding,
        std::clamp(value / scale, -contract.qmax.value, contract.qmax.value)); // NaN stays NaN
}

} // namespace

Status index_query_quant(const IndexQueryQuant& contract, const std::uint16_t* index_q,
                         std::int64_t rows, std::uint8_t* q_fp8, float* q_scale) {
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t row) {
    quantise(contract, index_q + row * kIndexHeadDim, q_fp8 + row * kIndexHeadDim, q_scale[row]);
  });
  return {};
}

Status index_weights_fold(WeightFold fold, ActivationDtype dtype,
                          const std::uint16_t* index_weights, const float* q_scale,
                          std::int64_t tokens, std::int64_t heads, float* folded) {
  const auto head_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads)));
  const auto softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kIndexHeadDim)));
  for (std::int64_t i = 0; i < tokens * heads; ++i) {
    float weight = activation_to_float(dtype, index_weights[i]) * head_scale;
    if (fold == WeightFold::bf16_intermediate) weight = round_to_activation(dtype, weight);
    folded[i] = weight * q_scale[i] * softmax_scale;
  }
  return {};
}

} // namespace dsakit::reference
