#include "draft.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "../recording/formats.hpp"
#include "../recording/structure.hpp"

namespace dsakit::harness {
namespace {

constexpr std::byte kPoison{0xA5};      // cache records
constexpr std::byte kPoisonedKey{0x5A}; // gathered keys
constexpr float kPoisonedScale = 7;
constexpr std::uint8_t kPoisonedExponent = 7; // of an MXFP4 group

/// Fills the bytes that token `token` of a page owns (spec 2.5, 3.2).
void poison_record(IndexPageLayout layout, std::int64_t page_size, std::int64_t token,
                   std::byte* page) {
  const auto fill = [page](std::int64_t offset, std::size_t bytes) {
    std::fill_n(page + offset, bytes, kPoison);
  };
  switch (layout) {
  case IndexPageLayout::block_flat:
    fill(token * 128, 128);
    fill(page_size * 128 + token * 4, 4);
    break;
  case IndexPageLayout::mfma_preshuffle:
    for (std::int64_t tile = 0; tile < 8; ++tile)
      fill(token / 16 * 2048 + tile * 256 + token % 16 * 16, 16);
    fill(page_size * 128 + token * 4, 4);
    break;
  case IndexPageLayout::flat:
    fill(token * 64, 64);
    fill(page_size * 64 + token * 4, 4);
    break;
  case IndexPageLayout::preshuffle64:
    for (std::int64_t chunk = 0; chunk < 4; ++chunk)
      fill(chunk * page_size * 16 + token * 16, 16);
    for (std::int64_t group = 0; group < 4; ++group)
      fill(page_size * 64 + group * page_size + token % 16 * (page_size / 16) + token / 16, 1);
    break;
  }
}

std::int64_t record_bytes(IndexPageLayout layout) {
  const bool fp8 =
      layout == IndexPageLayout::block_flat || layout == IndexPageLayout::mfma_preshuffle;
  return fp8 ? 132 : 68;
}

/// The first output tensor that is `output`, nullptr without one.
const DraftTensor* find_output(const Draft& draft, const OperationId& id, std::string_view output) {
  for (const TensorInfo& info : draft.tensors(id, Side::outputs))
    if (info.output() == output) return draft.find(info.object);
  return nullptr;
}

const DraftTensor* find_input(const Draft& draft, const OperationId& id, std::string_view name) {
  return draft.find(object_path(id, Side::inputs, name));
}

Attributes reconstructed(const DraftTensor& output) {
  Attributes attributes = {{"reconstructed", "1"}};
  if (const auto offset = output.info.attributes.find("page_offset");
      offset != output.info.attributes.end())
    attributes.insert(*offset);
  return attributes;
}

/// `cache` as input: the output, with `poison` applied to page and token of every slot in the pool.
/// Tensors of another form are left to the checks that follow.
template <class Poison>
Status poison_slots(Draft& draft, const OperationId& id, std::string_view cache,
                    std::int64_t page_size, const Poison& poison) {
  const DraftTensor* output = find_output(draft, id, cache);
  const DraftTensor* slots = find_input(draft, id, "slot_mapping");
  if (!output || !slots || output->info.shape.empty()) return {};
  auto content = draft.read(*output);
  if (!content) return content.status();
  auto slot_mapping = draft.read(*slots);
  if (!slot_mapping) return slot_mapping.status();
  const std::int64_t pages = content->shape[0];
  const std::int64_t page_stride =
      static_cast<std::int64_t>(content->bytes.size()) / std::max<std::int64_t>(pages, 1);
  const std::int64_t tokens = slot_mapping->dtype == Dtype::int64 ? slot_mapping->elements() : 0;
  for (std::int64_t t = 0; t < tokens; ++t)
    if (const std::int64_t slot = slot_mapping->as<std::int64_t>()[t];
        slot >= 0 && slot < pages * page_size)
      poison(content->bytes.data() + slot / page_size * page_stride, page_stride, slot % page_size);
  draft.add(id, Side::inputs, cache, std::move(*content), reconstructed(*output));
  return {};
}

Status reconstruct_index_cache(Draft& draft, const OperationId& id) {
  if (find_input(draft, id, "index_cache")) return {};
  const ContractValues contract = draft.contract_of(id.step);
  const auto parsed_layout = parse_index_page_layout(contract);
  const auto parsed_size = parse_page_size(contract);
  if (!parsed_layout || !parsed_size) return {}; // the checks name the key
  const DraftTensor* output = find_output(draft, id, "index_cache");
  const std::string offset_text = output && output->info.attributes.count("page_offset")
                                      ? output->info.attributes.at("page_offset")
                                      : "0";
  const std::int64_t offset = std::strtoll(offset_text.c_str(), nullptr, 10);
  const IndexPageLayout layout = *parsed_layout;
  const std::int64_t page_size = *parsed_size;
  const std::int64_t page_bytes = page_size * record_bytes(layout);
  if (layout == IndexPageLayout::mfma_preshuffle && page_size % 16 != 0)
    return bad_input(draft.file().path() + ": contract key page_size: found " +
                     std::to_string(page_size) + ", want a multiple of 16 for mfma_preshuffle");
  if (layout == IndexPageLayout::preshuffle64 && page_size != 64)
    return bad_input(draft.file().path() + ": contract key page_size: found " +
                     std::to_string(page_size) + ", want 64 for preshuffle64");
  return poison_slots(draft, id, "index_cache", page_size,
                      [&](std::byte* page, std::int64_t stride, std::int64_t token) {
                        if (offset >= 0 && offset <= stride && page_bytes <= stride - offset)
                          poison_record(layout, page_size, token, page + offset);
                      });
}

Status reconstruct_mla_cache(Draft& draft, const OperationId& id) {
  const DraftTensor* output = find_output(draft, id, "mla_cache");
  if (!output || find_input(draft, id, "mla_cache") || output->info.shape.size() != 3) return {};
  const std::int64_t page_size = output->info.shape[1];
  return poison_slots(draft, id, "mla_cache", page_size,
                      [&](std::byte* page, std::int64_t stride, std::int64_t token) {
                        const std::int64_t record = stride / page_size;
                        std::fill_n(page + token * record, record, kPoison);
                      });
}

/// Rows that are written are poisoned; a row that reads a bad page keeps its key bytes, since some
/// producers leave them (spec 2.6), but not its scale, which all set to 0.
Status reconstruct_gathered(Draft& draft, const OperationId& id) {
  const std::string_view codes = find_output(draft, id, "k_packed") ? "k_packed" : "k_fp8";
  if (find_input(draft, id, codes) || find_input(draft, id, "k_scale")) return {};
  const auto page_size = parse_page_size(draft.contract_of(id.step));
  const DraftTensor* const needed[] = {
      find_output(draft, id, codes), find_output(draft, id, "k_scale"),
      find_input(draft, id, "block_table"), find_input(draft, id, "cu_seq_lens"),
      find_input(draft, id, "index_cache")};
  if (!page_size || std::count(std::begin(needed), std::end(needed), nullptr)) return {};
  const auto& [key, scale, table, bounds, cache] = needed;
  const Shape& table_shape = table->info.shape;
  if (key->info.shape.size() != 2) return {};
  const std::int64_t rows = key->info.shape[0];
  const bool fp8 = codes == "k_fp8";
  if (scale->info.shape != (fp8 ? Shape{rows} : Shape{rows, 4}) ||
      scale->info.dtype != (fp8 ? Dtype::float32 : Dtype::float8_e8m0fnu) ||
      table->info.dtype != Dtype::int32 || table_shape.size() != 2 ||
      bounds->info.dtype != Dtype::int32 || bounds->info.shape != Shape{table_shape[0] + 1} ||
      cache->info.shape.empty())
    return {};

  Tensor row_request;
  if (const DraftTensor* given = find_input(draft, id, "row_request")) {
    if (given->info.dtype != Dtype::int32 || given->info.shape != Shape{rows}) return {};
    auto read = draft.read(*given);
    if (!read) return read.status();
    row_request = std::move(*read);
  }
  auto k_codes = draft.read(*key);
  auto k_scale = draft.read(*scale);
  auto block_table = draft.read(*table);
  auto cu_seq_lens = draft.read(*bounds);
  for (const auto* tensor : {&k_codes, &k_scale, &block_table, &cu_seq_lens})
    if (!*tensor) return tensor->status();

  const std::int64_t columns = table_shape[1];
  const auto width = static_cast<std::size_t>(k_codes->shape[1]) * size_of(k_codes->dtype);
  const auto of_row = gather_requests(int32s(*cu_seq_lens), int32s(row_request), rows);
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t b = of_row[static_cast<std::size_t>(j)];
    if (b < 0) continue;
    const std::int64_t column = (j - cu_seq_lens->as<std::int32_t>()[b]) / *page_size;
    const std::int64_t page =
        column < columns ? block_table->as<std::int32_t>()[b * columns + column] : -1;
    if (page >= 0 && page < cache->info.shape[0])
      std::fill_n(k_codes->bytes.begin() + j * static_cast<std::int64_t>(width), width,
                  kPoisonedKey);
    if (fp8)
      k_scale->as<float>()[j] = kPoisonedScale;
    else
      std::fill_n(k_scale->as<std::uint8_t>() + j * 4, 4, kPoisonedExponent);
  }
  const Attributes key_attributes = reconstructed(*key);
  const Attributes scale_attributes = reconstructed(*scale);
  draft.add(id, Side::inputs, codes, std::move(*k_codes), key_attributes);
  draft.add(id, Side::inputs, "k_scale", std::move(*k_scale), scale_attributes);
  return {};
}

/// Rows of [B, next_n] are flattened in order: row r belongs to request r / next_n.
void derive_row_request(Draft& draft, const OperationId& id) {
  const DraftTensor* row_lens = find_input(draft, id, "row_lens");
  const DraftTensor* table = find_input(draft, id, "block_table");
  if (find_input(draft, id, "row_request") || !row_lens || !table ||
      row_lens->info.shape.size() != 1 || table->info.shape.empty())
    return;
  const std::int64_t rows = row_lens->info.shape[0], requests = table->info.shape[0];
  if (requests == 0 || rows == 0 || rows % requests != 0) return;
  Tensor row_request(Dtype::int32, {rows});
  for (std::int64_t r = 0; r < rows; ++r)
    row_request.as<std::int32_t>()[r] = static_cast<std::int32_t>(r / (rows / requests));
  draft.add(id, Side::inputs, "row_request", std::move(row_request));
}

/// PyTorch users often keep fp8, packed fp4 and e8m0 as uint8.
void name_codes(Draft& draft, const OperationId& id) {
  const auto inputs = draft.tensors(id, Side::inputs);
  const auto outputs = draft.tensors(id, Side::outputs);
  const ContractValues contract = draft.contract_of(id.step);
  const Operation* operation = find_recorded(id.operation, contract, inputs, outputs);
  const bool mxfp4 = operation && operation->format == "mxfp4";
  const auto encoding = contract.find("index_fp8_encoding");
  for (const auto* side : {&inputs, &outputs})
    for (const TensorInfo& info : *side) {
      if (info.dtype != Dtype::uint8) continue;
      const std::string output = info.output();
      Dtype& dtype = draft.find(info.object)->info.dtype;
      if (mxfp4 && (output == "k_packed" || output == "index_q_packed"))
        dtype = Dtype::float4_e2m1fn_x2;
      if (mxfp4 && (output == "k_scale" || output == "index_q_scale"))
        dtype = Dtype::float8_e8m0fnu;
      if (encoding != contract.end() && (output == "k_fp8" || output == "index_q_fp8"))
        dtype = encoding->second == "e4m3fnuz" ? Dtype::float8_e4m3fnuz : Dtype::float8_e4m3fn;
    }
}

} // namespace

Status complete(Draft& draft) {
  for (const OperationId& id : draft.operations()) {
    name_codes(draft, id);
    if (id.operation == "index_cache_write") DSAKIT_TRY(reconstruct_index_cache(draft, id));
    if (id.operation == "mla_cache_write") DSAKIT_TRY(reconstruct_mla_cache(draft, id));
    if (id.operation == "index_cache_gather") DSAKIT_TRY(reconstruct_gathered(draft, id));
    if (id.operation == "index_logits_decode") derive_row_request(draft, id);
  }
  return {};
}

} // namespace dsakit::harness
