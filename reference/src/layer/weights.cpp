#include <algorithm>
#include <cstring>

#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/layer_config.hpp"

namespace dsakit::reference {
namespace {

std::int64_t blocks(std::int64_t extent) {
  return (extent + kWeightBlock - 1) / kWeightBlock;
}

Shape scale_shape(WeightFormat format, const Shape& shape) {
  switch (format) {
  case WeightFormat::bf16:
    return {};
  case WeightFormat::fp8_channel:
    return {shape[0]};
  case WeightFormat::fp8_block:
    return {blocks(shape[0]), blocks(shape[1])};
  }
  return {};
}

std::string want_shape(const std::string& name, const Shape& found, const Shape& want) {
  return "weight " + name + ": found " + to_string(found) + ", want " + to_string(want);
}

Status check_projection(const std::string& name, const WeightTensor& weight, const Shape& shape) {
  if (weight.values.shape != shape) return bad_input(want_shape(name, weight.values.shape, shape));
  if ((name == "wk_index" || name == "wv_index") && weight.format != WeightFormat::bf16)
    return unsupported("weight " + name + ": found format " +
                       std::string(dsakit::name(weight.format)) +
                       ", want bf16: the indexer's key and weight projections are not quantised");
  const bool bf16 = weight.format == WeightFormat::bf16;
  const Dtype fp8 =
      weight.encoding == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn : Dtype::float8_e4m3fnuz;
  if (const Dtype want = bf16 ? Dtype::bfloat16 : fp8; weight.values.dtype != want)
    return bad_input("weight " + name + ": found dtype " +
                     std::string(dsakit::name(weight.values.dtype)) + ", want " +
                     std::string(dsakit::name(want)));
  const Shape scales = scale_shape(weight.format, shape);
  if (!bf16 && (weight.scales.shape != scales || weight.scales.dtype != Dtype::float32))
    return bad_input(want_shape(name + " scales", weight.scales.shape, scales) + " float32");
  return {};
}

/// Rows and columns of one tensor, of which a rank takes some.
struct Extent {
  std::int64_t first;
  std::int64_t count; ///< of the rank; past `whole` they are padding
};

/// The elements [rows] x [columns] of a matrix; what lies past it is `padding`.
Tensor cut(const Tensor& whole, Extent rows, Extent columns, std::span<const std::byte> padding) {
  Tensor part(whole.dtype, {rows.count, columns.count});
  const auto bytes = static_cast<std::int64_t>(size_of(whole.dtype));
  for (std::int64_t i = 0; i < part.elements(); ++i)
    std::copy(padding.begin(), padding.end(), part.bytes.begin() + i * bytes);
  const std::int64_t taken =
      std::clamp<std::int64_t>(whole.shape[1] - columns.first, 0, columns.count);
  for (std::int64_t r = 0; r < rows.count && rows.first + r < whole.shape[0]; ++r)
    std::copy_n(whole.bytes.begin() + ((rows.first + r) * whole.shape[1] + columns.first) * bytes,
                taken * bytes, part.bytes.begin() + r * columns.count * bytes);
  return part;
}

/// A part of an fp8_block weight's rows or columns, as blocks.
Result<Extent> block_extent(const std::string& name, Extent part, std::int64_t whole) {
  const bool all = part.first == 0 && part.count == whole;
  if (!all && (part.first % kWeightBlock != 0 || part.count % kWeightBlock != 0))
    return unsupported("weight " + name + ": found a rank's rows or columns [" +
                       std::to_string(part.first) + ", " + std::to_string(part.first + part.count) +
                       "), want multiples of 128 for fp8_block");
  return Extent{part.first / kWeightBlock, blocks(part.count)};
}

Result<WeightTensor> cut_weight(const std::string& name, const WeightTensor& whole, Extent rows,
                                Extent columns) {
  const std::vector<std::byte> zero(size_of(whole.values.dtype)); // +0 in every format
  const float one = 1;
  const auto unit = std::as_bytes(std::span(&one, 1));
  WeightTensor part{whole.format, whole.encoding, cut(whole.values, rows, columns, zero), {}};
  if (whole.format == WeightFormat::fp8_channel) {
    Tensor scales = whole.scales;
    scales.shape = {whole.scales.shape[0], 1};
    part.scales = cut(scales, rows, {0, 1}, unit);
    part.scales.shape = {rows.count};
  } else if (whole.format == WeightFormat::fp8_block) {
    auto block_rows = block_extent(name, rows, whole.values.shape[0]);
    if (!block_rows) return block_rows.status();
    auto block_columns = block_extent(name, columns, whole.values.shape[1]);
    if (!block_columns) return block_columns.status();
    part.scales = cut(whole.scales, *block_rows, *block_columns, unit);
  }
  return part;
}

} // namespace

Weight WeightTensor::view() const {
  return {format,
          encoding,
          values.bytes.data(),
          format == WeightFormat::bf16 ? nullptr : scales.as<float>(),
          values.shape[0],
          values.shape[1]};
}

std::vector<WeightShape> weight_shapes(const LayerConfig& config) {
  const HeadDims& head = config.head;
  const std::int64_t hidden = config.hidden_size, heads = config.local_heads();
  const std::int64_t kv_a = head.latent + head.pe;
  const std::int64_t index_heads = config.dsa->index_num_heads;
  const std::int64_t index_q_input = config.q_lora_rank.value_or(hidden);
  std::vector<WeightShape> shapes;
  if (config.q_lora_rank) {
    shapes.push_back({"fused_qkv_a_proj", {*config.q_lora_rank + kv_a, hidden}});
    shapes.push_back({"q_b_proj", {heads * config.qk_head_dim(), *config.q_lora_rank}});
    shapes.push_back({"q_a_layernorm", {*config.q_lora_rank}});
  } else {
    shapes.push_back({"kv_a_proj_with_mqa", {kv_a, hidden}});
    shapes.push_back({"q_proj", {heads * config.qk_head_dim(), hidden}});
  }
  shapes.push_back({"kv_a_layernorm", {head.latent}});
  shapes.push_back({"kv_b_proj", {heads * (head.nope + head.value), head.latent}});
  if (config.mla_use_output_gate) shapes.push_back({"g_proj", {heads * head.value, hidden}});
  shapes.push_back({"o_proj", {hidden, heads * head.value}});
  shapes.push_back({"wq_index", {index_heads * kIndexHeadDim, index_q_input}});
  shapes.push_back({"wk_index", {kIndexHeadDim, hidden}});
  shapes.push_back({"wv_index", {index_heads, hidden}});
  shapes.push_back({"k_index_norm.weight", {kIndexHeadDim}});
  if (config.dsa->index_k_norm_type == "layernorm")
    shapes.push_back({"k_index_norm.bias", {kIndexHeadDim}});
  return shapes;
}

Status check_weights(const LayerConfig& config, const LayerWeights& weights) {
  const auto shapes = weight_shapes(config);
  for (const auto& [name, shape] : shapes) {
    if (shape.size() == 1) {
      const auto norm = weights.norms.find(name);
      if (norm == weights.norms.end()) return bad_input("weight " + name + " is missing");
      if (const Shape found{std::ssize(norm->second)}; found != shape)
        return bad_input(want_shape(name, found, shape));
    } else {
      const auto projection = weights.projections.find(name);
      if (projection == weights.projections.end())
        return bad_input("weight " + name + " is missing");
      DSAKIT_TRY(check_projection(name, projection->second, shape));
    }
  }
  const auto known = [&](const std::string& name) {
    return std::any_of(shapes.begin(), shapes.end(),
                       [&](const WeightShape& weight) { return weight.name == name; });
  };
  for (const auto& [name, weight] : weights.projections)
    if (!known(name)) return bad_input("weight " + name + ": the layer has none of that name");
  for (const auto& [name, weight] : weights.norms)
    if (!known(name)) return bad_input("weight " + name + ": the layer has none of that name");
  return {};
}

Result<LayerWeights> slice_weights(const LayerConfig& config, const LayerWeights& whole,
                                   std::int64_t rank) {
  LayerConfig unsliced = config;
  unsliced.parallel.tensor_parallel_size = 1;
  DSAKIT_TRY(check_weights(unsliced, whole));
  if (rank < 0 || rank >= config.parallel.tensor_parallel_size)
    return bad_input("rank: found " + std::to_string(rank) + ", want below tensor_parallel_size " +
                     std::to_string(config.parallel.tensor_parallel_size));
  LayerWeights part = whole;
  const std::int64_t heads = config.local_heads();
  const auto of_heads = [&](std::int64_t width) {
    return Extent{rank * heads * width, heads * width};
  };
  for (auto& [name, weight] : part.projections) {
    const WeightTensor& all = whole.projections.at(name);
    Extent rows{0, all.values.shape[0]}, columns{0, all.values.shape[1]};
    if (name == "q_b_proj" || name == "q_proj") rows = of_heads(config.qk_head_dim());
    if (name == "kv_b_proj") rows = of_heads(config.head.nope + config.head.value);
    if (name == "g_proj") rows = of_heads(config.head.value);
    if (name == "o_proj") columns = of_heads(config.head.value);
    auto cut = cut_weight(name, all, rows, columns);
    if (!cut) return cut.status();
    weight = std::move(*cut);
  }
  return part;
}

} // namespace dsakit::reference
