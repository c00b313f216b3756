// Where the mismatches of an output are: by block along each of its axes, and a few of them.
#pragma once

#include <string>
#include <vector>

#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// An axis of an output, in the blocks that its mismatches are counted in.
struct Axis {
  std::string name;
  std::string unit = "index"; ///< index | tile | page
  std::int64_t block = 1;     ///< indices
  /// Of the bytes of an index page: the token that each belongs to, -1 for padding.
  std::vector<std::int64_t> token_of = {};
};

/// Named as the recording does. The keys of paged logits are counted by page, a long last axis by
/// tiles of 16, which is what a matrix instruction makes.
std::vector<Axis> axes_of(const OperationData& data, const std::string& output, const Shape& shape);

/// An entry an axis, and before that of an index page's bytes one of its tokens; empty where
/// nothing mismatches.
std::vector<AxisMap> map_of(const Comparison& comparison, const Shape& shape,
                            const std::vector<Axis>& axes);

/// The first mismatch, the worst, and others evenly among those that the comparison kept: flat
/// indices, row-major, at most ReportLine::kSamples.
std::vector<std::int64_t> samples_of(const Comparison& comparison);

} // namespace dsakit::harness
