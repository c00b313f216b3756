#include "dsakit/reference/mxfp4.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "mxfp4_record.hpp"
#include "paged_rows.hpp"
#include "slots.hpp"

namespace dsakit::reference {
namespace {

using Row = std::array<float, kIndexHeadDim>;

constexpr std::size_t kGroup = 32;
constexpr float kFloor = 6 * 0x1p-126f; ///< smallest amax: its scale is the smallest normal number
constexpr int kE8m0Bias = 127;

/// row * H / sqrt(128), H the Walsh-Hadamard matrix in Sylvester's order.
void rotate(Row& row) {
  for (std::size_t distance = 1; distance < row.size(); distance *= 2)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i & distance) continue; // the second of a pair
      const float a = row[i];
      const float b = row[i + distance];
      row[i] = a + b;
      row[i + distance] = a - b;
    }
  const auto norm = static_cast<float>(1 / std::sqrt(static_cast<double>(kIndexHeadDim)));
  for (float& value : row)
    value *= norm;
}

/// e of the group's scale 2^e.
int group_exponent(const Mxfp4Quant& contract, std::span<const float> group) {
  const float amax = contract.hadamard == Hadamard::none
                         ? amax_of(group, contract.activation_dtype, kFloor)
                         : amax_of(group, std::numeric_limits<float>::max(), kFloor);
  return ue8m0_exponent(amax, 6);
}

Mxfp4Record quantise(const Mxfp4Quant& contract, const std::uint16_t* activations) {
  Row row;
  load_activations(contract.activation_dtype, activations, row);
  if (contract.hadamard == Hadamard::query_and_key) rotate(row);

  Mxfp4Record record;
  for (std::size_t g = 0; g < record.scale.size(); ++g) {
    const auto group = std::span(row).subspan(g * kGroup, kGroup);
    const int exponent = group_exponent(contract, group);
    record.scale[g] = static_cast<std::uint8_t>(exponent + kE8m0Bias);
    for (std::size_t i = 0; i < kGroup; i += 2) {
      const int even = encode_e2m1(std::ldexp(group[i], -exponent));
      const int odd = encode_e2m1(std::ldexp(group[i + 1], -exponent));
      record.packed[(g * kGroup + i) / 2] = static_cast<std::uint8_t>(even | odd << 4);
    }
  }
  return record;
}

void store_record(const Mxfp4Pages& pages, std::uint8_t* page, std::int64_t token,
                  const Mxfp4Record& record) {
  for (std::int64_t i = 0; i < kMxfp4Bytes; ++i)
    page[mxfp4_value_offset(pages, token, i)] = record.packed[static_cast<std::size_t>(i)];
  for (std::int64_t g = 0; g < kMxfp4Groups; ++g)
    page[mxfp4_scale_offset(pages, token, g)] = record.scale[static_cast<std::size_t>(g)];
}

Mxfp4Record load_record(const Mxfp4Pages& pages, const std::uint8_t* page, std::int64_t token) {
  Mxfp4Record record;
  for (std::int64_t i = 0; i < kMxfp4Bytes; ++i)
    record.packed[static_cast<std::size_t>(i)] = page[mxfp4_value_offset(pages, token, i)];
  for (std::int64_t g = 0; g < kMxfp4Groups; ++g)
    record.scale[static_cast<std::size_t>(g)] = page[mxfp4_scale_offset(pages, token, g)];
  return record;
}

void copy_record(const Mxfp4Record& record, std::int64_t row, std::uint8_t* packed,
                 std::uint8_t* scale) {
  std::copy(record.packed.begin(), record.packed.end(), packed + row * kMxfp4Bytes);
  std::copy(record.scale.begin(), record.scale.end(), scale + row * kMxfp4Groups);
}

} // namespace

std::int64_t mxfp4_value_offset(const Mxfp4Pages& pages, std::int64_t token, std::int64_t byte) {
  if (pages.index_page_layout == IndexPageLayout::preshuffle64)
    return byte / 16 * (pages.page_size * 16) + token * 16 + byte % 16; // a group is 16 bytes
  return token * kMxfp4Bytes + byte;
}

std::int64_t mxfp4_scale_offset(const Mxfp4Pages& pages, std::int64_t token, std::int64_t group) {
  const std::int64_t scales = pages.page_size * kMxfp4Bytes;
  if (pages.index_page_layout == IndexPageLayout::preshuffle64)
    return scales + group * pages.page_size + token % 16 * (pages.page_size / 16) + token / 16;
  return scales + token * kMxfp4Groups + group;
}

Status check_mxfp4_pages(const Mxfp4Pages& pages, std::int64_t page_stride) {
  const IndexPageLayout layout = pages.index_page_layout;
  if (layout != IndexPageLayout::flat && layout != IndexPageLayout::preshuffle64)
    return unsupported("index_page_layout: found " + std::string(name(layout)) +
                       ", want flat or preshuffle64 for MXFP4");
  if (pages.page_size < 1)
    return bad_input("page_size: found " + std::to_string(pages.page_size) + ", want at least 1");
  if (layout == IndexPageLayout::preshuffle64 && pages.page_size != 64)
    return unsupported("page_size: found " + std::to_string(pages.page_size) +
                       ", want 64 for preshuffle64");
  const std::int64_t page_bytes = pages.page_size * (kMxfp4Bytes + kMxfp4Groups);
  if (page_stride < page_bytes)
    return bad_input("index_cache page stride: found " + std::to_string(page_stride) +
                     " bytes, want at least " + std::to_string(page_bytes));
  return {};
}

std::optional<Mxfp4Record> find_mxfp4_record(const Mxfp4Pages& contract,
                                             const IndexCache<const std::uint8_t>& cache,
                                             const BlockTable& block_table, std::int64_t request,
                                             std::int64_t position) {
  const std::uint8_t* page = find_page(cache, block_table, request, position / contract.page_size);
  if (!page) return std::nullopt;
  return load_record(contract, page, position % contract.page_size);
}

Status index_query_quant_mxfp4(const Mxfp4Quant& contract, const std::uint16_t* index_q,
                               std::int64_t rows, std::uint8_t* packed, std::uint8_t* scale) {
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t row) {
    copy_record(quantise(contract, index_q + row * kIndexHeadDim), row, packed, scale);
  });
  return {};
}

Status index_cache_write_mxfp4(const Mxfp4Pages& pages, const Mxfp4Quant& quant,
                               const std::uint16_t* index_k, std::int64_t index_k_rows,
                               std::span<const std::int64_t> slot_mapping,
                               IndexCache<std::uint8_t> cache) {
  DSAKIT_TRY(check_mxfp4_pages(pages, cache.page_stride));
  DSAKIT_TRY(
      check_slot_mapping(slot_mapping, cache.pages * pages.page_size, "index_k", index_k_rows));

  std::vector<Mxfp4Record> records(slot_mapping.size());
  tbb::parallel_for(std::size_t{0}, records.size(), [&](std::size_t t) {
    if (slot_mapping[t] >= 0) records[t] = quantise(quant, index_k + t * kIndexHeadDim);
  });
  // In order of tokens, so that of two tokens with one slot the later one stays.
  for (std::size_t t = 0; t < records.size(); ++t) {
    const std::int64_t slot = slot_mapping[t];
    if (slot >= 0)
      store_record(pages, cache.data + slot / pages.page_size * cache.page_stride,
                   slot % pages.page_size, records[t]);
  }
  return {};
}

Status index_cache_gather_mxfp4(const Mxfp4Pages& contract, IndexCache<const std::uint8_t> cache,
                                BlockTable block_table, std::span<const std::int32_t> cu_seq_lens,
                                std::span<const std::int32_t> row_request, std::int64_t rows,
                                std::uint8_t* k_packed, std::uint8_t* k_scale) {
  DSAKIT_TRY(check_mxfp4_pages(contract, cache.page_stride));
  return for_each_gathered_row(
      block_table, cu_seq_lens, row_request, rows,
      [&](std::int64_t row, std::int64_t request, std::int64_t position) {
        const auto record = find_mxfp4_record(contract, cache, block_table, request, position);
        copy_record(record.value_or(Mxfp4Record{}), row, k_packed, k_scale);
      });
}

} // namespace dsakit::reference
