// Problems of the indexer, from queries and keys to logits.
#include <algorithm>

#include "index_rows.hpp"
#include "problems.hpp"

namespace dsakit::testing {
namespace {

using tiny::draw;
using tiny::tensor;

struct Codes {
  Fp8Encoding encoding;
  Dtype dtype;
};

Codes draw_codes(TinyRecording& r, Draw& d) {
  const bool fn = d.one_in(2);
  r.contract["index_fp8_encoding"] = fn ? "e4m3fn" : "e4m3fnuz";
  r.contract["qmax"] = fn ? d.any({"448", "240", "224"}) : d.any({"240", "224"});
  return fn ? Codes{Fp8Encoding::e4m3fn, Dtype::float8_e4m3fn}
            : Codes{Fp8Encoding::e4m3fnuz, Dtype::float8_e4m3fnuz};
}

/// An index cache [pages, row_bytes], each page `offset` bytes into its row.
struct Pages {
  std::int64_t page_size;
  std::int64_t row_bytes;
  std::int64_t offset;

  harness::RecordedTensor recorded(std::int64_t pages,
                                   const std::vector<std::uint8_t>& bytes) const {
    auto cache = tensor(Dtype::uint8, {pages, row_bytes}, bytes);
    if (offset > 0) cache.attributes["page_offset"] = std::to_string(offset);
    return cache;
  }
  /// Records of finite codes and power-of-two scales; what no token owns is any byte. The scales
  /// lie behind the codes in every layout.
  harness::RecordedTensor records(std::int64_t pages, Fp8Encoding encoding, Draw& d) const {
    auto bytes = draw<std::uint8_t>(pages * row_bytes, [&] { return d.byte(); });
    for (std::int64_t page = 0; page < pages; ++page) {
      std::uint8_t* base = bytes.data() + page * row_bytes + offset;
      std::generate_n(base, page_size * 128, [&] { return d.code(encoding); });
      for (std::int64_t token = 0; token < page_size; ++token) {
        const float scale = d.power_of_two();
        std::memcpy(base + page_size * 128 + 4 * token, &scale, sizeof scale);
      }
    }
    return recorded(pages, bytes);
  }
};

Pages draw_pages(TinyRecording& r, Draw& d) {
  const std::int64_t page_size = d.any<std::int64_t>({1, 5, 16, 48, 64, 128});
  r.contract["page_size"] = std::to_string(page_size);
  r.contract["index_page_layout"] =
      page_size % 16 == 0 && d.one_in(2) ? "mfma_preshuffle" : "block_flat";
  const std::int64_t before = d.one_in(3) ? 16 * d.below(9) : 0;
  const std::int64_t after = d.one_in(3) ? 16 * d.below(9) : 0;
  return {page_size, before + page_size * 132 + after, before};
}

/// Queries, folded weights, and the logits that they give.
void draw_scoring(harness::RecordedOperation& op, std::int64_t rows, std::int64_t columns,
                  const Codes& codes, Draw& d) {
  const std::int64_t heads = draw_heads(d);
  op.inputs["index_q_fp8"] =
      tensor(codes.dtype, {rows, heads, 128},
             draw<std::uint8_t>(rows * heads * 128, [&] { return d.code(codes.encoding); }));
  op.inputs["index_weights_folded"] =
      tensor(Dtype::float32, {rows, heads}, draw<float>(rows * heads, [&] { return d.value(); }));
  op.outputs["logits"] = to_fill(Dtype::float32, {rows, columns});
  op.outputs["logits"].attributes["accumulation"] = d.any({"exact", "fp32", "sm90_wgmma_fp8"});
}

} // namespace

void draw_index_query_quant(TinyRecording& r, Draw& d) {
  const Codes codes = draw_codes(r, d);
  r.contract["activation_dtype"] = "bf16";
  r.contract["scale_kind"] = "ue8m0";
  r.contract["index_q_floor"] = d.any({"1e-10", "1e-4", "6.1e-36"});
  const std::int64_t rows = d.count(12), heads = draw_heads(d);
  auto& op = r.operations["index_query_quant"];
  op.inputs["index_q"] = bf16_tensor({rows, heads, 128}, [&] { return d.any_value(); });
  op.outputs["index_q_fp8"] = to_fill(codes.dtype, {rows, heads, 128});
  op.outputs["index_q_scale"] = to_fill(Dtype::float32, {rows, heads});
}

void draw_index_weights_fold(TinyRecording& r, Draw& d) {
  r.contract["activation_dtype"] = "bf16";
  r.contract["weight_fold"] = d.any({"bf16_intermediate", "fp32"});
  const std::int64_t rows = d.count(40), heads = draw_heads(d);
  auto& op = r.operations["index_weights_fold"];
  op.inputs["index_weights"] = bf16_tensor({rows, heads}, [&] { return d.any_value(); });
  op.inputs["index_q_scale"] = tensor(Dtype::float32, {rows, heads},
                                      draw<float>(rows * heads, [&] { return d.power_of_two(); }));
  op.outputs["index_weights_folded"] = to_fill(Dtype::float32, {rows, heads});
}

void draw_index_key_norm(TinyRecording& r, Draw& d) {
  const bool layernorm = d.one_in(2);
  r.contract["activation_dtype"] = "bf16";
  r.contract["index_k_norm"] = layernorm ? "layernorm" : "rmsnorm";
  r.contract["rmsnorm_rounding"] = d.any({"one", "two"});
  r.config["rms_norm_eps"] = d.any({"1e-5", "1e-6"});
  const std::int64_t tokens = d.count(70);
  const bool wide = d.one_in(2); // parameters in fp32
  const auto parameter = [&](float mean) {
    const auto value = [&] { return mean + 0.1F * d.value(); };
    return wide ? tensor(Dtype::float32, {128}, draw<float>(128, value))
                : bf16_tensor({128}, value);
  };
  auto& op = r.operations["index_key_norm"];
  op.inputs["index_k_raw"] = bf16_tensor({tokens, 128}, [&] {
    return d.extreme() && d.one_in(1000) ? std::numeric_limits<float>::quiet_NaN() : d.value();
  });
  op.inputs["norm_weight"] = parameter(1);
  if (layernorm) op.inputs["norm_bias"] = parameter(0);
  op.outputs["index_k"] = to_fill(Dtype::bfloat16, {tokens, 128});
}

void draw_index_cache_write(TinyRecording& r, Draw& d) {
  draw_codes(r, d);
  r.contract["activation_dtype"] = "bf16";
  r.contract["scale_kind"] = "ue8m0";
  r.contract["index_k_floor"] = d.any({"1e-4", "1e-10"});
  const Pages pages = draw_pages(r, d);
  const std::int64_t count = d.between(1, 4), pool = count * pages.page_size;
  const std::int64_t tokens = d.count(std::min<std::int64_t>(pool, 70));
  auto& op = r.operations["index_cache_write"];
  op.inputs["index_k"] = bf16_tensor({tokens + d.below(3), 128}, [&] { return d.any_value(); });
  op.inputs["slot_mapping"] = slot_mapping(tokens, pool, d);
  op.inputs["index_cache"] =
      pages.recorded(count, draw<std::uint8_t>(count * pages.row_bytes, [&] { return d.byte(); }));
  op.outputs["index_cache"] = op.inputs["index_cache"];
}

void draw_index_cache_gather(TinyRecording& r, Draw& d) {
  const Codes codes = draw_codes(r, d);
  const Pages pages = draw_pages(r, d);
  constexpr std::int64_t kPages = 5;
  auto& op = r.operations["index_cache_gather"];
  const std::int64_t rows = draw_gathered_rows(op, pages.page_size, kPages, d);
  op.inputs["index_cache"] = pages.records(kPages, codes.encoding, d);
  if (d.one_in(2)) {
    op.inputs["k_fp8"] = bytes_tensor({rows, 128}, d);
    op.inputs["k_fp8"].tensor.dtype = codes.dtype;
    op.inputs["k_scale"] =
        tensor(Dtype::float32, {rows}, draw<float>(rows, [&] { return d.value(); }));
  }
  op.outputs["k_fp8"] = to_fill(codes.dtype, {rows, 128});
  op.outputs["k_scale"] = to_fill(Dtype::float32, {rows});
}

void draw_index_logits_prefill(TinyRecording& r, Draw& d) {
  const Codes codes = draw_codes(r, d);
  const std::int64_t rows = d.count(20), keys = d.count(90);
  auto& op = r.operations["index_logits_prefill"];
  draw_scoring(op, rows, draw_windows(op, rows, keys, d), codes, d);
  op.inputs["k_fp8"] =
      tensor(codes.dtype, {keys, 128},
             draw<std::uint8_t>(keys * 128, [&] { return d.code(codes.encoding); }));
  op.inputs["k_scale"] =
      tensor(Dtype::float32, {keys}, draw<float>(keys, [&] { return d.power_of_two(); }));
}

void draw_index_logits_decode(TinyRecording& r, Draw& d) {
  const Codes codes = draw_codes(r, d);
  const Pages pages = draw_pages(r, d);
  auto& op = r.operations["index_logits_decode"];
  const DecodeShape shape = draw_decode_rows(op, pages.page_size, d);
  draw_scoring(op, shape.rows, shape.columns, codes, d);
  op.inputs["index_cache"] = pages.records(shape.pages, codes.encoding, d);
}

} // namespace dsakit::testing
