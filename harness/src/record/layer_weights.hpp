// The weights of a recorded layer: random, or a checkpoint's.
#pragma once

#include <string>

#include "dsakit/core/status.hpp"
#include "dsakit/reference/layer_config.hpp"

namespace dsakit::harness {

/// Projections are normal with variance 1 / inputs, norms lie around 1 (a bias around 0). `config`
/// is of one rank.
reference::LayerWeights random_layer_weights(const reference::LayerConfig& config,
                                             std::uint64_t seed);

/// The tensors "...layers.<layer>.self_attn.*" of the *.safetensors files in `folder`, under our
/// names; a quantised <name>.weight has its scales beside it as .weight_scale or .weight_scale_inv.
/// bad_input where one is missing, occurs twice or has other extents; unsupported for a projection
/// that is neither bf16 nor fp8 with a scale a row or a block of 128 x 128.
Result<reference::LayerWeights> read_layer_weights(const reference::LayerConfig& config,
                                                   const std::string& folder, std::int64_t layer);

} // namespace dsakit::harness
