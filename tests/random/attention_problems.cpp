// Problems of the selection and of the attention over it.
#include <algorithm>

#include "problems.hpp"

namespace dsakit::testing {
namespace {

using tiny::draw;
using tiny::tensor;

Fp8Encoding draw_mla(TinyRecording& r, Draw& d) {
  const bool fn = d.one_in(2);
  r.contract["mla_fp8_encoding"] = fn ? "e4m3fn" : "e4m3fnuz";
  r.contract["qmax"] = fn ? d.any({"448", "240", "224"}) : d.any({"240", "224"});
  r.contract["mla_record"] = "fp8_ds_mla";
  return fn ? Fp8Encoding::e4m3fn : Fp8Encoding::e4m3fnuz;
}

std::int64_t draw_page_size(TinyRecording& r, Draw& d) {
  const std::int64_t page_size = d.any<std::int64_t>({1, 3, 16, 64});
  r.contract["page_size"] = std::to_string(page_size);
  return page_size;
}

/// Beyond a row's end lies the largest number: who reads it, takes it.
float draw_logit(Draw& d) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (d.extreme() && d.one_in(4))
    return d.any({kNan, -kNan, kInf, -kInf, std::numeric_limits<float>::max(), 0x1p-149F});
  return d.value();
}

harness::RecordedTensor draw_slots(std::int64_t rows, std::int64_t k, std::int64_t pool, Draw& d) {
  std::vector<std::int32_t> slots;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t holes = d.any<std::int64_t>({1, 2, 9, 1000}); // one in so many; 1: all
    for (std::int64_t i = 0; i < k; ++i)
      slots.push_back(d.one_in(holes) ? -1 : static_cast<std::int32_t>(d.below(pool)));
  }
  return tensor(Dtype::int32, {rows, k}, slots);
}

} // namespace

void draw_topk(TinyRecording& r, Draw& d) {
  // A producer with an order and ties of its own: any valid set, in any order.
  const bool open = d.one_in(4);
  const std::int64_t world = d.one_in(2) ? d.any<std::int64_t>({1, 2, 3, 8}) : 0; // 0: no ranks
  if (world) {
    r.contract["dcp_world"] = std::to_string(world);
    r.contract["dcp_interleave"] = d.any({"1", "3", "16", "64"});
  }
  r.contract["tie_rule"] = open ? "unspecified" : "smaller_index";
  r.contract["topk_order"] = open ? "unspecified" : d.any({"rank", "ascending"});
  const std::int64_t rows = d.count(6), columns = d.one_in(8) ? 3000 : d.between(1, 300);
  const std::int64_t k = d.one_in(8) ? 2048 : d.between(1, 100);
  std::vector<float> logits;
  std::vector<std::int32_t> row_lens;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t length = d.one_in(12) ? -1 : d.one_in(3) ? columns : d.below(columns + 1);
    row_lens.push_back(static_cast<std::int32_t>(length));
    for (std::int64_t i = 0; i < columns; ++i)
      logits.push_back(i < length ? draw_logit(d) : std::numeric_limits<float>::max());
  }
  auto& op = r.operations["topk"];
  op.inputs["logits"] = tensor(Dtype::float32, {rows, columns}, logits);
  op.inputs["row_lens"] = tensor(Dtype::int32, {rows}, row_lens);
  auto& indices = op.outputs[open ? "topk_indices.other" : "topk_indices"];
  indices = to_fill(Dtype::int32, {rows, k});
  if (world) indices.attributes["dcp_rank"] = std::to_string(d.below(world));
  if (open)
    indices.attributes["output"] = "topk_indices";
  else if (d.one_in(2))
    op.outputs["dcp_scores"] = to_fill(Dtype::float32, {rows, k});
}

void draw_mla_cache_write(TinyRecording& r, Draw& d) {
  draw_mla(r, d);
  r.contract["activation_dtype"] = "bf16";
  const std::int64_t page_size = draw_page_size(r, d);
  const std::int64_t pages = d.between(1, 3), pool = pages * page_size;
  const std::int64_t tokens = d.count(std::min<std::int64_t>(pool, 40));
  const std::int64_t keys = tokens + d.below(3);
  auto& op = r.operations["mla_cache_write"];
  op.inputs["kv_c"] = bf16_tensor({keys, 512}, [&] { return d.any_value(); });
  op.inputs["k_pe"] = bf16_tensor({keys, 64}, [&] { return d.any_value(); });
  op.inputs["slot_mapping"] = slot_mapping(tokens, pool, d);
  op.inputs["mla_cache"] = bytes_tensor({pages, page_size, 656}, d);
  op.outputs["mla_cache"] = op.inputs["mla_cache"];
}

void draw_topk_slots(TinyRecording& r, Draw& d) {
  const std::int64_t page_size = draw_page_size(r, d);
  const std::int64_t requests = d.between(1, 4), columns = d.between(1, 5);
  const std::int64_t rows = d.count(12), k = d.between(1, 300), pages = 23;
  const bool sharded = d.one_in(2);
  const std::int64_t world = sharded ? d.any<std::int64_t>({1, 2, 3, 8, 64}) : 1;
  if (sharded) {
    r.contract["dcp_world"] = std::to_string(world);
    r.contract["dcp_interleave"] = d.any({"1", "3", "16", "64"});
  }
  const bool judged = d.one_in(2); // with row_lens; without it anything may stand in the indices
  std::vector<std::int32_t> indices, row_request, row_lens;
  for (std::int64_t row = 0; row < rows; ++row) {
    row_request.push_back(
        static_cast<std::int32_t>(judged ? d.below(requests) : d.between(-1, requests)));
    row_lens.push_back(static_cast<std::int32_t>(d.below(columns * page_size + 1)));
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t length = row_lens.back();
      const std::int64_t position = judged ? (length == 0 || d.one_in(9) ? -1 : d.below(length))
                                           : d.between(-2, (columns + 1) * page_size * world);
      indices.push_back(static_cast<std::int32_t>(position));
    }
  }
  auto& op = r.operations["topk_slots"];
  op.inputs["topk_indices"] = tensor(Dtype::int32, {rows, k}, indices);
  op.inputs["block_table"] =
      tensor(Dtype::int32, {requests, columns}, page_table(requests * columns, pages, 8, d));
  op.inputs["row_request"] = tensor(Dtype::int32, {rows}, row_request);
  if (judged) op.inputs["row_lens"] = tensor(Dtype::int32, {rows}, row_lens);
  op.outputs["slots"] = to_fill(Dtype::int32, {rows, k});
  if (d.one_in(3))
    op.outputs["slots"].attributes["block_stride"] = std::to_string(page_size + d.below(100));
  if (sharded) op.outputs["slots"].attributes["dcp_rank"] = std::to_string(d.below(world));
  if (d.one_in(2)) op.outputs["compact_slots"] = to_fill(Dtype::int32, {rows, k});
  if (d.one_in(2)) op.outputs["counts"] = to_fill(Dtype::int32, {rows});
}

void draw_sparse_attention(TinyRecording& r, Draw& d) {
  const Fp8Encoding encoding = draw_mla(r, d);
  const std::int64_t page_size = draw_page_size(r, d);
  r.contract["lse_base"] = d.any({"e", "2"});
  r.config["softmax_scale"] = d.any({"0.07216878364870322", "0.0416666667", "0.5"});
  const std::int64_t pages = d.between(1, 6), pool = pages * page_size;
  const std::int64_t rows = d.count(4),
                     heads = d.any<std::int64_t>({1, 2, 3, 8, 16, 17, 33, 96, 128});
  const std::int64_t k = d.one_in(20) ? 1100 : d.between(1, 90); // 1100: two splits
  std::vector<std::uint8_t> cache;
  for (std::int64_t slot = 0; slot < pool; ++slot) {
    const auto codes = draw<std::uint8_t>(512, [&] { return d.code(encoding); });
    const auto scales = draw<float>(4, [&] { return 0.01F * (1 + std::abs(d.value())); });
    const auto pe = bf16_tensor({64}, [&] { return d.value(); });
    const auto append = [&](const void* bytes, std::size_t size) {
      const auto* first = static_cast<const std::uint8_t*>(bytes);
      cache.insert(cache.end(), first, first + size);
    };
    append(codes.data(), 512);
    append(scales.data(), 16);
    append(pe.tensor.bytes.data(), 128);
  }
  auto& op = r.operations["sparse_attention"];
  op.inputs["mla_query"] = bf16_tensor({rows, heads, 576}, [&] { return d.value(); });
  op.inputs["mla_cache"] = tensor(Dtype::uint8, {pages, page_size, 656}, cache);
  op.inputs["slots"] = draw_slots(rows, k, pool, d);
  auto latent = to_fill(Dtype::bfloat16, {rows, heads, 512});
  latent.attributes = {{"accumulation", d.any({"exact", "fp32"})},
                       {"mla_scale_read", d.any({"fp32", "bf16"})}};
  auto lse = to_fill(Dtype::float32, {rows, heads});
  lse.attributes = latent.attributes;
  op.outputs = {{"latent", latent}, {"lse", lse}};
}

void draw_sparse_attention_dense(TinyRecording& r, Draw& d) {
  r.contract["mla_record"] = "bf16_576";
  r.config["softmax_scale"] = d.any({"0.07216878364870322", "0.0416666667", "0.5"});
  const std::int64_t cached = d.between(1, 100), rows = d.count(4);
  const std::int64_t heads = d.any<std::int64_t>({1, 3, 16}), k = d.between(1, 90);
  auto& op = r.operations["sparse_attention"];
  op.inputs["mla_query"] = bf16_tensor({rows, heads, 576}, [&] { return d.value(); });
  op.inputs["mla_cache"] = bf16_tensor({cached, 576}, [&] { return d.value(); });
  op.inputs["slots"] = draw_slots(rows, k, cached, d);
  op.outputs["latent"] = to_fill(Dtype::bfloat16, {rows, heads, 512});
  op.outputs["latent"].attributes["accumulation"] = d.any({"exact", "fp32"});
}

void draw_dcp_topk_merge(TinyRecording& r, Draw& d) {
  r.contract["topk_order"] = d.any({"rank", "ascending"});
  const std::int64_t ranks = d.any<std::int64_t>({1, 2, 3, 8}), rows = d.count(5);
  const std::int64_t k = d.one_in(8) ? 1000 : d.between(1, 90);
  const std::int64_t padding = d.any<std::int64_t>({0, 9, 2}); // one in so many; 0: none
  std::vector<float> scores(static_cast<std::size_t>(ranks * rows * k));
  std::vector<std::int32_t> indices(scores.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto positions = d.permutation(ranks * k);
    for (std::int64_t i = 0; i < ranks * k; ++i) {
      const auto at = static_cast<std::size_t>((i / k * rows + row) * k + i % k);
      scores[at] = draw_logit(d);
      indices[at] = padding && d.one_in(padding)
                        ? -1
                        : static_cast<std::int32_t>(positions[static_cast<std::size_t>(i)]);
    }
  }
  auto& op = r.operations["dcp_topk_merge"];
  op.inputs["rank_scores"] = tensor(Dtype::float32, {ranks, rows, k}, scores);
  op.inputs["rank_indices"] = tensor(Dtype::int32, {ranks, rows, k}, indices);
  op.outputs["topk_indices"] = to_fill(Dtype::int32, {rows, k});
}

void draw_dcp_attention_merge(TinyRecording& r, Draw& d) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  r.contract["lse_base"] = d.any({"e", "2"});
  const std::int64_t ranks = d.any<std::int64_t>({1, 2, 4, 8, 64}), rows = d.count(4);
  const std::int64_t heads = d.between(1, 5), dim = d.any<std::int64_t>({1, 64, 300, 512});
  std::vector<float> lses, values;
  for (std::int64_t i = 0; i < ranks * rows * heads; ++i) {
    const bool no_key = d.one_in(4); // and then anything may stand in the latent
    lses.push_back(no_key ? d.any({-kInf, kInf, kNan}) : 4 * d.value());
    for (std::int64_t j = 0; j < dim; ++j)
      values.push_back(no_key ? d.any({kNan, kInf, 1.0F}) : d.value());
  }
  const Shape shape = {ranks, rows, heads, dim};
  const bool wide = d.one_in(2);
  auto& op = r.operations["dcp_attention_merge"];
  std::size_t next = 0;
  op.inputs["rank_latent"] = wide ? tensor(Dtype::float32, shape, values)
                                  : bf16_tensor(shape, [&] { return values[next++]; });
  op.inputs["rank_lse"] = tensor(Dtype::float32, {ranks, rows, heads}, lses);
  auto lse = to_fill(Dtype::float32, {rows, heads});
  lse.attributes["accumulation"] = d.any({"exact", "fp32"});
  op.outputs["lse"] = lse;
  if (d.one_in(2)) {
    op.outputs["latent"] = to_fill(Dtype::bfloat16, {rows, heads, dim});
    op.outputs["latent"].attributes = lse.attributes;
  }
  if (d.one_in(2)) {
    op.outputs["corrected"] = to_fill(op.inputs["rank_latent"].tensor.dtype, shape);
    op.outputs["corrected"].attributes = lse.attributes;
  }
}

} // namespace dsakit::testing
