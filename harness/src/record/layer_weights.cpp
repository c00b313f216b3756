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
        if (tensor != want && !tensor.ends_with("." + want)) continue;
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

  const std::string& where() const { return where_; }

private:
  std::string where_;
  std::string prefix_;
  std::vector<SafetensorsReader> shards_;
};

/// Rows of all parts, one part after the other.
Result<Tensor> read_rows(const Checkpoint& checkpoint, const std::string& weight) {
  Tensor all;
  for (const std::string& name : checkpoint_names(weight)) {
    auto part = checkpoint.read(name);
    if (!part) return part.status();
    if (all.shape.empty()) {
      all = std::move(*part);
      continue;
    }
    if (part->dtype != all.dtype || part->shape.size() != 2 || all.shape.size() != 2 ||
        part->shape[1] != all.shape[1])
      return bad_input(checkpoint.where() + ": " + name + ": found " +
                       std::string(dsakit::name(part->dtype)) + " " + to_string(part->shape) +
                       ", want rows beside " + std::string(dsakit::name(all.dtype)) + " " +
                       to_string(all.shape));
    all.shape[0] += part->shape[0];
    all.bytes.insert(all.bytes.end(), part->bytes.begin(), part->bytes.end());
  }
  return all;
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
    auto tensor = read_rows(*checkpoint, name);
    if (!tensor) return tensor.status();
    const std::string where = checkpoint->where() + ": " + name;
    if (tensor->shape != shape)
      return bad_input(where + ": found " + to_string(tensor->shape) + ", want " +
                       to_string(shape));
    if (shape.size() == 1) {
      auto values = floats_of(where, *tensor);
      if (!values) return values.status();
      weights.norms[name] = std::move(*values);
      continue;
    }
    if (tensor->dtype != Dtype::bfloat16)
      return unsupported(where + ": found dtype " + std::string(dsakit::name(tensor->dtype)) +
                         ", want bfloat16: recordings hold no quantised projections");
    weights.projections[name] = {WeightFormat::bf16, Fp8Encoding::e4m3fn, std::move(*tensor), {}};
  }
  return weights;
}

} // namespace dsakit::harness
