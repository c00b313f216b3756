// Comparison of two bags of named tensors, in blocks and without a reference.
#pragma once

#include "dsakit/harness/compare_recordings.hpp"

namespace dsakit::harness {

/// Of compare_paths: two files that are not both recordings.
Result<Report> compare_tensors(const CompareOptions& options, Rules& rules);

} // namespace dsakit::harness
