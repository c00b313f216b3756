#include "index_format.hpp"

#include <algorithm>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/index_query.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"

namespace dsakit::reference {
namespace {

/// The named rows of a tensor, zeros for -1.
Tensor take_rows(const Tensor& all, std::span<const std::int64_t> rows) {
  Shape shape = all.shape;
  shape[0] = std::ssize(rows);
  Tensor taken(all.dtype, shape);
  const std::int64_t bytes =
      all.shape[0] == 0 ? 0 : static_cast<std::int64_t>(all.bytes.size()) / all.shape[0];
  for (std::int64_t i = 0; i < std::ssize(rows); ++i)
    if (const std::int64_t row = rows[static_cast<std::size_t>(i)]; row >= 0)
      std::copy_n(all.bytes.begin() + row * bytes, bytes, taken.bytes.begin() + i * bytes);
  return taken;
}

std::int64_t keys_of(const RowsOfPrefill& rows) {
  return rows.cu_seq_lens.back();
}

class Fp8Format final : public IndexFormat {
public:
  explicit Fp8Format(const Fp8Indexer& contract) : contract_(contract) {}

  std::int64_t key_bytes() const override {
    return kIndexHeadDim + static_cast<std::int64_t>(sizeof(float));
  }

  Status check_pages(std::int64_t page_stride) const override {
    return check_index_pages(contract_.key.pages, page_stride);
  }

  Status write(const Tensor& index_k, std::span<const std::int64_t> slot_mapping,
               IndexCache<std::uint8_t> cache) const override {
    return index_cache_write(contract_.key, index_k.as<std::uint16_t>(), index_k.shape[0],
                             slot_mapping, cache);
  }

  Status quantise(const Tensor& index_q, const Tensor& index_weights,
                  const LayerSink& sink) override {
    const std::int64_t tokens = index_q.shape[0], heads = index_q.shape[1];
    const Dtype fp8 =
        encoding() == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn : Dtype::float8_e4m3fnuz;
    queries_ = Tensor(fp8, {tokens, heads, kIndexHeadDim});
    Tensor scales(Dtype::float32, {tokens, heads});
    DSAKIT_TRY(index_query_quant(contract_.query, index_q.as<std::uint16_t>(), tokens * heads,
                                 queries_.as<std::uint8_t>(), scales.as<float>()));
    weights_ = Tensor(Dtype::float32, {tokens, heads});
    DSAKIT_TRY(index_weights_fold(contract_.fold, contract_.query.activation_dtype,
                                  index_weights.as<std::uint16_t>(), scales.as<float>(), tokens,
                                  heads, weights_.as<float>()));
    DSAKIT_TRY(report(sink, "index_q_fp8", queries_));
    DSAKIT_TRY(report(sink, "index_q_scale", scales));
    return report(sink, "index_weights_folded", weights_);
  }

  Status score_decode(const IndexPool& pool, const RowsOfDecode& rows,
                      Tensor& logits) const override {
    const Tensor queries = take_rows(queries_, rows.rows);
    const Tensor weights = take_rows(weights_, rows.rows);
    return index_logits_decode<Simulated>(
        contract_.key.pages,
        {queries.as<std::uint8_t>(), weights.as<float>(), pool.cache, pool.block_table,
         rows.row_lens, rows.row_request, queries.shape[0], queries.shape[1], logits.shape[1]},
        logits.as<float>());
  }

  Status score_prefill(const IndexPool& pool, const RowsOfPrefill& rows,
                       Tensor& logits) const override {
    const std::int64_t keys = keys_of(rows);
    Tensor k(queries_.dtype, {keys, kIndexHeadDim}), k_scale(Dtype::float32, {keys});
    DSAKIT_TRY(index_cache_gather(contract_.key.pages, pool.cache, pool.block_table,
                                  rows.cu_seq_lens, {}, keys, k.as<std::uint8_t>(),
                                  k_scale.as<float>()));
    const Tensor queries = take_rows(queries_, rows.rows);
    const Tensor weights = take_rows(weights_, rows.rows);
    return index_logits_prefill<Simulated>({queries.as<std::uint8_t>(), weights.as<float>(),
                                            k.as<std::uint8_t>(), k_scale.as<float>(), rows.ks,
                                            rows.ke, rows.ks, queries.shape[0], queries.shape[1],
                                            keys, logits.shape[1], encoding()},
                                           logits.as<float>());
  }

private:
  Fp8Encoding encoding() const { return contract_.key.pages.value.index_fp8_encoding; }

  Fp8Indexer contract_;
  Tensor queries_; ///< [tokens, heads, 128]
  Tensor weights_; ///< [tokens, heads] folded
};

class Mxfp4Format final : public IndexFormat {
public:
  explicit Mxfp4Format(const Mxfp4Indexer& contract) : contract_(contract) {}

  std::int64_t key_bytes() const override { return kMxfp4Bytes + kMxfp4Groups; }

  Status check_pages(std::int64_t page_stride) const override {
    return check_mxfp4_pages(contract_.pages, page_stride);
  }

  Status write(const Tensor& index_k, std::span<const std::int64_t> slot_mapping,
               IndexCache<std::uint8_t> cache) const override {
    return index_cache_write_mxfp4(contract_.pages, contract_.quant, index_k.as<std::uint16_t>(),
                                   index_k.shape[0], slot_mapping, cache);
  }

  Status quantise(const Tensor& index_q, const Tensor& index_weights,
                  const LayerSink& sink) override {
    const std::int64_t tokens = index_q.shape[0], heads = index_q.shape[1];
    queries_ = Tensor(Dtype::float4_e2m1fn_x2, {tokens, heads, kMxfp4Bytes});
    scales_ = Tensor(Dtype::float8_e8m0fnu, {tokens, heads, kMxfp4Groups});
    weights_ = index_weights;
    DSAKIT_TRY(index_query_quant_mxfp4(contract_.quant, index_q.as<std::uint16_t>(), tokens * heads,
                                       queries_.as<std::uint8_t>(), scales_.as<std::uint8_t>()));
    DSAKIT_TRY(report(sink, "index_q_packed", queries_));
    return report(sink, "index_q_scale", scales_);
  }

  Status score_decode(const IndexPool& pool, const RowsOfDecode& rows,
                      Tensor& logits) const override {
    const Tensor queries = take_rows(queries_, rows.rows);
    const Tensor scales = take_rows(scales_, rows.rows);
    const Tensor weights = take_rows(weights_, rows.rows);
    return index_logits_decode_mxfp4<Simulated>(
        contract_.pages,
        {queries.as<std::uint8_t>(), scales.as<std::uint8_t>(), weights.as<std::uint16_t>(),
         pool.cache, pool.block_table, rows.row_lens, rows.row_request, queries.shape[0],
         queries.shape[1], logits.shape[1], contract_.quant.activation_dtype},
        logits.as<float>());
  }

  Status score_prefill(const IndexPool& pool, const RowsOfPrefill& rows,
                       Tensor& logits) const override {
    const std::int64_t keys = keys_of(rows);
    Tensor k(queries_.dtype, {keys, kMxfp4Bytes}), k_scale(scales_.dtype, {keys, kMxfp4Groups});
    DSAKIT_TRY(index_cache_gather_mxfp4(contract_.pages, pool.cache, pool.block_table,
                                        rows.cu_seq_lens, {}, keys, k.as<std::uint8_t>(),
                                        k_scale.as<std::uint8_t>()));
    const Tensor queries = take_rows(queries_, rows.rows);
    const Tensor scales = take_rows(scales_, rows.rows);
    const Tensor weights = take_rows(weights_, rows.rows);
    return index_logits_prefill_mxfp4<Simulated>(
        {queries.as<std::uint8_t>(), scales.as<std::uint8_t>(), weights.as<std::uint16_t>(),
         k.as<std::uint8_t>(), k_scale.as<std::uint8_t>(), rows.ks, rows.ke, rows.ks,
         queries.shape[0], queries.shape[1], keys, logits.shape[1],
         contract_.quant.activation_dtype},
        logits.as<float>());
  }

private:
  Mxfp4Indexer contract_;
  Tensor queries_; ///< [tokens, heads, 64]
  Tensor scales_;  ///< [tokens, heads, 4]
  Tensor weights_; ///< [tokens, heads] raw
};

} // namespace

std::unique_ptr<IndexFormat> make_index_format(const LayerContract& contract) {
  if (const auto* fp8 = std::get_if<Fp8Indexer>(&contract.indexer))
    return std::make_unique<Fp8Format>(*fp8);
  return std::make_unique<Mxfp4Format>(std::get<Mxfp4Indexer>(contract.indexer));
}

Status report(const LayerSink& sink, std::string_view name, const Tensor& tensor) {
  return sink ? sink(name, 0, tensor) : Status{};
}

} // namespace dsakit::reference
