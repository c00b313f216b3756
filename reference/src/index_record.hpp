// One token's line of the index cache, and the only code that knows where its bytes lie.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

struct IndexRecord {
  std::array<std::uint8_t, kIndexHeadDim> codes;
  float scale;
};

/// The record of token `position` of `request`; none where its table entry is beyond the table or
/// the pool, or negative. Entries of other tokens' pages are not read.
std::optional<IndexRecord> find_record(const IndexPages& contract,
                                       const IndexCache<const std::uint8_t>& cache,
                                       const BlockTable& block_table, std::int64_t request,
                                       std::int64_t position);

} // namespace dsakit::reference
