// A step of random requests with its caches, as one rank of context parallelism sees it.
#pragma once

#include "draws.hpp"
#include "dsakit/harness/record.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/layer.hpp"

namespace dsakit::harness {

struct SyntheticStep {
  Tensor hidden_states;         ///< [tokens, hidden_size]
  Tensor query_lens, seq_lens;  ///< [requests] int32
  Tensor slot_mapping;          ///< [tokens] int64, -1 for what another rank holds
  Tensor block_table;           ///< [requests, columns] int32, -1 padded
  Tensor index_cache;           ///< [pages, bytes] uint8
  Tensor mla_cache;             ///< [pages, page_size, 656] uint8
  Tensor row_lens, row_request; ///< [tokens] int32
  Tensor own_row_lens;          ///< [tokens] int32: of the rank's own keys
  Tensor own_seq_lens;          ///< [requests] int32

  reference::LayerStep view();
};

/// Earlier tokens are quantised from random latents; bytes that no token owns are 0xA5. Pages lie
/// in random order, one of them owned by nobody. All ranks of a seed hold the same tokens.
Result<SyntheticStep> make_step(const reference::LayerConfig& config,
                                const reference::LayerContract& contract, const RequestGroup& group,
                                std::uint64_t seed, std::uint32_t step, Distribution distribution,
                                const reference::DcpRank& dcp);

} // namespace dsakit::harness
