// The MXFP4 indexer: quantise queries, write keys to the paged cache, gather them (spec 3.1, 3.2).
#pragma once

#include <cstdint>
#include <span>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/reference/index_cache.hpp"

namespace dsakit::reference {

/// A row of 128 elements: 64 bytes of two codes each, the even element in the low nibble, and a
/// scale for each 32 elements.
inline constexpr std::int64_t kMxfp4Bytes = 64;
inline constexpr std::int64_t kMxfp4Groups = 4;

/// For each group of 32 elements: e = ceil(log2(max(amax, 6 * 2^-126) / 6)), code = e2m1(q * 2^-e);
/// the scale byte is e + 127. With contract.hadamard the row is first rotated in fp32: butterflies
/// (a, b) -> (a + b, a - b) of elements 1 apart, then 2, 4, ..., 64, every sum rounded, and at the
/// end times fl32(128^-0.5).
/// index_q: [rows, 128] bits of the activation dtype; packed: [rows, 64]; scale: [rows, 4] e8m0.
/// NaN: ignored by amax, code 0. Infinity: the scale is that of the largest finite input of the
/// dtype (of fp32 where rotated), the value saturates (spec 11).
Status index_query_quant_mxfp4(const Mxfp4Quant& contract, const std::uint16_t* index_q,
                               std::int64_t rows, std::uint8_t* packed, std::uint8_t* scale);

/// Byte offsets inside a page (spec 3.2): byte i of a token's 64, the scale byte of its group.
std::int64_t mxfp4_value_offset(const Mxfp4Pages& pages, std::int64_t token, std::int64_t byte);
std::int64_t mxfp4_scale_offset(const Mxfp4Pages& pages, std::int64_t token, std::int64_t group);

/// unsupported for an FP8 layout, or preshuffle64 with another page_size than 64. bad_input where
/// page_stride is below page_size * 68.
Status check_mxfp4_pages(const Mxfp4Pages& pages, std::int64_t page_stride);

/// Quantises as index_query_quant_mxfp4 and writes to the page and offset of slot_mapping[t]; slots
/// and rows as in index_cache_write.
/// index_k: [index_k_rows, 128] bits of the activation dtype; cache: page_stride at least
/// page_size * 68 bytes.
Status index_cache_write_mxfp4(const Mxfp4Pages& pages, const Mxfp4Quant& quant,
                               const std::uint16_t* index_k, std::int64_t index_k_rows,
                               std::span<const std::int64_t> slot_mapping,
                               IndexCache<std::uint8_t> cache);

/// As index_cache_gather. A row whose table entry is beyond the table or the pool, or negative,
/// gives 64 zero bytes and four scale bytes 0. k_packed: [rows, 64]; k_scale: [rows, 4] e8m0.
Status index_cache_gather_mxfp4(const Mxfp4Pages& contract, IndexCache<const std::uint8_t> cache,
                                BlockTable block_table, std::span<const std::int32_t> cu_seq_lens,
                                std::span<const std::int32_t> row_request, std::int64_t rows,
                                std::uint8_t* k_packed, std::uint8_t* k_scale);

} // namespace dsakit::reference
