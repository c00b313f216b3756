#pragma once

#include "index_format.hpp"

namespace dsakit::reference {

/// Everything that forward refuses, before anything is written.
Status check_step(const LayerConfig& config, const LayerContract& contract,
                  const IndexFormat& format, const TopkBuffer& topk, const LayerStep& step);

} // namespace dsakit::reference
