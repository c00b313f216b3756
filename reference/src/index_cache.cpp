#include "dsakit/reference/index_cache.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/formats.hpp"
#include "index_record.hpp"
#include "paged_rows.hpp"
#include "slots.hpp"

namespace dsakit::reference {
namespace {

IndexRecord quantise(const IndexKeyQuant& contract, const std::uint16_t* key) {
  std::array<float, kIndexHeadDim> k;
  load_activations(contract.activation_dtype, key, k);
  const float amax = amax_of(k, contract.activation_dtype, contract.index_k_floor);

  IndexRecord record;
  record.scale = contract.scale_kind == ScaleKind::ue8m0
                     ? std::ldexp(1.0f, ue8m0_exponent(amax, contract.qmax))
                     : amax / contract.qmax;
  for (std::size_t d = 0; d < k.size(); ++d)
    record.codes[d] =
        encode_fp8_saturating(contract.pages.value.index_fp8_encoding, k[d] / record.scale);
  return record;
}

void store_record(const IndexPages& contract, std::uint8_t* page, std::int64_t token,
                  const IndexRecord& record) {
  for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
    page[index_value_offset(contract, token, d)] = record.codes[static_cast<std::size_t>(d)];
  std::memcpy(page + index_scale_offset(contract, token), &record.scale, sizeof record.scale);
}

IndexRecord load_record(const IndexPages& contract, const std::uint8_t* page, std::int64_t token) {
  IndexRecord record;
  for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
    record.codes[static_cast<std::size_t>(d)] = page[index_value_offset(contract, token, d)];
  std::memcpy(&record.scale, page + index_scale_offset(contract, token), sizeof record.scale);
  return record;
}

} // namespace

std::int64_t index_value_offset(const IndexPages& pages, std::int64_t token, std::int64_t dim) {
  if (pages.index_page_layout == IndexPageLayout::mfma_preshuffle)
    return token / 16 * 2048 + dim / 16 * 256 + token % 16 * 16 + dim % 16;
  return token * kIndexHeadDim + dim;
}

std::int64_t index_scale_offset(const IndexPages& pages, std::int64_t token) {
  return pages.page_size * kIndexHeadDim + token * 4;
}

Status check_index_pages(const IndexPages& pages, std::int64_t page_stride) {
  const IndexPageLayout layout = pages.index_page_layout;
  if (layout != IndexPageLayout::block_flat && layout != IndexPageLayout::mfma_preshuffle)
    return unsupported("index_page_layout: found " + std::string(name(layout)) +
                       ", want block_flat or mfma_preshuffle for FP8");
  if (pages.page_size < 1)
    return bad_input("page_size: found " + std::to_string(pages.page_size) + ", want at least 1");
  if (layout == IndexPageLayout::mfma_preshuffle && pages.page_size % 16 != 0)
    return unsupported("page_size: found " + std::to_string(pages.page_size) +
                       ", want a multiple of 16 for mfma_preshuffle");
  const std::int64_t page_bytes = index_scale_offset(pages, pages.page_size);
  if (page_stride < page_bytes)
    return bad_input("index_cache page stride: found " + std::to_string(page_stride) +
                     " bytes, want at least " + std::to_string(page_bytes));
  return {};
}

std::optional<IndexRecord> find_record(const IndexPages& contract,
                                       const IndexCache<const std::uint8_t>& cache,
                                       const BlockTable& block_table, std::int64_t request,
                                       std::int64_t position) {
  const std::uint8_t* page = find_page(cache, block_table, request, position / contract.page_size);
  if (!page) return std::nullopt;
  return load_record(contract, page, position % contract.page_size);
}

Status index_cache_write(const IndexKeyQuant& contract, const std::uint16_t* index_k,
                         std::int64_t index_k_rows, std::span<const std::int64_t> slot_mapping,
                         IndexCache<std::uint8_t> cache) {
  const IndexPages& pages = contract.pages;
  DSAKIT_TRY(check_index_pages(pages, cache.page_stride));
  DSAKIT_TRY(
      check_slot_mapping(slot_mapping, cache.pages * pages.page_size, "index_k", index_k_rows));

  std::vector<IndexRecord> records(slot_mapping.size());
  tbb::parallel_for(std::size_t{0}, records.size(), [&](std::size_t t) {
    if (slot_mapping[t] >= 0) records[t] = quantise(contract, index_k + t * kIndexHeadDim);
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

Status index_cache_gather(const IndexPages& contract, IndexCache<const std::uint8_t> cache,
                          BlockTable block_table, std::span<const std::int32_t> cu_seq_lens,
                          std::span<const std::int32_t> row_request, std::int64_t rows,
                          std::uint8_t* k_fp8, float* k_scale) {
  DSAKIT_TRY(check_index_pages(contract, cache.page_stride));
  return for_each_gathered_row(
      block_table, cu_seq_lens, row_request, rows,
      [&](std::int64_t row, std::int64_t request, std::int64_t position) {
        const IndexRecord record =
            find_record(contract, cache, block_table, request, position).value_or(IndexRecord{});
        std::copy(record.codes.begin(), record.codes.end(), k_fp8 + row * kIndexHeadDim);
        k_scale[row] = record.scale;
      });
}

} // namespace dsakit::reference
