// Selection of the k largest logits of a row, and their cache slots (spec 2.10, 5.1, 11).
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

/// Row r's columns are [row_starts[r], row_ends[r]) of logits row r (row_starts may be nullptr: 0);
/// positions count from the start. Order: score descending, -0 as +0, NaN below -inf, then the
/// smaller position. A row of at most k columns gives 0, 1, ..., then -1. topk_indices: [rows, k].
/// The columns are the keys of dcp.rank; what is written are their positions in the request (spec
/// 2.10), bad_input where one exceeds int32.
Status topk(const float* logits, std::int64_t rows, std::int64_t columns,
            const std::int32_t* row_starts, const std::int32_t* row_ends, std::int64_t k,
            TopkOrder order, std::int32_t* topk_indices, const DcpRank& dcp = {});

/// scores[r, i] = the logit at topk_indices[r, i], as topk writes them; -inf at -1. What a rank
/// offers to dcp_topk_merge. scores: [rows, k].
void dcp_scores(const float* logits, std::int64_t rows, std::int64_t columns,
                const std::int32_t* row_starts, const std::int32_t* topk_indices, std::int64_t k,
                float* scores, const DcpRank& dcp = {});

/// slots[r, i] = page * block_stride + p % page_size for the position p that topk_indices[r, i] has
/// in the block table of dcp.rank; -1 where another rank holds it, and where it, its column, its
/// page or the row's request is invalid. [rows, k]. bad_input where a slot exceeds int32.
Status topk_slots(const std::int32_t* topk_indices, std::int64_t rows, std::int64_t k,
                  BlockTable block_table, const std::int32_t* row_request, std::int64_t page_size,
                  std::int64_t block_stride, std::int32_t* slots, const DcpRank& dcp = {});

/// The slots of each row but for -1, moved to its front in their order, -1 behind them; counts:
/// [rows] how many.
void compact_slots(const std::int32_t* slots, std::int64_t rows, std::int64_t k,
                   std::int32_t* compact, std::int32_t* counts);

} // namespace dsakit::reference
