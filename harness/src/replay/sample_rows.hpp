// A sample of an operation's rows, for recordings that are too large to replay as a whole.
#pragma once

#include <cstdint>

#include "dsakit/core/operations.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

struct RowSample {
  std::int64_t rows = 0; ///< at most so many of each operation; 0: all
  std::uint64_t seed = 0;
};

/// `recorded` with some of its rows, in their order: the same ones for each operation with the same
/// number of rows. Operations whose rows are not independent (cache writes, the gather) stay whole.
Result<RecordedOperation> sample_rows(RecordedOperation recorded, const Operation& operation,
                                      const RowSample& sample);

} // namespace dsakit::harness
