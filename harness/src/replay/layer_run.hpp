// The operations of a recorded step as one run of the layer on a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/optimized/layer.hpp"
#include "names.hpp"

namespace dsakit::harness {

/// 0 without requests.
inline std::int64_t longest_of(const std::vector<std::int32_t>& lens) {
  return lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
}

/// A layer put together from what its operations were fed: weights, caches, tables, hidden states.
/// An adapter, so that it runs wherever kernels do; it has no reference of its own, since each of
/// its operations has one.
class RecordedLayer final : public OperationAdapter {
public:
  /// Of one step, under its contract with mla_scale_read. unsupported: with what the step lacks of
  /// a layer, or what of it does not go together. bad_input: lengths that cannot be.
  static Result<RecordedLayer> read(const RecordingReader& reader, std::int64_t step,
                                    const ContractValues& contract);

  Result<std::vector<Expected>> reference(const OperationData& data) const override;
  /// outputs: those of all operations, and the keys that were gathered for prefill. Runs again,
  /// with the rows cut into other launches and some of them padding: what changes is `stray`.
  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override;

private:
  RecordedLayer(LayerContract contract, std::map<std::string, RecordedOperation> parts,
                const Attributes& config)
      : contract_(contract), parts_(std::move(parts)), config_values_(config) {}

  Status check() const;
  Status check_lens(const std::string& path, std::int64_t step) const;
  const Tensor& input(const std::string& operation, const std::string& name) const {
    return parts_.at(operation).inputs.at(name).tensor;
  }
  const Tensor& output(const std::string& operation, const std::string& name) const;
  bool has(const std::string& operation) const { return parts_.count(operation) != 0; }
  /// query_lens or seq_lens.
  std::vector<std::int32_t> int32s(const std::string& lens) const;
  /// Notes in `run` where another arrangement of the same rows selects otherwise, and what of
  /// padding is not cleared. `hidden`: the hidden states of `step`, which do not stay.
  Status rearrange(optimized::Device& device, const optimized::LayerStep& step,
                   std::uint16_t* hidden, KernelRun& run) const;
  const std::string& logits() const;
  const Tensor& index_table() const;
  optimized::LayerConfig config() const;
  optimized::HostLayerWeights weights() const;

  LayerContract contract_;
  std::map<std::string, RecordedOperation> parts_; ///< by operation, outputs as shapes alone
  Attributes config_values_;
  std::map<std::string, std::vector<float>> norms_; ///< widened, by the weight's name
};

} // namespace dsakit::harness
