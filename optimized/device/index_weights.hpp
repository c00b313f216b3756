// The weight fold of one head (spec 2.3): what index_weights_fold and index_query_quant share.
#pragma once

#include "device/vector.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

DSAKIT_DEVICE float fold_weight(std::uint16_t weight, float q_scale, float head_scale,
                                float softmax_scale, WeightFold fold) {
  float w = bf16_to_float(weight) * head_scale;
  if (fold == WeightFold::bf16_intermediate) w = bf16_to_float(float_to_bf16(w));
  return w * q_scale * softmax_scale;
}

} // namespace dsakit::optimized::DSAKIT_ARCH
