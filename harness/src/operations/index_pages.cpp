#include "index_pages.hpp"

#include <cstdlib>
#include <string>

#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::harness {
namespace {

Result<PageGeometry> page_geometry(const RecordedTensor& cache, std::int64_t page_size,
                                   std::int64_t record_bytes) {
  PageGeometry geometry{cache.tensor.shape.at(0), cache.tensor.shape.at(1), 0};
  if (const auto attribute = cache.attributes.find("page_offset");
      attribute != cache.attributes.end())
    geometry.offset = std::strtoll(attribute->second.c_str(), nullptr, 10);
  const std::int64_t page_bytes = page_size * record_bytes;
  if (geometry.offset < 0 || geometry.offset > geometry.stride - page_bytes)
    return bad_input("index_cache: found page_offset " + std::to_string(geometry.offset) +
                     " in rows of " + std::to_string(geometry.stride) + " bytes, want room for " +
                     std::to_string(page_bytes) + " bytes, a page of " + std::to_string(page_size) +
                     " tokens");
  return geometry;
}

} // namespace

Result<PageGeometry> page_geometry(const RecordedTensor& cache, const IndexPages& pages) {
  return page_geometry(cache, pages.page_size, reference::kIndexHeadDim + 4);
}

Result<PageGeometry> page_geometry(const RecordedTensor& cache, const Mxfp4Pages& pages) {
  return page_geometry(cache, pages.page_size, reference::kMxfp4Bytes + reference::kMxfp4Groups);
}

Result<std::vector<std::int32_t>> row_requests(const RecordedOperation& tensors, std::int64_t rows,
                                               std::int64_t requests) {
  if (const auto recorded = tensors.inputs.find("row_request"); recorded != tensors.inputs.end()) {
    const auto* data = recorded->second.tensor.as<std::int32_t>();
    return std::vector<std::int32_t>(data, data + rows);
  }
  if (rows > 0 && (requests == 0 || rows % requests != 0))
    return bad_input("row_request is missing: found " + std::to_string(rows) + " rows for " +
                     std::to_string(requests) + " requests, want the same number for each");
  std::vector<std::int32_t> lines(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row)
    lines[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row / (rows / requests));
  return lines;
}

} // namespace dsakit::harness
