// Rows of index_cache_gather, in either format.
#pragma once

#include <cstdint>

#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

enum class RowKind : std::uint8_t {
  copied,   ///< from a page of the pool
  bad_page, ///< zero bytes and scale 0
  skipped,  ///< outside its request: stays as it was
};

/// As many as the row map, or what was there before, or the recorded outputs have; else one for
/// each token.
std::int64_t gathered_rows(const OperationData& data);

RowKind row_kind(const OperationData& data, std::int64_t page_size, std::int64_t row);

} // namespace dsakit::harness
