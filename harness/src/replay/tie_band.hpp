// The band of a top-k: by how much the logits that it was chosen from may have been off.
#pragma once

#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/rules.hpp"
#include "overrides.hpp"
#include "sample_rows.hpp"

namespace dsakit::harness {

/// Input of a top-k that lies alone in a file: its band, float32 [rows, keys].
inline constexpr const char* kLogitsBand = "logits_band";

/// The recording that a top-k is of, as it is replayed.
struct BandSource {
  const RecordingReader& reader;
  const Overrides& overrides;
  RowSample sample = {};
};

/// A value for each of the logits that `topk` was fed: what rounds in logits of `rule.band`, and
/// what rounded in the recorded ones (spec 8); or the input kLogitsBand, where it has that. Empty
/// where the rule has no band. bad_input where no operation of the step made these logits, since
/// only its inputs say how much that is.
Result<std::vector<double>> tie_band(const BandSource& source, const OperationData& topk,
                                     const Rule& rule);

} // namespace dsakit::harness
