// Some of an operation's rows: a sample for recordings that are too large to replay as a whole, or
// the rows that something is tried on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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

/// The axis of `tensor` that counts independent rows; none in an operation that has no such rows.
std::optional<std::size_t> row_axis(const Operation& operation, const std::string& tensor);

/// How many independent rows the operation has there; 0: it has none.
std::int64_t independent_rows(const RecordedOperation& recorded, const Operation& operation);

/// `rows` of that axis, before which only ranks may come.
Tensor of_axis(const Tensor& tensor, std::size_t axis, const std::vector<std::int64_t>& rows);

/// `recorded` with these rows alone, which ascend.
Result<RecordedOperation> keep_rows(const RecordedOperation& recorded, const Operation& operation,
                                    const std::vector<std::int64_t>& rows);

} // namespace dsakit::harness
