#include "dsakit/reference/topk.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "score_order.hpp"

namespace dsakit::reference {
namespace {

/// A row's columns [start, end) of its logits.
struct Window {
  std::int64_t start;
  std::int64_t end;

  std::int64_t length() const { return end - start; } ///< at or below 0: no column
};

Window window_of(const std::int32_t* row_starts, const std::int32_t* row_ends, std::int64_t row) {
  return {row_starts ? row_starts[row] : 0, row_ends[row]};
}

/// Positions of the k best of `length` scores, the best first.
std::vector<std::int32_t> best(const float* scores, std::int64_t length, std::int64_t k) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  const auto ranks_before = [scores](std::int32_t a, std::int32_t b) {
    if (scores_higher(scores[a], scores[b])) return true;
    if (scores_higher(scores[b], scores[a])) return false;
    return a < b;
  };
  std::partial_sort(positions.begin(), positions.begin() + k, positions.end(), ranks_before);
  positions.resize(static_cast<std::size_t>(k));
  return positions;
}

Status check(std::int64_t rows, std::int64_t columns, const std::int32_t* row_starts,
             const std::int32_t* row_ends, const DcpRank& dcp) {
  DSAKIT_TRY(check_dcp_rank(dcp));
  for (std::int64_t row = 0; row < rows; ++row) {
    const Window window = window_of(row_starts, row_ends, row);
    if (window.length() > 0 && (window.start < 0 || window.end > columns))
      return bad_input("columns of row " + std::to_string(row) + ": found [" +
                       std::to_string(window.start) + ", " + std::to_string(window.end) +
                       "), want within [0, " + std::to_string(columns) + ")");
    if (window.length() <= 0) continue;
    const std::int64_t last = dcp_global_position(dcp, window.length() - 1);
    if (last > std::numeric_limits<std::int32_t>::max())
      return bad_input("last position of row " + std::to_string(row) + ": found " +
                       std::to_string(last) + ", want an int32");
  }
  return {};
}

/// The slot of a row's position; -1 where there is none.
std::int64_t slot_of(std::int64_t position, const BlockTable& block_table, std::int64_t request,
                     std::int64_t page_size, std::int64_t block_stride, const DcpRank& dcp) {
  if (request < 0 || request >= block_table.requests) return -1;
  if (position < 0 || dcp_owner(dcp, position) != dcp.rank) return -1;
  const std::int64_t index = dcp_local_index(dcp, position);
  const std::int64_t column = index / page_size;
  if (column >= block_table.columns) return -1;
  const std::int64_t page = block_table.data[request * block_table.columns + column];
  return page < 0 ? -1 : page * block_stride + index % page_size;
}

} // namespace

Status topk(const float* logits, std::int64_t rows, std::int64_t columns,
            const std::int32_t* row_starts, const std::int32_t* row_ends, std::int64_t k,
            TopkOrder order, std::int32_t* topk_indices, const DcpRank& dcp) {
  DSAKIT_TRY(check(rows, columns, row_starts, row_ends, dcp));
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t row) {
    const Window window = window_of(row_starts, row_ends, row);
    std::int32_t* out = topk_indices + row * k;
    std::vector<std::int32_t> taken(
        static_cast<std::size_t>(std::clamp<std::int64_t>(window.length(), 0, k)));
    if (window.length() <= k) { // all of them, whatever they score
      std::iota(taken.begin(), taken.end(), 0);
    } else {
      taken = best(logits + row * columns + window.start, window.length(), k);
      if (order == TopkOrder::ascending) std::sort(taken.begin(), taken.end());
    }
    std::fill_n(out, k, -1);
    for (const std::int32_t index : taken)
      *out++ = static_cast<std::int32_t>(dcp_global_position(dcp, index));
  });
  return {};
}

void dcp_scores(const float* logits, std::int64_t rows, std::int64_t columns,
                const std::int32_t* row_starts, const std::int32_t* topk_indices, std::int64_t k,
                float* scores, const DcpRank& dcp) {
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const std::int64_t row = i / k;
    const std::int64_t start = row_starts ? row_starts[row] : 0;
    scores[i] = topk_indices[i] < 0
                    ? -std::numeric_limits<float>::infinity()
                    : logits[row * columns + start + dcp_local_index(dcp, topk_indices[i])];
  }
}

Status topk_slots(const std::int32_t* topk_indices, std::int64_t rows, std::int64_t k,
                  BlockTable block_table, const std::int32_t* row_request, std::int64_t page_size,
                  std::int64_t block_stride, std::int32_t* slots, const DcpRank& dcp) {
  DSAKIT_TRY(check_dcp_rank(dcp));
  if (page_size < 1)
    return bad_input("page_size: found " + std::to_string(page_size) + ", want at least 1");
  if (block_stride < page_size)
    return bad_input("block stride: found " + std::to_string(block_stride) +
                     " slots, want at least the page size " + std::to_string(page_size));
  std::vector<std::int32_t> found(static_cast<std::size_t>(rows * k));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / k;
    const std::int64_t slot =
        slot_of(topk_indices[i], block_table, row_request[row], page_size, block_stride, dcp);
    if (slot > std::numeric_limits<std::int32_t>::max())
      return bad_input("slot of position " + std::to_string(topk_indices[i]) + " in row " +
                       std::to_string(row) + ": found " + std::to_string(slot) + ", want an int32");
    found[i] = static_cast<std::int32_t>(slot);
  }
  std::copy(found.begin(), found.end(), slots);
  return {};
}

void compact_slots(const std::int32_t* slots, std::int64_t rows, std::int64_t k,
                   std::int32_t* compact, std::int32_t* counts) {
  for (std::int64_t row = 0; row < rows; ++row, slots += k, compact += k) {
    std::int32_t* end =
        std::copy_if(slots, slots + k, compact, [](auto slot) { return slot >= 0; });
    counts[row] = static_cast<std::int32_t>(end - compact);
    std::fill(end, compact + k, -1);
  }
}

} // namespace dsakit::reference
