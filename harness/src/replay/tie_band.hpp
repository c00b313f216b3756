// The band of a top-k: by how much the logits that it was chosen from may have been off.
#pragma once

#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "sample_rows.hpp"

namespace dsakit::harness {

/// A value for each of the logits that `topk` was fed: what rounds in logits of `accumulation`, and
/// what rounded in the recorded ones (spec 8). bad_input where no operation of the step made these
/// logits, since only its inputs say how much that is.
Result<std::vector<double>> tie_band(const RecordingReader& reader, const OperationData& topk,
                                     Accumulation accumulation, const RowSample& sample);

} // namespace dsakit::harness
