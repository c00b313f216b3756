// The indexer's part of a step, in FP8 and in MXFP4 (spec 2, 3).
#include <cmath>

#include "dsakit/optimized/index_cache_gather.hpp"
#include "dsakit/optimized/index_key_norm.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/optimized/index_query_quant.hpp"
#include "dsakit/optimized/topk.hpp"
#include "layer/state.hpp"

namespace dsakit::optimized {
namespace {

constexpr std::int64_t kPackedBytes = kIndexDim / 2; ///< of a row of e2m1
constexpr std::int64_t kGroups = kIndexDim / 32;     ///< scales of such a row

float power_minus_half(std::int64_t n) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
}

class Indexer {
public:
  Indexer(LayerState& state, const LayerStep& step)
      : state_(state), step_(step), t_(state.tensors),
        heads_(static_cast<std::int32_t>(state.config.index_num_heads)),
        page_size_(static_cast<std::int32_t>(state.contract.page_size)) {}

  Status run() {
    const std::uint16_t* hidden = step_.hidden_states;
    DSAKIT_TRY(
        project(state_, "wq_index", state_.q_lora() ? t_.index_q_input : hidden, t_.index_q));
    DSAKIT_TRY(project(state_, "wv_index", hidden, t_.index_weights));
    DSAKIT_TRY(project(state_, "wk_index", hidden, t_.index_k_raw));
    if (const Fp8Indexer* fp8 = state_.fp8()) {
      DSAKIT_TRY(quantise(*fp8));
      DSAKIT_TRY(norm_and_write(*fp8));
    } else {
      DSAKIT_TRY(quantise(*state_.mxfp4()));
      DSAKIT_TRY(norm_and_write(*state_.mxfp4()));
    }
    for (const Chunk& chunk : state_.plan.chunks) {
      DSAKIT_TRY(state_.fp8() ? score(*state_.fp8(), chunk) : score(*state_.mxfp4(), chunk));
      DSAKIT_TRY(select(chunk.first_row, chunk.rows, chunk.longest));
    }
    return select(state_.plan.tokens - state_.plan.padding, state_.plan.padding, 0);
  }

private:
  Status quantise(const Fp8Indexer& contract) {
    IndexQueryQuantParams params{};
    params.index_q = t_.index_q;
    params.weights = t_.index_weights;
    params.q_fp8 = t_.index_q_codes;
    params.q_scale = static_cast<float*>(t_.index_q_scale);
    params.folded = t_.index_weights_folded;
    params.index_q_stride = heads_ * kIndexDim;
    params.weights_stride = heads_;
    params.tokens = state_.plan.tokens;
    params.heads = heads_;
    params.amax_floor = contract.query.index_q_floor;
    params.qmax = contract.query.qmax;
    params.head_scale = power_minus_half(heads_);
    params.softmax_scale = power_minus_half(kIndexDim);
    params.encoding = contract.query.index_fp8_encoding;
    params.weight_fold = contract.fold;
    return launch(state_, params);
  }

  Status quantise(const Mxfp4Indexer& contract) {
    IndexQueryQuantMxfp4Params params{};
    params.index_q = t_.index_q;
    params.q_packed = t_.index_q_codes;
    params.q_scale = static_cast<std::uint8_t*>(t_.index_q_scale);
    params.index_q_stride = heads_ * kIndexDim;
    params.tokens = state_.plan.tokens;
    params.heads = heads_;
    params.hadamard = contract.quant.hadamard == Hadamard::query_and_key;
    return launch(state_, params);
  }

  IndexKeyNormParams norm() const {
    const bool layernorm = state_.config.index_k_norm == IndexKNorm::layernorm;
    IndexKeyNormParams params{};
    params.index_k_raw = t_.index_k_raw;
    params.weight = state_.norms.at("k_index_norm.weight").values;
    params.bias = layernorm ? state_.norms.at("k_index_norm.bias").values : nullptr;
    params.index_k = t_.index_k;
    params.index_k_raw_stride = kIndexDim;
    params.tokens = state_.plan.tokens;
    params.eps = state_.config.rms_norm_eps;
    params.norm = state_.config.index_k_norm;
    params.rounding = state_.contract.rmsnorm_rounding;
    return params;
  }

  /// In one launch, so that a key is read once.
  Status norm_and_write(const Fp8Indexer& contract) {
    IndexKeyNormParams params = norm();
    params.write_cache = true;
    params.cache.slot_mapping = step_.index.slot_mapping;
    params.cache.cache = step_.index.cache;
    params.cache.page_stride = step_.index.page_stride;
    params.cache.tokens = step_.index.slots;
    params.cache.pages = step_.index.pages;
    params.cache.page_size = page_size_;
    params.cache.amax_floor = contract.key.index_k_floor;
    params.cache.qmax = contract.key.qmax;
    params.cache.encoding = contract.key.pages.value.index_fp8_encoding;
    params.cache.layout = contract.key.pages.value.index_page_layout;
    return launch(state_, params);
  }

  Status norm_and_write(const Mxfp4Indexer& contract) {
    DSAKIT_TRY(launch(state_, norm()));
    IndexCacheWriteMxfp4Params params{};
    params.index_k = t_.index_k;
    params.slot_mapping = step_.index.slot_mapping;
    params.cache = step_.index.cache;
    params.index_k_stride = kIndexDim;
    params.page_stride = step_.index.page_stride;
    params.tokens = step_.index.slots;
    params.pages = step_.index.pages;
    params.page_size = page_size_;
    params.hadamard = contract.quant.hadamard == Hadamard::query_and_key;
    params.layout = contract.pages.index_page_layout;
    return launch(state_, params);
  }

  /// What the parameters of both formats have in common, gathered or in the pages.
  template <class Params>
  void set_gather(Params& params, const Chunk& chunk) const {
    params.cache = step_.index.cache;
    params.block_table = table_of(chunk);
    params.cu_seq_lens = state_.ids.cu_seq_lens + chunk.first_cu;
    params.page_stride = step_.index.page_stride;
    params.table_stride = step_.index.table_columns;
    params.rows = chunk.keys;
    params.pages = step_.index.pages;
    params.requests = static_cast<std::int32_t>(chunk.requests);
    params.table_columns = static_cast<std::int32_t>(step_.index.table_columns);
    params.page_size = page_size_;
  }
  template <class Params>
  void set_prefill(Params& params, const Chunk& chunk) const {
    params.ks = state_.ids.ks + chunk.first_row;
    params.ke = state_.ids.ke + chunk.first_row;
    params.column_origin = params.ks;
    params.keys = static_cast<std::int32_t>(chunk.keys);
    set_logits(params, chunk);
  }
  template <class Params>
  void set_decode(Params& params, const Chunk& chunk) const {
    // Native rows count from their request; flattened ones name theirs.
    const bool native = state_.config.native_decode && chunk.next_n > 0;
    params.cache = step_.index.cache;
    params.block_table = native ? table_of(chunk) : step_.index.block_table;
    params.row_lens = state_.ids.row_lens + chunk.first_row;
    params.row_request = native ? nullptr : state_.ids.row_request + chunk.first_row;
    params.page_stride = step_.index.page_stride;
    params.table_stride = step_.index.table_columns;
    params.pages = step_.index.pages;
    params.requests = static_cast<std::int32_t>(native ? chunk.requests : state_.plan.requests);
    params.table_columns = static_cast<std::int32_t>(step_.index.table_columns);
    params.next_n = native ? static_cast<std::int32_t>(chunk.next_n) : 1;
    params.page_size = page_size_;
    set_logits(params, chunk);
  }
  template <class Params>
  void set_logits(Params& params, const Chunk& chunk) const {
    params.logits = t_.logits;
    params.logits_stride = chunk.longest;
    params.weights_stride = heads_;
    params.rows = chunk.rows;
    params.heads = heads_;
    params.columns = static_cast<std::int32_t>(chunk.longest);
  }

  /// The quantised queries of the chunk.
  template <class Fp8Params>
  void set_queries(Fp8Params& params, const Chunk& chunk) const {
    params.weights = t_.index_weights_folded + chunk.first_row * heads_;
    params.q = t_.index_q_codes + chunk.first_row * heads_ * kIndexDim;
    params.q_stride = heads_ * kIndexDim;
  }
  template <class Mxfp4Params>
  void set_packed_queries(Mxfp4Params& params, const Chunk& chunk) const {
    params.weights = t_.index_weights + chunk.first_row * heads_;
    params.q_packed = t_.index_q_codes + chunk.first_row * heads_ * kPackedBytes;
    params.q_scale =
        static_cast<std::uint8_t*>(t_.index_q_scale) + chunk.first_row * heads_ * kGroups;
    params.q_stride = heads_ * kPackedBytes;
    params.q_scale_stride = heads_ * kGroups;
    params.weight_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads_)) /
                                             std::sqrt(static_cast<double>(kIndexDim)));
  }

  Status score(const Fp8Indexer& contract, const Chunk& chunk) {
    const IndexPages& pages = contract.key.pages;
    if (chunk.decode) {
      IndexLogitsDecodeParams params{};
      set_queries(params, chunk);
      set_decode(params, chunk);
      params.encoding = pages.index_fp8_encoding;
      params.layout = pages.index_page_layout;
      return launch(state_, params);
    }
    if (!chunk.same_keys) {
      IndexCacheGatherParams gather{};
      set_gather(gather, chunk);
      gather.k_fp8 = t_.keys;
      gather.k_scale = static_cast<float*>(t_.key_scales);
      gather.layout = pages.index_page_layout;
      DSAKIT_TRY(launch(state_, gather));
    }
    IndexLogitsPrefillParams params{};
    set_queries(params, chunk);
    set_prefill(params, chunk);
    params.k_fp8 = t_.keys;
    params.k_scale = static_cast<float*>(t_.key_scales);
    params.encoding = pages.index_fp8_encoding;
    return launch(state_, params);
  }

  Status score(const Mxfp4Indexer& contract, const Chunk& chunk) {
    if (chunk.decode) {
      IndexLogitsDecodeMxfp4Params params{};
      set_packed_queries(params, chunk);
      set_decode(params, chunk);
      params.layout = contract.pages.index_page_layout;
      return launch(state_, params);
    }
    if (!chunk.same_keys) {
      IndexCacheGatherMxfp4Params gather{};
      set_gather(gather, chunk);
      gather.k_packed = t_.keys;
      gather.k_scale = static_cast<std::uint8_t*>(t_.key_scales);
      gather.layout = contract.pages.index_page_layout;
      DSAKIT_TRY(launch(state_, gather));
    }
    IndexLogitsPrefillMxfp4Params params{};
    set_packed_queries(params, chunk);
    set_prefill(params, chunk);
    params.k_packed = t_.keys;
    params.k_scale = static_cast<std::uint8_t*>(t_.key_scales);
    return launch(state_, params);
  }

  /// Of rows whose logits are the ones at hand; padding sees no key and becomes -1.
  Status select(std::int64_t first_row, std::int64_t rows, std::int64_t columns) {
    TopkParams params{};
    params.logits = t_.logits;
    params.row_ends = state_.ids.row_lens + first_row;
    params.topk_indices = step_.topk_indices + first_row * state_.config.index_topk;
    params.logits_stride = columns;
    params.topk_stride = state_.config.index_topk;
    params.rows = rows;
    params.k = static_cast<std::int32_t>(state_.config.index_topk);
    params.order = state_.contract.topk_order;
    return launch(state_, params);
  }

  const std::int32_t* table_of(const Chunk& chunk) const {
    return step_.index.block_table + chunk.first_request * step_.index.table_columns;
  }
  LayerState& state_;
  const LayerStep& step_;
  const LayerTensors& t_;
  std::int32_t heads_;
  std::int32_t page_size_;
};

} // namespace

Status run_indexer(LayerState& state, const LayerStep& step) {
  return Indexer(state, step).run();
}

} // namespace dsakit::optimized
