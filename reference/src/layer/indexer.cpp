#include "indexer.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/topk.hpp"
#include "projections.hpp"

namespace dsakit::reference {
namespace {

Tensor no_logits(std::int64_t rows, std::int64_t columns) {
  Tensor logits(Dtype::float32, {rows, columns});
  std::fill_n(logits.as<float>(), logits.elements(), -std::numeric_limits<float>::infinity());
  return logits;
}

std::vector<std::int64_t> row_range(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(last - first));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

BlockTable requests_of(const BlockTable& table, std::int64_t first, std::int64_t count) {
  return {table.data + first * table.columns, count, table.columns};
}

class Indexer {
public:
  Indexer(const IndexerInput& in, const IndexFormat& format) : in_(in), format_(format) {
    for (std::size_t rank = 0; rank < in.ranks.size(); ++rank) {
      const LayerStep& step = in.steps[rank];
      ranks_.push_back(
          {in.ranks[rank],
           {{step.index_cache.data, step.index_cache.pages, step.index_cache.page_stride},
            step.index_block_table}});
    }
  }

  /// Scores all rows, run after run of decode and of prefill requests.
  Status select(const LayerSink& sink) const {
    const std::int64_t requests = std::ssize(step().query_lens);
    for (std::int64_t first = 0; first < requests;) {
      std::int64_t last = first + 1;
      while (last < requests && decodes(last) == decodes(first))
        ++last;
      DSAKIT_TRY(select_run(first, last, sink));
      first = last;
    }
    return {};
  }

private:
  struct Rank {
    const RankRows& rows;
    IndexPool pool;
  };

  const LayerStep& step() const { return in_.steps[0]; }

  bool decodes(std::int64_t request) const {
    return step().query_lens[static_cast<std::size_t>(request)] <=
           1 + in_.config.num_speculative_tokens;
  }

  Status select_run(std::int64_t first, std::int64_t last, const LayerSink& sink) const {
    const auto part = [&](std::span<const std::int32_t> lens) {
      return lens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    };
    const std::int64_t first_row = in_.rows.first_row[static_cast<std::size_t>(first)];
    for (PrefillChunk chunk : split_prefill(
             part(step().query_lens), part(step().seq_lens), in_.config.max_total_seq_len(),
             in_.config.max_logits_bytes / static_cast<std::int64_t>(sizeof(float)))) {
      chunk.first_request += first;
      chunk.last_request += first;
      const std::int64_t end = chunk.last_row + first_row;
      for (chunk.first_row += first_row; chunk.first_row < end; chunk.first_row = chunk.last_row) {
        chunk.last_row = std::min(chunk.first_row + most_rows(), end);
        DSAKIT_TRY(select_chunk(chunk, sink));
      }
    }
    return {};
  }

  /// What is selected together: of several ranks as many rows as dcp_scores has.
  std::int64_t most_rows() const {
    return ranks_.size() == 1 ? step().tokens : in_.config.decode_rows();
  }

  Status select_chunk(const PrefillChunk& chunk, const LayerSink& sink) const {
    const std::int64_t k = in_.topk.columns, rows = chunk.last_row - chunk.first_row;
    std::int32_t* selected = in_.topk.data + chunk.first_row * k;
    if (ranks_.size() == 1) return select_of_rank(ranks_[0], chunk, sink, selected, nullptr);
    const auto world = static_cast<std::int64_t>(ranks_.size());
    Tensor indices(Dtype::int32, {world, rows, k}), scores(Dtype::float32, {world, rows, k});
    for (const Rank& rank : ranks_) {
      const std::int64_t first = rank.rows.dcp.rank * rows * k;
      DSAKIT_TRY(select_of_rank(rank, chunk, sink, indices.as<std::int32_t>() + first,
                                scores.as<float>() + first));
    }
    dcp_topk_merge(scores.as<float>(), indices.as<std::int32_t>(), world, rows, k,
                   in_.contract.topk_order, selected);
    return {};
  }

  /// The best of a rank's own keys, and what they score where a merge follows. [rows, k]
  Status select_of_rank(const Rank& rank, const PrefillChunk& chunk, const LayerSink& sink,
                        std::int32_t* indices, float* scores) const {
    const auto lens =
        std::span(rank.rows.seq_lens)
            .subspan(static_cast<std::size_t>(chunk.first_request),
                     static_cast<std::size_t>(chunk.last_request - chunk.first_request));
    const std::int32_t* row_lens = rank.rows.row_lens.data() + chunk.first_row;
    Tensor logits =
        no_logits(chunk.last_row - chunk.first_row, *std::max_element(lens.begin(), lens.end()));
    if (!decodes(chunk.first_request)) {
      DSAKIT_TRY(score_prefill(rank, chunk, lens, logits));
    } else if (in_.config.native_decode) {
      DSAKIT_TRY(score_native(rank, chunk, logits));
    } else {
      const auto rows = row_range(chunk.first_row, chunk.last_row);
      DSAKIT_TRY(format_.score_decode(
          rank.pool, {rows, row_lens, in_.rows.row_request.data() + chunk.first_row}, logits));
    }
    const DcpRank& dcp = rank.rows.dcp;
    const std::int64_t rows = logits.shape[0], columns = logits.shape[1], k = in_.topk.columns;
    if (sink) DSAKIT_TRY(sink(rank_tensor(dcp, "index_logits"), chunk.first_row, logits));
    DSAKIT_TRY(topk(logits.as<float>(), rows, columns, nullptr, row_lens, k,
                    in_.contract.topk_order, indices, dcp));
    if (!scores) return {};
    dcp_scores(logits.as<float>(), rows, columns, nullptr, indices, k, scores, dcp);
    if (!sink) return {};
    Tensor offered(Dtype::int32, {rows, k}), with(Dtype::float32, {rows, k});
    std::copy_n(indices, rows * k, offered.as<std::int32_t>());
    std::copy_n(scores, rows * k, with.as<float>());
    DSAKIT_TRY(sink(rank_tensor(dcp, "topk_indices"), chunk.first_row, offered));
    return sink(rank_tensor(dcp, "dcp_scores"), chunk.first_row, with);
  }

  Status score_prefill(const Rank& rank, const PrefillChunk& chunk,
                       std::span<const std::int32_t> seq_lens, Tensor& logits) const {
    std::vector<std::int32_t> cu_seq_lens = {0}, ks, ke;
    for (std::int32_t len : seq_lens)
      cu_seq_lens.push_back(cu_seq_lens.back() + len);
    const auto rows = row_range(chunk.first_row, chunk.last_row);
    for (std::int64_t row : rows) {
      const auto r = static_cast<std::size_t>(row);
      const std::int64_t request = in_.rows.row_request[r] - chunk.first_request;
      ks.push_back(cu_seq_lens[static_cast<std::size_t>(request)]);
      ke.push_back(ks.back() + rank.rows.row_lens[r]);
    }
    const IndexPool pool{rank.pool.cache, requests_of(rank.pool.block_table, chunk.first_request,
                                                      std::ssize(seq_lens))};
    return format_.score_prefill(pool, {rows, cu_seq_lens, ks.data(), ke.data()}, logits);
  }

  /// As [requests, next_n] with rows of length 0 behind the shorter requests, and back.
  Status score_native(const Rank& rank, const PrefillChunk& chunk, Tensor& logits) const {
    std::vector<std::vector<std::int64_t>> of_request(
        static_cast<std::size_t>(chunk.last_request - chunk.first_request));
    std::size_t next_n = 0;
    for (std::int64_t row : row_range(chunk.first_row, chunk.last_row)) {
      auto& rows = of_request[static_cast<std::size_t>(
          in_.rows.row_request[static_cast<std::size_t>(row)] - chunk.first_request)];
      rows.push_back(row);
      next_n = std::max(next_n, rows.size());
    }
    std::vector<std::int64_t> packed;
    std::vector<std::int32_t> row_lens, row_request;
    for (std::size_t b = 0; b < of_request.size(); ++b)
      for (std::size_t n = 0; n < next_n; ++n) {
        const std::int64_t row = n < of_request[b].size() ? of_request[b][n] : -1;
        packed.push_back(row);
        row_lens.push_back(row < 0 ? 0 : rank.rows.row_lens[static_cast<std::size_t>(row)]);
        row_request.push_back(static_cast<std::int32_t>(chunk.first_request) +
                              static_cast<std::int32_t>(b));
      }
    const std::int64_t columns = logits.shape[1];
    Tensor padded = no_logits(std::ssize(packed), columns);
    DSAKIT_TRY(
        format_.score_decode(rank.pool, {packed, row_lens.data(), row_request.data()}, padded));
    for (std::size_t i = 0; i < packed.size(); ++i)
      if (packed[i] >= 0)
        std::copy_n(padded.as<float>() + static_cast<std::int64_t>(i) * columns, columns,
                    logits.as<float>() + (packed[i] - chunk.first_row) * columns);
    return {};
  }

  const IndexerInput& in_;
  const IndexFormat& format_;
  std::vector<Rank> ranks_;
};

} // namespace

Result<TopkBuffer> run_indexer(const IndexerInput& in, IndexFormat& format, const LayerSink& sink) {
  const LayerStep& step = in.steps[0];
  std::fill_n(in.topk.data, step.tokens * in.topk.columns, -1);

  const Projections projections{in.weights, in.contract.activation_dtype, step.tokens};
  auto index_q = projections.apply("wq_index", in.index_q_input);
  if (!index_q) return index_q.status();
  index_q->shape = {step.tokens, in.config.dsa->index_num_heads, kIndexHeadDim};
  DSAKIT_TRY(report(sink, "index_q", *index_q));
  auto index_weights = projections.apply("wv_index", step.hidden_states);
  if (!index_weights) return index_weights.status();
  DSAKIT_TRY(report(sink, "index_weights", *index_weights));
  auto index_k_raw = projections.apply("wk_index", step.hidden_states);
  if (!index_k_raw) return index_k_raw.status();
  DSAKIT_TRY(report(sink, "index_k_raw", *index_k_raw));

  const bool layernorm = in.config.dsa->index_k_norm_type == "layernorm";
  const Norm norm{layernorm ? IndexKNorm::layernorm : IndexKNorm::rmsnorm,
                  in.contract.rmsnorm_rounding,
                  in.contract.activation_dtype,
                  static_cast<float>(in.config.rms_norm_eps),
                  in.weights.norms.at("k_index_norm.weight").data(),
                  layernorm ? in.weights.norms.at("k_index_norm.bias").data() : nullptr,
                  kIndexHeadDim};
  Tensor index_k(index_k_raw->dtype, index_k_raw->shape);
  DSAKIT_TRY(index_key_norm(norm, index_k_raw->as<std::uint16_t>(), step.tokens,
                            index_k.as<std::uint16_t>()));
  DSAKIT_TRY(report(sink, "index_k", index_k));

  DSAKIT_TRY(format.quantise(*index_q, *index_weights, sink));
  for (const LayerStep& rank : in.steps)
    DSAKIT_TRY(format.write(index_k, rank.index_slot_mapping, rank.index_cache));
  DSAKIT_TRY(Indexer(in, format).select(sink));
  if (sink) {
    Tensor indices(Dtype::int32, {step.tokens, in.topk.columns});
    std::copy_n(in.topk.data, indices.elements(), indices.as<std::int32_t>());
    DSAKIT_TRY(sink("topk_indices", 0, indices));
  }
  return in.topk;
}

} // namespace dsakit::reference
