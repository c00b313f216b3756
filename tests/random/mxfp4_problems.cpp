// Problems of the MXFP4 indexer.
#include <algorithm>

#include "index_rows.hpp"
#include "problems.hpp"

namespace dsakit::testing {
namespace {

using tiny::draw;
using tiny::tensor;

/// An index cache [pages, row_bytes], each page `offset` bytes into its row. Scales lie behind the
/// codes in both layouts.
struct Mxfp4Pages {
  std::int64_t page_size;
  std::int64_t row_bytes;
  std::int64_t offset;
};

Mxfp4Pages draw_mxfp4_pages(TinyRecording& r, Draw& d) {
  const std::int64_t page_size = d.any<std::int64_t>({1, 5, 16, 64, 64, 128});
  r.contract["page_size"] = std::to_string(page_size);
  r.contract["index_page_layout"] = page_size == 64 && d.one_in(2) ? "preshuffle64" : "flat";
  const std::int64_t before = d.one_in(3) ? 16 * d.below(9) : 0;
  const std::int64_t after = d.one_in(3) ? 16 * d.below(9) : 0;
  return {page_size, before + page_size * 68 + after, before};
}

void draw_quant(TinyRecording& r, Draw& d) {
  r.contract["activation_dtype"] = "bf16";
  r.contract["hadamard"] = d.any({"none", "query_and_key"});
}

/// e8m0; among extreme numbers rarely NaN.
std::uint8_t draw_scale(Draw& d) {
  if (d.extreme() && d.one_in(60)) return 0xFF;
  return static_cast<std::uint8_t>(127 + (d.extreme() ? d.between(-20, 20) : d.between(-6, 2)));
}

harness::RecordedTensor draw_packed(Shape shape, Draw& d) {
  auto packed = bytes_tensor(std::move(shape), d);
  packed.tensor.dtype = Dtype::float4_e2m1fn_x2;
  return packed;
}

harness::RecordedTensor draw_scales(Shape shape, Draw& d) {
  return tensor(Dtype::float8_e8m0fnu, shape,
                draw<std::uint8_t>(element_count(shape), [&] { return draw_scale(d); }));
}

harness::RecordedTensor draw_cache(const Mxfp4Pages& pages, std::int64_t count, Draw& d) {
  auto cache = bytes_tensor({count, pages.row_bytes}, d);
  for (std::int64_t page = 0; page < count; ++page)
    std::generate_n(cache.tensor.as<std::uint8_t>() + page * pages.row_bytes + pages.offset +
                        pages.page_size * 64,
                    pages.page_size * 4, [&] { return draw_scale(d); });
  if (pages.offset > 0) cache.attributes["page_offset"] = std::to_string(pages.offset);
  return cache;
}

/// Queries, weights, and the logits that they give.
void draw_scoring(TinyRecording& r, harness::RecordedOperation& op, std::int64_t rows,
                  std::int64_t columns, Draw& d) {
  r.contract["activation_dtype"] = "bf16";
  const std::int64_t heads = draw_heads(d);
  op.inputs["index_q_packed"] = draw_packed({rows, heads, 64}, d);
  op.inputs["index_q_scale"] = draw_scales({rows, heads, 4}, d);
  op.inputs["index_weights"] = bf16_tensor({rows, heads}, [&] { return d.value(); });
  op.outputs["logits"] = to_fill(Dtype::float32, {rows, columns});
  op.outputs["logits"].attributes["accumulation"] = d.any({"exact", "fp32"});
}

} // namespace

void draw_index_query_quant_mxfp4(TinyRecording& r, Draw& d) {
  draw_quant(r, d);
  const std::int64_t rows = d.count(12), heads = draw_heads(d);
  auto& op = r.operations["index_query_quant"];
  op.inputs["index_q"] = bf16_tensor({rows, heads, 128}, [&] { return d.any_value(); });
  op.outputs["index_q_packed"] = to_fill(Dtype::float4_e2m1fn_x2, {rows, heads, 64});
  op.outputs["index_q_scale"] = to_fill(Dtype::float8_e8m0fnu, {rows, heads, 4});
}

void draw_index_cache_write_mxfp4(TinyRecording& r, Draw& d) {
  draw_quant(r, d);
  const Mxfp4Pages pages = draw_mxfp4_pages(r, d);
  const std::int64_t count = d.between(1, 4), pool = count * pages.page_size;
  const std::int64_t tokens = d.count(std::min<std::int64_t>(pool, 70));
  auto& op = r.operations["index_cache_write"];
  op.inputs["index_k"] = bf16_tensor({tokens + d.below(3), 128}, [&] { return d.any_value(); });
  op.inputs["slot_mapping"] = slot_mapping(tokens, pool, d);
  op.inputs["index_cache"] = draw_cache(pages, count, d);
  op.outputs["index_cache"] = op.inputs["index_cache"];
}

void draw_index_cache_gather_mxfp4(TinyRecording& r, Draw& d) {
  const Mxfp4Pages pages = draw_mxfp4_pages(r, d);
  constexpr std::int64_t kPages = 5;
  auto& op = r.operations["index_cache_gather"];
  const std::int64_t rows = draw_gathered_rows(op, pages.page_size, kPages, d);
  op.inputs["index_cache"] = draw_cache(pages, kPages, d);
  if (d.one_in(2)) {
    op.inputs["k_packed"] = draw_packed({rows, 64}, d);
    op.inputs["k_scale"] = draw_scales({rows, 4}, d);
  }
  op.outputs["k_packed"] = to_fill(Dtype::float4_e2m1fn_x2, {rows, 64});
  op.outputs["k_scale"] = to_fill(Dtype::float8_e8m0fnu, {rows, 4});
}

void draw_index_logits_prefill_mxfp4(TinyRecording& r, Draw& d) {
  const std::int64_t rows = d.count(20), keys = d.count(90);
  auto& op = r.operations["index_logits_prefill"];
  draw_scoring(r, op, rows, draw_windows(op, rows, keys, d), d);
  op.inputs["k_packed"] = draw_packed({keys, 64}, d);
  op.inputs["k_scale"] = draw_scales({keys, 4}, d);
}

void draw_index_logits_decode_mxfp4(TinyRecording& r, Draw& d) {
  const Mxfp4Pages pages = draw_mxfp4_pages(r, d);
  auto& op = r.operations["index_logits_decode"];
  const DecodeShape shape = draw_decode_rows(op, pages.page_size, d);
  draw_scoring(r, op, shape.rows, shape.columns, d);
  op.inputs["index_cache"] = draw_cache(pages, shape.pages, d);
}

} // namespace dsakit::testing
