// One row of 128 in MXFP4: what the quantiser makes and a page of the cache holds.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::reference {

struct Mxfp4Record {
  std::array<std::uint8_t, kMxfp4Bytes> packed;
  std::array<std::uint8_t, kMxfp4Groups> scale;
};

/// The record of token `position` of `request`; none where find_page finds no page.
std::optional<Mxfp4Record> find_mxfp4_record(const Mxfp4Pages& contract,
                                             const IndexCache<const std::uint8_t>& cache,
                                             const BlockTable& block_table, std::int64_t request,
                                             std::int64_t position);

} // namespace dsakit::reference
