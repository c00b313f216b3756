// A step of random requests with its caches.
#pragma once

#include "draws.hpp"
#include "dsakit/harness/record.hpp"
#include "dsakit/reference/layer.hpp"

namespace dsakit::harness {

struct SyntheticStep {
  Tensor hidden_states;         ///< [tokens, hidden_size]
  Tensor query_lens, seq_lens;  ///< [requests] int32
  Tensor slot_mapping;          ///< [tokens] int64
  Tensor block_table;           ///< [requests, columns] int32, -1 padded
  Tensor index_cache;           ///< [pages, bytes] uint8
  Tensor mla_cache;             ///< [pages, page_size, 656] uint8
  Tensor row_lens, row_request; ///< [tokens] int32

  reference::LayerStep view();
};

/// Earlier tokens are quantised from random latents; bytes that no token owns are 0xA5. Pages lie
/// in random order, one of them owned by nobody.
Result<SyntheticStep> make_step(const reference::LayerConfig& config,
                                const reference::LayerContract& contract, const RequestGroup& group,
                                std::uint64_t seed, std::uint32_t step, Distribution distribution);

} // namespace dsakit::harness
