// The recorded index cache as the reference and the kernels take it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// Pages inside a tensor [pages, ...]: page p starts `offset` bytes into row p.
struct PageGeometry {
  std::int64_t pages;
  std::int64_t stride; ///< BYTES of a row
  std::int64_t offset; ///< BYTES, the attribute page_offset: 0 but for a cache packed with others
};

/// bad_input where a page does not lie inside its row.
Result<PageGeometry> page_geometry(const RecordedTensor& cache, const IndexPages& pages);
Result<PageGeometry> page_geometry(const RecordedTensor& cache, const Mxfp4Pages& pages);

/// Line of block_table of each row: the input row_request, or row / next_n where there is none.
Result<std::vector<std::int32_t>> row_requests(const RecordedOperation& tensors, std::int64_t rows,
                                               std::int64_t requests);

} // namespace dsakit::harness
