// The indexer's paged key cache: quantise and write, gather (spec 2.4 to 2.6).
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::reference {

inline constexpr std::int64_t kIndexHeadDim = 128;

/// Pages in memory. Byte = uint8_t to write, const uint8_t to read.
template <class Byte>
struct IndexCache {
  Byte* data;
  std::int64_t pages;
  std::int64_t page_stride; ///< BYTES between pages, at least page_size * 132 (MXFP4: * 68)
};

/// Physical page of each logical page of each request.
struct BlockTable {
  const std::int32_t* data; ///< [requests, columns]
  std::int64_t requests;
  std::int64_t columns;
};

/// Byte offsets inside a page (spec 2.5): the value byte of (token, dim), the fp32 scale of token.
std::int64_t index_value_offset(const IndexPages& pages, std::int64_t token, std::int64_t dim);
std::int64_t index_scale_offset(const IndexPages& pages, std::int64_t token);

/// unsupported where the reference cannot follow the layout: an MXFP4 layout, or mfma_preshuffle
/// with page_size % 16 != 0. bad_input where page_stride is too small.
Status check_index_pages(const IndexPages& pages, std::int64_t page_stride);

/// s = 2^ceil(log2(max(floor, amax_d |k_d|) / qmax)) (or the unrounded quotient for scale_kind
/// fp32), code_d = e4m3(k_d / s); written to the page and offset of slot_mapping[t].
/// index_k: [index_k_rows, 128] bits of the activation dtype; rows past slot_mapping are ignored,
/// fewer are bad_input. Slot -1 is skipped; a slot below -1 or past the pool is bad_input.
/// Of two tokens with one slot the later one stays. Nothing is written on failure.
/// NaN: ignored by amax, stored as the format's NaN. Infinity: the scale is that of the largest
/// finite input, the value saturates (spec 11).
Status index_cache_write(const IndexKeyQuant& contract, const std::uint16_t* index_k,
                         std::int64_t index_k_rows, std::span<const std::int64_t> slot_mapping,
                         IndexCache<std::uint8_t> cache);

/// k_fp8[j, :], k_scale[j] = the record of token j - cu_seq_lens[b] of request b = row_request[j].
/// row_request may be empty: b is then the request whose range holds j. cu_seq_lens: [requests +
/// 1]. A row outside every request, or outside the range of its own, is left as it is. A row whose
/// table entry is beyond the table or the pool, or negative, gives 128 zero bytes and scale 0.
/// k_fp8: [rows, 128]; k_scale: [rows].
Status index_cache_gather(const IndexPages& contract, IndexCache<const std::uint8_t> cache,
                          BlockTable block_table, std::span<const std::int32_t> cu_seq_lens,
                          std::span<const std::int32_t> row_request, std::int64_t rows,
                          std::uint8_t* k_fp8, float* k_scale);

} // namespace dsakit::reference
