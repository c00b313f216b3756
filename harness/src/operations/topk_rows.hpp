// Which sets of positions are the best of a row of logits, and which logits tie at the threshold.
#pragma once

#include <cstdint>

#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// A row of logits. A producer whose own logits were off by at most `band` chose from it.
struct TopkRow {
  const float* scores;
  const double* band;  ///< one a score; none: the producer had these scores
  std::int64_t length; ///< of both
  std::int64_t k;
};

/// Marks in `valid` which of the row's `k` positions a set of its best may hold: each at most once
/// and inside the row, -1 in the places left over, and none that one left out beats even where the
/// bands favour it; of equal ones the last. NaN of either sign is last; -0 equals +0 (spec 11).
void mark_valid(const TopkRow& row, const std::int32_t* positions, std::uint8_t* valid);

/// Counts the row's group at the threshold: those that equal the lowest score of the best.
void count_ties(const TopkRow& row, std::int64_t index, ReportTies& ties);

/// A row of the operation topk; `band` is of all its logits, or empty.
TopkRow topk_row(const OperationData& data, std::int64_t row, const std::vector<double>& band);

/// The ties of all rows of the operation topk.
ReportTies count_ties(const OperationData& data);

} // namespace dsakit::harness
