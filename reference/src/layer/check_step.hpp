#pragma once

#include "index_format.hpp"

namespace dsakit::reference {

/// Everything that forward refuses of a step, as each rank sees it, before anything is written.
Status check_steps(const LayerConfig& config, const LayerContract& contract,
                   const IndexFormat& format, const TopkBuffer& topk,
                   std::span<const LayerStep> steps);

} // namespace dsakit::reference
