// KimiK3DSAAttention: the MLA layer with the sparse indexer (spec 1), every rounding simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/layer_config.hpp"
#include "dsakit/reference/mla_cache.hpp"

namespace dsakit::reference {

/// The inputs of a step, as one rank of context parallelism sees them. The new tokens of all
/// requests come in order; rows of hidden_states past them are padding.
struct LayerStep {
  const std::uint16_t* hidden_states;       ///< [tokens, hidden_size] bits of activation_dtype
  std::int64_t tokens;                      ///< padding included
  std::span<const std::int32_t> query_lens; ///< [requests] new tokens
  std::span<const std::int32_t> seq_lens;   ///< [requests] all tokens, the new ones included
  std::span<const std::int64_t> index_slot_mapping; ///< at most `tokens`; -1 writes nothing: what
                                                    ///< another rank holds
  std::span<const std::int64_t> mla_slot_mapping;
  BlockTable index_block_table; ///< of the rank's own keys, which it counts without gaps
  BlockTable mla_block_table;
  IndexCache<std::uint8_t> index_cache; ///< no pages in either cache: a dummy run
  MlaCache<std::uint8_t> mla_cache;
};

/// Receives an intermediate, or its rows from `first_row` on, as soon as it exists: the tensors of
/// a layer recording (qkv_a or kv_a, q, kv_c, k_pe, index_q_input, index_q, index_k_raw, index_k,
/// index_weights, index_q_fp8 or index_q_packed, index_q_scale, index_weights_folded, index_logits,
/// topk_indices, topk_slots, mla_query, attn_latent, attn_lse, attn_value, gate, attn_gated,
/// output). index_logits alone comes in pieces, each as wide as its longest request; columns at or
/// past a row's length are -inf. Of several ranks what each has of its own comes as
/// "ranks.<r>.<name>": index_logits, topk_indices (its best, as positions in the request) and
/// dcp_scores in pieces; topk_slots, compact_slots, counts, attn_latent and attn_lse whole.
/// topk_indices, attn_latent and attn_lse are then what the merges gave.
using LayerSink =
    std::function<Status(std::string_view name, std::int64_t first_row, const Tensor& rows)>;

struct LayerResult {
  Tensor output;   ///< [tokens, hidden_size]; of a rank: its share of the sum. Padding rows: 0
  TopkBuffer topk; ///< the buffer that the layer was given
};

/// What the engine must set aside for the largest step (spec 2.6, 2.7, 6).
struct LayerWorkspace {
  std::int64_t max_total_seq_len; ///< keys gathered for a prefill chunk: 40 * max_model_len
  std::int64_t max_model_len;     ///< columns of a row of decode logits
  std::int64_t gathered_bytes;    ///< max_total_seq_len keys with their scales
  std::int64_t logits_bytes;      ///< the larger of a prefill chunk's and a decode step's
  std::int64_t decode_rows;       ///< rows of dcp_scores: max(max_num_seqs * (1 + speculative
                                  ///< tokens), max_cudagraph_capture_size)
  std::int64_t dcp_scores_bytes;  ///< [decode_rows, index_topk] fp32; 0 without context parallelism
};

/// Requests [first_request, last_request) with their rows [first_row, last_row) of the step.
struct PrefillChunk {
  std::int64_t first_request;
  std::int64_t last_request;
  std::int64_t first_row;
  std::int64_t last_row;
};

/// Greedy in order: a chunk grows while its keys stay within max_keys and its rows times its keys
/// within max_logits; one request beyond that is cut along its rows (spec 2.7). Requests without
/// new tokens are left out.
std::vector<PrefillChunk> split_prefill(std::span<const std::int32_t> query_lens,
                                        std::span<const std::int32_t> seq_lens,
                                        std::int64_t max_keys, std::int64_t max_logits);

class KimiK3DSAAttention {
public:
  /// One rank of tensor parallelism. `weights` are that rank's, and outlive the layer with the
  /// buffer; a change of their values shows in the next step. Failures: check_layer, check_weights,
  /// a contract that does not fit the configuration.
  static Result<KimiK3DSAAttention> create(const LayerConfig& config, const LayerContract& contract,
                                           const LayerWeights& weights, const TopkBuffer& topk);

  /// What check_layer found worth a warning.
  const std::vector<std::string>& notes() const { return notes_; }
  LayerWorkspace workspace() const;

  /// Writes the new tokens to both caches, selects, attends. Rows [0, tokens) of the top-k buffer
  /// are set, -1 where a row has no more keys. Without tokens, or in a dummy run: ok, zeros,
  /// nothing else is touched. bad_input where lengths, tables, slots or caches disagree; then
  /// neither cache is written. 576-wide cache rows are unsupported.
  Result<LayerResult> forward(const LayerStep& step, const LayerSink& sink = {}) const;
  /// The same of decode_context_parallel_size ranks, in one process: an entry a rank, with caches,
  /// tables and slots of its own and all else alike. Each scores its own keys, at most decode_rows
  /// rows at a time, and offers its best; what is selected of them is attended to by the rank that
  /// holds it, with all heads (spec 6). Sets are those of one rank, outputs within its gate.
  Result<LayerResult> forward(std::span<const LayerStep> ranks, const LayerSink& sink = {}) const;

private:
  KimiK3DSAAttention(const LayerConfig& config, const LayerContract& contract,
                     const LayerWeights& weights, const TopkBuffer& topk,
                     std::vector<std::string> notes)
      : config_(config), contract_(contract), weights_(&weights), topk_(topk),
        notes_(std::move(notes)) {}

  LayerConfig config_;
  LayerContract contract_;
  const LayerWeights* weights_;
  TopkBuffer topk_;
  std::vector<std::string> notes_;
};

/// The all-reduce of the ranks' outputs: fp32 in order of ranks, one rounding. bad_input for none,
/// or tensors of different shapes.
Result<Tensor> sum_partials(std::span<const Tensor> partials, ActivationDtype dtype);

} // namespace dsakit::reference
