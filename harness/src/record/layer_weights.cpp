#include "layer_weights.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "draws.hpp"
#include "dsakit/harness/model_config.hpp"
#include "dsakit/harness/safetensors.hpp"
#include "dsakit/reference/formats.hpp"

namespace dsakit::harness {
namespace {

constexpr std::uint32_t kFirstStream = 0x80000000; // steps have the streams below

/// Shards of a checkpoint, by the name of their file.
class Checkpoint {
public:
  static Result<Checkpoint> open(const std::string& folder, std::int64_t layer) {
    Checkpoint checkpoint;
    checkpoint.where_ = folder + ": layer " + std::to_string(layer);
    checkpoint.prefix_ = "layers." + std::to_string(layer) + ".";
    std::vector<std::string> paths;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
    if (paths.empty())
      return bad_input(folder + ": found no .safetensors file, want a checkpoint's folder");
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) {
      auto shard = SafetensorsReader::open(path);
      if (!shard) return shard.status();
      checkpoint.shards_.push_back(std::move(*shard));
    }
    return checkpoint;
  }

  /// "layers.<n>.<name>", whatever the model puts before it.
  Result<Tensor> read(const std::string& name) const {
    const std::string want = prefix_ + name;
    const SafetensorsReader* found_in = nullptr;
    std::string found;
    for (const SafetensorsReader& shard : shards_)
      for (const auto& [tensor, entry] : shard.tensors()) {
        if (!is(tensor, want)) continue;
        if (found_in)
          return bad_input(where_ + ": found " + found + " and " + tensor + ", want one");
        found_in = &shard;
        found = tensor;
      }
    if (!found_in) return bad_input(where_ + ": " + want + " is missing");
    auto tensor = found_in->read(found);
    if (!tensor) return tensor.status();
    if (tensor->shape.empty())
      return bad_input(where_ + ": " + want + ": found a scalar, want a weight");
    return tensor;
  }

  bool has(const std::string& name) const {
    return std::any_of(shards_.begin(), shards_.end(), [&](const SafetensorsReader& shard) {
      return std::any_of(shard.tensors().begin(), shard.tensors().end(),
                         [&](const auto& tensor) { return is(tensor.first, prefix_ + name); });
    });
  }

  const std::string& where() const { return where_; }

private:
  static bool is(const std::string& tensor, const std::string& want) {
    return tensor == want || tensor.ends_with("." + want);
  }

  std::string where_;
  std::string prefix_;
  std::vector<SafetensorsReader> shards_;
};

/// The rows of `part` behind those of `all`.
Status append_rows(const std::string& where, Tensor& all, Tensor part) {
  if (all.shape.empty()) {
    all = std::move(part);
    return {};
  }
  if (part.dtype != all.dtype || part.shape.size() != all.shape.size() ||
      !std::equal(part.shape.begin() + 1, part.shape.end(), all.shape.begin() + 1))
    return bad_input(where + ": found " + std::string(dsakit::name(part.dtype)) + " " +
                     to_string(part.shape) + ", want rows beside " +
                     std::string(dsakit::name(all.dtype)) + " " + to_string(all.shape));
  all.shape[0] += part.shape[0];
  all.bytes.insert(all.bytes.end(), part.bytes.begin(), part.bytes.end());
  return {};
}

Result<std::vector<float>> floats_of(const std::string& where, const Tensor& tensor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.dtype == Dtype::float32)
      values.push_back(tensor.as<float>()[i]);
    else if (tensor.dtype == Dtype::bfloat16)
      values.push_back(reference::bf16_to_float(tensor.as<std::uint16_t>()[i]));
    else
      return unsupported(where + ": found dtype " + std::string(name(tensor.dtype)) +
                         ", want bfloat16 or float32");
  }
  return values;
}

/// The scales beside a quantised part: one a row, or one for each block of 128 x 128.
Result<Tensor> read_scales(const Checkpoint& checkpoint, const std::string& part,
                           const Shape& shape) {
  const std::string name = part + (checkpoint.has(part + "_scale_inv") ? "_scale_inv" : "_scale");
  auto scales = checkpoint.read(name);
  if (!scales) return scales;
  const std::string where = checkpoint.where() + ": " + name;
  const auto blocks = [](std::int64_t n) {
    return (n + reference::kWeightBlock - 1) / reference::kWeightBlock;
  };
  const Shape of_rows = {shape[0]}, of_blocks = {blocks(shape[0]), blocks(shape[1])};
  if (scales->shape == Shape{shape[0], 1} && of_blocks != scales->shape) scales->shape = of_rows;
  if (scales->shape != of_rows && scales->shape != of_blocks)
    return unsupported(where + ": found " + to_string(scales->shape) + ", want " +
                       to_string(of_rows) + " or " + to_string(of_blocks));
  const auto values = floats_of(where, *scales);
  if (!values) return values.status();
  Tensor fp32(Dtype::float32, scales->shape);
  std::copy(values->begin(), values->end(), fp32.as<float>());
  return fp32;
}

/// All parts, one behind the other. Blocks must not cross from one to the next.
Result<reference::WeightTensor> read_projection(const Checkpoint& checkpoint,
                                                const std::string& weight) {
  reference::WeightTensor all{WeightFormat::bf16, Fp8Encoding::e4m3fn, {}, {}};
  for (const std::string& part : checkpoint_names(weight)) {
    const std::string where = checkpoint.where() + ": " + part;
    auto values = checkpoint.read(part);
    if (!values) return values.status();
    const bool fnuz = values->dtype == Dtype::float8_e4m3fnuz;
    if (values->shape.size() == 2 && (fnuz || values->dtype == Dtype::float8_e4m3fn)) {
      if (!all.values.shape.empty() && all.scales.shape.size() == 2 &&
          all.values.shape[0] % reference::kWeightBlock != 0)
        return unsupported(where + ": found " + std::to_string(all.values.shape[0]) +
                           " rows before it, want a multiple of 128 for scales of blocks");
      auto scales = read_scales(checkpoint, part, values->shape);
      if (!scales) return scales.status();
      DSAKIT_TRY(append_rows(where + " scales", all.scales, std::move(*scales)));
      all.format =
          all.scales.shape.size() == 1 ? WeightFormat::fp8_channel : WeightFormat::fp8_block;
      all.encoding = fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn;
    }
    DSAKIT_TRY(append_rows(where, all.values, std::move(*values)));
  }
  return all;
}

} // namespace

reference::LayerWeights random_layer_weights(const reference::LayerConfig& config,
                                             std::uint64_t seed) {
  reference::LayerWeights weights;
  std::uint32_t stream = kFirstStream;
  for (const auto& [name, shape] : reference::weight_shapes(config)) {
    const Draws draws(seed, stream++);
    if (shape.size() == 1) {
      std::vector<float>& values = weights.norms[name];
      const double centre = name.ends_with(".bias") ? 0 : 1;
      for (std::int64_t i = 0; i < shape[0]; ++i)
        values.push_back(
            static_cast<float>(centre + 0.1 * draws.normal(static_cast<std::uint64_t>(i))));
      continue;
    }
    Tensor values(Dtype::bfloat16, shape);
    const double scale = 1 / std::sqrt(static_cast<double>(shape[1]));
    tbb::parallel_for(std::int64_t{0}, shape[0], [&](std::int64_t row) {
      for (std::int64_t i = row * shape[1]; i < (row + 1) * shape[1]; ++i)
        values.as<std::uint16_t>()[i] = reference::float_to_bf16(
            static_cast<float>(scale * draws.normal(static_cast<std::uint64_t>(i))));
    });
    weights.projections[name] = {WeightFormat::bf16, Fp8Encoding::e4m3fn, std::move(values), {}};
  }
  return weights;
}

Result<reference::LayerWeights> read_layer_weights(const reference::LayerConfig& config,
                                                   const std::string& folder, std::int64_t layer) {
  auto checkpoint = Checkpoint::open(folder, layer);
  if (!checkpoint) return checkpoint.status();
  reference::LayerWeights weights;
  for (const auto& [name, shape] : reference::weight_shapes(config)) {
    const std::string where = checkpoint->where() + ": " + name;
    const auto fits = [&](const Shape& found) {
      return found == shape
                 ? Status{}
                 : bad_input(where + ": found " + to_string(found) + ", want " + to_string(shape));
    };
    if (shape.size() == 1) {
      auto tensor = checkpoint->read(checkpoint_names(name).front());
      if (!tensor) return tensor.status();
      DSAKIT_TRY(fits(tensor->shape));
      auto values = floats_of(where, *tensor);
      if (!values) return values.status();
      weights.norms[name] = std::move(*values);
      continue;
    }
    auto weight = read_projection(*checkpoint, name);
    if (!weight) return weight.status();
    DSAKIT_TRY(fits(weight->values.shape));
    if (weight->format == WeightFormat::bf16 && weight->values.dtype != Dtype::bfloat16)
      return unsupported(where + ": found dtype " +
                         std::string(dsakit::name(weight->values.dtype)) +
                         ", want bfloat16 or float8_e4m3 with scales");
    weights.projections[name] = std::move(*weight);
  }
  return weights;
}

} // namespace dsakit::harness
