// What the FP8 and the MXFP4 indexer do differently: quantise, write, score (spec 2, 3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "dsakit/reference/layer.hpp"

namespace dsakit::reference {

/// A step's cache and block table.
struct IndexPool {
  IndexCache<const std::uint8_t> cache;
  BlockTable block_table;
};

/// Rows of the step to score, -1 for one that only fills a place; their lengths and requests.
struct RowsOfDecode {
  std::span<const std::int64_t> rows;
  const std::int32_t* row_lens;
  const std::int32_t* row_request;
};

/// Rows of the step to score against the gathered keys [ks, ke) of the requests that cu_seq_lens
/// has; the pool's block table holds these requests alone.
struct RowsOfPrefill {
  std::span<const std::int64_t> rows;
  std::span<const std::int32_t> cu_seq_lens;
  const std::int32_t* ks;
  const std::int32_t* ke;
};

class IndexFormat {
public:
  virtual ~IndexFormat() = default;

  virtual std::int64_t key_bytes() const = 0; ///< of a key with its scales
  virtual Status check_pages(std::int64_t page_stride) const = 0;
  virtual Status write(const Tensor& index_k, std::span<const std::int64_t> slot_mapping,
                       IndexCache<std::uint8_t> cache) const = 0;
  /// Keeps the quantised queries of a step for scoring, after `sink` has seen them.
  virtual Status quantise(const Tensor& index_q, const Tensor& index_weights,
                          const LayerSink& sink) = 0;
  /// logits: float32 [rows, columns], -inf beforehand.
  virtual Status score_decode(const IndexPool& pool, const RowsOfDecode& rows,
                              Tensor& logits) const = 0;
  virtual Status score_prefill(const IndexPool& pool, const RowsOfPrefill& rows,
                               Tensor& logits) const = 0;
};

std::unique_ptr<IndexFormat> make_index_format(const LayerContract& contract);

/// Calls `sink` where there is one.
Status report(const LayerSink& sink, std::string_view name, const Tensor& tensor);

} // namespace dsakit::reference
