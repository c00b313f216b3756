#include "layer_writer.hpp"

#include <algorithm>

namespace dsakit::harness {
namespace {

constexpr std::string_view kOwn = "ranks.0."; // what the sink puts before a rank's own tensors

/// Names of the axes; none for a tensor that has the usual ones.
std::vector<std::string> axes_of(const std::string& tensor) {
  if (tensor.starts_with(kOwn)) return axes_of(tensor.substr(kOwn.size()));
  static const std::map<std::string, std::vector<std::string>> kAxes = {
      {"hidden_states", {"tokens", "hidden"}},
      {"query_lens", {"requests"}},
      {"seq_lens", {"requests"}},
      {"block_table", {"requests", "columns"}},
      {"q", {"tokens", "heads", "dim"}},
      {"index_q", {"rows", "heads", "dim"}},
      {"index_q_fp8", {"rows", "heads", "dim"}},
      {"index_q_packed", {"rows", "heads", "bytes"}},
      {"index_weights", {"rows", "heads"}},
      {"index_weights_folded", {"rows", "heads"}},
      {"index_logits", {"rows", "keys"}},
      {"topk_indices", {"rows", "columns"}},
      {"topk_slots", {"rows", "columns"}},
      {"compact_slots", {"rows", "columns"}},
      {"dcp_scores", {"rows", "columns"}},
      {"rank_scores", {"ranks", "rows", "columns"}},
      {"rank_indices", {"ranks", "rows", "columns"}},
      {"rank_latent", {"ranks", "tokens", "heads", "dim"}},
      {"rank_lse", {"ranks", "tokens", "heads"}},
      {"mla_query", {"tokens", "heads", "dim"}},
      {"attn_latent", {"tokens", "heads", "dim"}},
      {"attn_lse", {"tokens", "heads"}},
      {"output", {"tokens", "hidden"}},
      {"index_cache_before", {"pages", "bytes"}},
      {"index_cache_after", {"pages", "bytes"}},
      {"mla_cache_before", {"pages", "tokens", "bytes"}},
      {"mla_cache_after", {"pages", "tokens", "bytes"}}};
  const auto known = kAxes.find(tensor);
  return known == kAxes.end() ? std::vector<std::string>{} : known->second;
}

Attributes attributes_of(const std::string& tensor) {
  if (tensor == "ranks.0.topk_indices" || tensor == "ranks.0.topk_slots")
    return {{"dcp_rank", "0"}};
  if (tensor.starts_with(kOwn)) return attributes_of(tensor.substr(kOwn.size()));
  if (tensor == "index_logits") return {{"accumulation", "fp32"}};
  if (tensor == "attn_latent" || tensor == "attn_lse")
    return {{"accumulation", "fp32"}, {"mla_scale_read", "fp32"}};
  return {};
}

} // namespace

std::set<std::string> layer_tensors(const LayerKind& kind) {
  std::set<std::string> names = {"hidden_states",
                                 "query_lens",
                                 "seq_lens",
                                 "q",
                                 "kv_c",
                                 "k_pe",
                                 "index_q_input",
                                 "index_q",
                                 "index_k_raw",
                                 "index_weights",
                                 "index_q_scale",
                                 "index_k",
                                 "slot_mapping",
                                 "index_cache_before",
                                 "index_cache_after",
                                 "block_table",
                                 "index_logits",
                                 "topk_indices",
                                 "mla_cache_before",
                                 "mla_cache_after",
                                 "topk_slots",
                                 "mla_query",
                                 "attn_latent",
                                 "attn_lse",
                                 "attn_value",
                                 "output"};
  names.insert(kind.q_lora ? "qkv_a" : "kv_a");
  if (kind.gate) names.insert({"gate", "attn_gated"});
  if (kind.dcp)
    names.insert({"ranks.0.index_logits", "ranks.0.topk_indices", "ranks.0.dcp_scores",
                  "ranks.0.topk_slots", "ranks.0.compact_slots", "ranks.0.counts",
                  "ranks.0.attn_latent", "ranks.0.attn_lse", "rank_scores", "rank_indices",
                  "rank_latent", "rank_lse"});
  if (kind.mxfp4)
    names.insert("index_q_packed");
  else
    names.insert({"index_q_fp8", "index_weights_folded"});
  return names;
}

LayerWriter::LayerWriter(RecordingWriter& writer, const LayerKind& kind, std::int64_t step)
    : writer_(writer), step_(step), prefix_("steps." + std::to_string(step) + ".") {
  const std::set<std::string> tensors = layer_tensors(kind);
  const auto has = [&](const std::string& name) {
    return name.starts_with("weights.") || tensors.count(name.substr(prefix_.size()));
  };
  for (Placement& placement : layer_placements(has, prefix_, kind))
    placements_[placement.tensor].push_back(std::move(placement));
}

Status LayerWriter::put(const std::string& name, const Tensor& tensor) {
  std::string stored;
  for (const Placement& placement : placements_[prefix_ + name]) {
    const std::string object = object_of(placement);
    if (!stored.empty()) {
      DSAKIT_TRY(writer_.link(stored, object));
      continue;
    }
    DSAKIT_TRY(add(object, tensor, axes_of(name), attributes_of(name)));
    stored = object;
  }
  objects_[name] = stored;
  return {};
}

Status LayerWriter::put_same(const std::string& name, const std::string& other) {
  for (const Placement& placement : placements_[prefix_ + name])
    DSAKIT_TRY(writer_.link(objects_.at(other), object_of(placement)));
  return {};
}

Status LayerWriter::link_weights(const reference::LayerWeights& weights) {
  const auto quantised = [&](const std::string& name) {
    const auto weight = weights.projections.find(name);
    return weight != weights.projections.end() && weight->second.format != WeightFormat::bf16;
  };
  for (const auto& [tensor, placements] : placements_) {
    if (!tensor.starts_with("weights.")) continue;
    const std::string name = tensor.substr(tensor.find('.') + 1);
    if (!weights.projections.count(name) && !weights.norms.count(name)) continue;
    for (Placement placement : placements) {
      DSAKIT_TRY(writer_.link(weight_path(name), object_of(placement)));
      if (!quantised(name)) continue;
      placement.name = scale_of(placement.name);
      DSAKIT_TRY(writer_.link(weight_path(scale_of(name)), object_of(placement)));
    }
  }
  return {};
}

Status LayerWriter::input(const std::vector<std::string>& operations, const std::string& name,
                          const Tensor& tensor) {
  std::string stored;
  for (const std::string& operation : operations) {
    const std::string object = object_path({step_, operation}, Side::inputs, name);
    DSAKIT_TRY(stored.empty() ? add(object, tensor, {}, {}) : writer_.link(stored, object));
    stored = object;
  }
  return {};
}

Status LayerWriter::add(const std::string& object, const Tensor& tensor,
                        std::vector<std::string> axes, const Attributes& attributes) {
  constexpr const char* kUsual[] = {"rows", "dim", "bytes"};
  for (std::size_t i = axes.size(); i < tensor.shape.size(); ++i)
    axes.emplace_back(kUsual[std::min<std::size_t>(i, 2)]);
  const std::byte* next = tensor.bytes.data();
  const TensorInfo info{object, "", tensor.dtype, tensor.shape, std::move(axes), attributes};
  return writer_.add(info, [&](std::span<std::byte> block) {
    std::copy_n(next, block.size(), block.begin());
    next += block.size();
    return Status{};
  });
}

} // namespace dsakit::harness
