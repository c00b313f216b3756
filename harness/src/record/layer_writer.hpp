// Puts the tensors of a layer where recordings keep them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "../import/layer_places.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/reference/layer_config.hpp"

namespace dsakit::harness {

/// Names of all tensors that a step of such a layer has, caches as index_cache_before and _after.
std::set<std::string> layer_tensors(const LayerKind& kind);

/// What a recording calls the scales of a quantised weight.
inline std::string scale_of(const std::string& weight) {
  return weight + "_scale";
}

/// Writes each tensor of one step to the first of its places and links the others.
class LayerWriter {
public:
  LayerWriter(RecordingWriter& writer, const LayerKind& kind, std::int64_t step);

  Status put(const std::string& name, const Tensor& tensor);
  /// `name` has the bytes of `other`, which was put.
  Status put_same(const std::string& name, const std::string& other);
  /// The weights, and their scales, are stored at their weight_path.
  Status link_weights(const reference::LayerWeights& weights);
  /// A derived input of one or more operations.
  Status input(const std::vector<std::string>& operations, const std::string& name,
               const Tensor& tensor);

private:
  Status add(const std::string& object, const Tensor& tensor, std::vector<std::string> axes,
             const Attributes& attributes);
  std::string object_of(const Placement& placement) const {
    return object_path({step_, placement.operation}, placement.side, placement.name);
  }

  RecordingWriter& writer_;
  std::int64_t step_;
  std::string prefix_;
  std::map<std::string, std::vector<Placement>> placements_; ///< by prefixed tensor
  std::map<std::string, std::string> objects_;               ///< tensor -> where it is stored
};

} // namespace dsakit::harness
