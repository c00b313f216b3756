// Weights from the host to the device, fp8 as bf16.
#include <string>

#include "dsakit/optimized/weight_dequant.hpp"
#include "layer/state.hpp"

namespace dsakit::optimized {
namespace {

constexpr std::int64_t kScaleBlock = 128;

std::string extents(std::int64_t outputs, std::int64_t inputs) {
  return "[" + std::to_string(outputs) + ", " + std::to_string(inputs) + "]";
}

Status check_weight(const std::string& name, const HostWeight& weight, const DeviceWeight& want) {
  if (weight.outputs != want.outputs || weight.inputs != want.inputs)
    return bad_input("weight " + name + ": found " + extents(weight.outputs, weight.inputs) +
                     ", want " + extents(want.outputs, want.inputs));
  if (weight.format == WeightFormat::bf16) return {};
  if (name == "wk_index" || name == "wv_index")
    return unsupported("weight " + name +
                       ": found fp8, want bf16: the indexer's key and weight projections are not "
                       "quantised");
  if (weight.scales == nullptr) return bad_input("weight " + name + ": found fp8 without scales");
  return {};
}

/// Device memory until the end of the scope.
class Scratch {
public:
  explicit Scratch(Device& device) : device_(device) {}
  ~Scratch() {
    if (memory_) device_.release(memory_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status upload(const void* host, std::size_t bytes) {
    const auto memory = device_.allocate(bytes);
    DSAKIT_TRY(memory);
    memory_ = *memory;
    return device_.upload(memory_, host, bytes);
  }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(memory_);
  }

private:
  Device& device_;
  void* memory_ = nullptr;
};

Status upload_fp8(LayerState& state, const HostWeight& weight, const DeviceWeight& to) {
  const auto blocks = [](std::int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
  const std::int64_t scales = weight.format == WeightFormat::fp8_channel
                                  ? weight.outputs
                                  : blocks(weight.outputs) * blocks(weight.inputs);
  Scratch codes(state.device);
  DSAKIT_TRY(codes.upload(weight.values, static_cast<std::size_t>(weight.outputs * weight.inputs)));
  Scratch device_scales(state.device);
  DSAKIT_TRY(device_scales.upload(weight.scales, static_cast<std::size_t>(scales) * sizeof(float)));
  WeightDequantParams params{};
  params.codes = codes.as<std::uint8_t>();
  params.scales = device_scales.as<float>();
  params.weight = to.values;
  params.outputs = weight.outputs;
  params.inputs = weight.inputs;
  params.format = weight.format;
  params.encoding = weight.encoding;
  DSAKIT_TRY(launch(state, params));
  return state.device.synchronize(); // the codes go
}

} // namespace

Status check_weights(const LayerState& state, const HostLayerWeights& weights) {
  for (const auto& [name, want] : state.weights) {
    const auto given = weights.projections.find(name);
    if (given == weights.projections.end()) return bad_input("weight " + name + " is missing");
    DSAKIT_TRY(check_weight(name, given->second, want));
  }
  for (const auto& [name, want] : state.norms) {
    const auto given = weights.norms.find(name);
    if (given == weights.norms.end()) return bad_input("weight " + name + " is missing");
    if (const auto width = static_cast<std::int64_t>(given->second.size()); width != want.width)
      return bad_input("weight " + name + ": found [" + std::to_string(width) + "], want [" +
                       std::to_string(want.width) + "]");
  }
  for (const auto& [name, weight] : weights.projections)
    if (!state.weights.count(name))
      return bad_input("weight " + name + ": the layer has none of that name");
  for (const auto& [name, norm] : weights.norms)
    if (!state.norms.count(name))
      return bad_input("weight " + name + ": the layer has none of that name");
  return {};
}

Status upload_weights(LayerState& state, const HostLayerWeights& weights) {
  for (const auto& [name, to] : state.weights) {
    const HostWeight& from = weights.projections.at(name);
    DSAKIT_TRY(from.format == WeightFormat::bf16
                   ? state.device.upload(to.values, from.values,
                                         static_cast<std::size_t>(to.outputs * to.inputs) *
                                             sizeof(std::uint16_t))
                   : upload_fp8(state, from, to));
  }
  for (const auto& [name, to] : state.norms) {
    const std::vector<float>& from = weights.norms.at(name);
    DSAKIT_TRY(state.device.upload(to.values, from.data(), from.size() * sizeof(float)));
  }
  return state.device.synchronize();
}

} // namespace dsakit::optimized
