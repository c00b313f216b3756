#include "axes.hpp"

#include <algorithm>
#include <utility>

#include "../replay/names.hpp"

namespace dsakit::harness {
namespace {

/// What neither the operation nor the comparison needs.
std::optional<Problem> drop_optional(const Problem& problem, const Place& place) {
  const Operation& operation = problem.data().operation();
  const auto optional_outputs = split_names(operation.optional_outputs);
  Problem smaller = problem;
  const auto dropped = std::erase_if(smaller.tensors.outputs, [&](const auto& output) {
    const std::string name = output_of(output.first, output.second.attributes);
    return name != place.output && std::find(optional_outputs.begin(), optional_outputs.end(),
                                             name) != optional_outputs.end();
  });
  if (dropped == 0) return std::nullopt;
  return smaller;
}

} // namespace

ShrinkAxis extent_axis(const std::string& extent) {
  return {extent, [=](const Problem& p) { return extent_of(p, extent); },
          [=](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            keep_extent(smaller, extent, kept);
            return std::optional(std::move(smaller));
          },
          [=](const Problem& p, const Place& place) {
            const auto axis = axis_of(p, place.output, extent);
            return axis && !place.at.empty() ? Indices{place.at[*axis]} : Indices{};
          }};
}

std::vector<ShrinkAxis> axes_of(const Problem& problem) {
  const std::string& name = problem.id.operation;
  const ShrinkAxis rows = extent_axis("rows"), heads = extent_axis("heads");
  if (name == "qkv_a_proj" || name == "q_b_proj" || name == "index_k_proj" || name == "gate_proj" ||
      name == "o_proj")
    return name == "index_k_proj" ? std::vector{rows} : std::vector{rows, output_columns()};
  if (name == "q_norm" || name == "kv_norm") return {rows};
  if (name == "index_q_proj") return {rows, index_query_heads()};
  if (name == "index_w_proj" || name == "index_query_quant" || name == "index_weights_fold")
    return {rows, heads};
  if (name == "index_key_norm") return {extent_axis("tokens")};
  if (name == "index_cache_write" || name == "mla_cache_write")
    return {written_tokens(), written_pages()};
  if (name == "index_cache_gather") return {gathered_requests(), table_columns(), read_pages()};
  if (name == "index_logits_prefill") return {rows, prefill_keys()};
  if (name == "index_logits_decode") return {rows, requests(), table_columns(), read_pages()};
  if (name == "topk") return {rows, scored_keys()};
  if (name == "dcp_topk_merge") return {rows};
  if (name == "topk_slots") return {rows, requests(), position_columns()};
  if (name == "absorb_q")
    return {rows, absorbed_heads(), latent_columns(), rows_of_the_other_half()};
  if (name == "sparse_attention") return {rows, heads, slot_columns(), read_pages()};
  if (name == "dcp_attention_merge") return {rows, heads};
  if (name == "absorb_v")
    return {rows, absorbed_heads(), value_columns(), rows_of_the_other_half()};
  if (name == "output_gate") return {rows, extent_axis("dim")};
  return {};
}

std::vector<Tidying> tidyings_of(const Problem& problem) {
  const std::string& name = problem.id.operation;
  std::vector<Tidying> tidyings = {drop_optional};
  if (name == "index_cache_write" || name == "mla_cache_write")
    tidyings.emplace_back(blank_unwritten);
  if (name == "index_logits_decode") tidyings.emplace_back(cut_row_ends);
  if (name == "sparse_attention") tidyings.emplace_back(pack_slots);
  if (name == "dcp_topk_merge") tidyings.emplace_back(blank_candidates);
  return tidyings;
}

std::vector<ShrinkAxis> sums_of(const Problem& problem) {
  const std::string& name = problem.id.operation;
  if (name == "index_logits_prefill" || name == "index_logits_decode")
    return {extent_axis("heads")};
  if (name == "sparse_attention") return {attended_keys()};
  return {};
}

} // namespace dsakit::harness
