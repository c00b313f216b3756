// A rank's projections by name.
#pragma once

#include <string>

#include "dsakit/reference/layer.hpp"

namespace dsakit::reference {

inline Dtype dtype_of(ActivationDtype dtype) {
  return dtype == ActivationDtype::bf16 ? Dtype::bfloat16 : Dtype::float16;
}

struct Projections {
  const LayerWeights& weights;
  ActivationDtype dtype;
  std::int64_t tokens;

  Weight weight(const std::string& name) const { return weights.projections.at(name).view(); }

  /// [tokens, outputs]
  Result<Tensor> apply(const std::string& name, const std::uint16_t* x) const {
    const Weight w = weight(name);
    Tensor y(dtype_of(dtype), {tokens, w.outputs});
    DSAKIT_TRY(project({x, tokens, w, dtype}, y.as<std::uint16_t>()));
    return y;
  }
};

} // namespace dsakit::reference
