// The indexer: writes the new keys, scores every row, fills the shared top-k buffer (spec 2).
#pragma once

#include "index_format.hpp"
#include "step_rows.hpp"

namespace dsakit::reference {

struct IndexerInput {
  const LayerConfig& config;
  const LayerContract& contract;
  const LayerWeights& weights;
  std::span<const LayerStep> steps; ///< a rank each; what they have alike is read from the first
  const StepRows& rows;
  std::span<const RankRows> ranks;
  const std::uint16_t* index_q_input; ///< [tokens, q_lora_rank], normed, or hidden_states
  TopkBuffer topk;
};

/// Returns the buffer that it was given. The step has been checked.
Result<TopkBuffer> run_indexer(const IndexerInput& in, IndexFormat& format, const LayerSink& sink);

} // namespace dsakit::reference
