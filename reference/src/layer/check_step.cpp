#include "check_step.hpp"

#include <algorithm>
#include <string>

#include "../mla_record.hpp"
#include "../slots.hpp"
#include "found.hpp"
#include "step_rows.hpp"

namespace dsakit::reference {
namespace {

Status check_lens(const LayerConfig& config, const LayerStep& step) {
  const std::int64_t requests = std::ssize(step.query_lens);
  if (std::ssize(step.seq_lens) != requests)
    return bad_input(found("seq_lens entries", std::ssize(step.seq_lens),
                           std::to_string(requests) + " as query_lens has"));
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < step.query_lens.size(); ++b) {
    const std::string at = "[" + std::to_string(b) + "]";
    if (step.query_lens[b] < 0)
      return bad_input(found("query_lens" + at, step.query_lens[b], "at least 0"));
    if (step.seq_lens[b] < 0 || step.seq_lens[b] > config.max_model_len)
      return bad_input(found("seq_lens" + at, step.seq_lens[b],
                             "0 to max_model_len = " + std::to_string(config.max_model_len)));
    rows += step.query_lens[b];
  }
  if (rows > step.tokens)
    return bad_input(
        found("tokens", step.tokens, "at least the " + std::to_string(rows) + " of query_lens"));
  return {};
}

Status check_table(const std::string& name, const BlockTable& table, std::int64_t page_size,
                   std::span<const std::int32_t> seq_lens) {
  if (table.requests != std::ssize(seq_lens))
    return bad_input(
        found(name + " rows", table.requests, std::to_string(seq_lens.size()) + ", one a request"));
  for (std::size_t b = 0; b < seq_lens.size(); ++b)
    if (seq_lens[b] > table.columns * page_size)
      return bad_input(found("seq_lens[" + std::to_string(b) + "]", seq_lens[b],
                             "at most the " + std::to_string(table.columns * page_size) +
                                 " tokens of a row of " + name));
  return {};
}

/// A dense row holds 512 latents and 64 more without scales.
Status check_records(const MlaCache<std::uint8_t>& cache) {
  const std::int64_t dense = kMlaLatent + kMlaPe;
  if (cache.record_stride == dense || cache.record_stride == 2 * dense)
    return unsupported("mla_cache record: found " + std::to_string(cache.record_stride) +
                       " bytes, a dense row of 576 elements, want the 656 of fp8_ds_mla; hint: "
                       "AMD's fused decode writers fill dense rows, which this layer never reads");
  return check_mla_cache(cache.page_size, cache.page_stride, cache.record_stride);
}

/// What a rank has of its own; `seq_lens` count its own keys.
Status check_rank(const LayerContract& contract, const IndexFormat& format, const LayerStep& step,
                  std::span<const std::int32_t> seq_lens) {
  DSAKIT_TRY(format.check_pages(step.index_cache.page_stride));
  DSAKIT_TRY(check_records(step.mla_cache));
  if (step.mla_cache.page_size != contract.page_size)
    return bad_input(
        found("mla_cache page size", step.mla_cache.page_size, std::to_string(contract.page_size)));
  DSAKIT_TRY(
      check_table("index_block_table", step.index_block_table, contract.page_size, seq_lens));
  DSAKIT_TRY(check_table("mla_block_table", step.mla_block_table, contract.page_size, seq_lens));
  DSAKIT_TRY(check_slot_mapping(step.index_slot_mapping,
                                step.index_cache.pages * contract.page_size, "index_k",
                                step.tokens));
  return check_slot_mapping(step.mla_slot_mapping, step.mla_cache.pages * contract.page_size,
                            "kv_c and k_pe", step.tokens);
}

/// All ranks work on the same tokens.
Status check_alike(const LayerStep& step, const LayerStep& first) {
  if (step.tokens != first.tokens)
    return bad_input(found("tokens", step.tokens, std::to_string(first.tokens) + " as of rank 0"));
  const auto same = [](std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  if (!same(step.query_lens, first.query_lens))
    return bad_input("query_lens: found others than rank 0 has");
  if (!same(step.seq_lens, first.seq_lens))
    return bad_input("seq_lens: found others than rank 0 has");
  return {};
}

} // namespace

Status check_steps(const LayerConfig& config, const LayerContract& contract,
                   const IndexFormat& format, const TopkBuffer& topk,
                   std::span<const LayerStep> steps) {
  const LayerStep& first = steps[0];
  DSAKIT_TRY(check_lens(config, first));
  if (first.tokens > topk.rows)
    return bad_input(found("topk_indices_buffer rows", topk.rows,
                           "at least the " + std::to_string(first.tokens) + " of the step"));
  const auto ranks = rows_of_ranks(config, rows_of(first), first.seq_lens);
  for (std::size_t rank = 0; rank < steps.size(); ++rank) {
    Status status = check_alike(steps[rank], first);
    if (status) status = check_rank(contract, format, steps[rank], ranks[rank].seq_lens);
    if (!status && steps.size() > 1)
      return {status.code(), "rank " + std::to_string(rank) + ": " + status.what()};
    DSAKIT_TRY(status);
  }
  return {};
}

} // namespace dsakit::reference
