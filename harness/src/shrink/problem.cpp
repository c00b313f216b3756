#include "problem.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "../recording/structure.hpp"
#include "../recording/tensor_rules.hpp"
#include "../replay/names.hpp"

namespace dsakit::harness {
namespace {

std::vector<TensorInfo> infos(const OperationId& id, Side side,
                              const std::map<std::string, RecordedTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, recorded] : tensors) {
    TensorInfo& info = infos.emplace_back();
    info.object = info.stored_as = object_path(id, side, name);
    info.dtype = recorded.tensor.dtype;
    info.shape = recorded.tensor.shape;
    info.axes = recorded.axes;
    info.attributes = recorded.attributes;
  }
  return infos;
}

template <class T>
bool renumber_as(Tensor& ids, const Indices& kept, std::int64_t extent,
                 const std::function<bool(std::int64_t)>& is_used) {
  const auto places = new_places(kept, extent);
  const auto now = static_cast<std::int64_t>(kept.size());
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    T& id = ids.as<T>()[i];
    if (id < 0) continue;
    if (id >= extent) {
      id = static_cast<T>(id - extent + now);
    } else {
      const std::int64_t place = places[static_cast<std::size_t>(id)];
      if (place < 0 && is_used(i)) return false;
      id = static_cast<T>(place);
    }
  }
  return true;
}

} // namespace

std::int64_t Problem::bytes() const {
  std::size_t sum = 0;
  for (const auto* side : {&tensors.inputs, &tensors.outputs})
    for (const auto& [name, recorded] : *side)
      sum += recorded.tensor.bytes.size();
  return static_cast<std::int64_t>(sum);
}

Status check(const Problem& problem) {
  const std::string nowhere = "shrunk";
  const auto inputs = infos(problem.id, Side::inputs, problem.tensors.inputs);
  const auto outputs = infos(problem.id, Side::outputs, problem.tensors.outputs);
  const OperationTensors tensors{nowhere, problem.id, inputs, outputs, problem.config};
  DSAKIT_TRY(check_structure(tensors, problem.contract));
  return check_ids(tensors, problem.contract, [&](const TensorInfo& info) -> Result<Tensor> {
    const bool is_output = info.object == object_path(problem.id, Side::outputs, info.name());
    return (is_output ? problem.tensors.outputs : problem.tensors.inputs).at(info.name()).tensor;
  });
}

Indices all_of(std::int64_t extent) {
  Indices indices(static_cast<std::size_t>(extent));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

std::vector<std::int64_t> new_places(const Indices& kept, std::int64_t extent) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(extent), -1);
  for (std::size_t i = 0; i < kept.size(); ++i)
    places[static_cast<std::size_t>(kept[i])] = static_cast<std::int64_t>(i);
  return places;
}

void keep(Tensor& tensor, std::size_t axis, const Indices& kept) {
  std::int64_t outer = 1;
  for (std::size_t i = 0; i < axis; ++i)
    outer *= tensor.shape[i];
  const std::int64_t all = tensor.shape[axis];
  const std::size_t inner =
      outer > 0 && all > 0 ? tensor.bytes.size() / static_cast<std::size_t>(outer * all) : 0;
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(outer) * kept.size() * inner);
  for (std::int64_t o = 0; o < outer; ++o)
    for (const std::int64_t index : kept) {
      const std::byte* from =
          tensor.bytes.data() + static_cast<std::size_t>(o * all + index) * inner;
      bytes.insert(bytes.end(), from, from + inner);
    }
  tensor.bytes = std::move(bytes);
  tensor.shape[axis] = static_cast<std::int64_t>(kept.size());
}

void for_each_with(Problem& problem, std::string_view extent,
                   const std::function<void(Tensor&, std::size_t)>& visit) {
  const Operation& operation = problem.data().operation();
  for (auto* side : {&problem.tensors.inputs, &problem.tensors.outputs})
    for (auto& [name, recorded] : *side)
      for (const TensorRule& rule : kTensorRules) {
        if (!applies(rule, operation) || rule.tensor != output_of(name, recorded.attributes))
          continue;
        const auto axes = split_names(rule.shape);
        for (std::size_t axis = 0; axis < axes.size(); ++axis)
          if (axes[axis] == extent) visit(recorded.tensor, axis);
      }
}

std::int64_t extent_of(const Problem& problem, std::string_view extent) {
  for (const auto* side : {&problem.tensors.inputs, &problem.tensors.outputs})
    for (const auto& [name, recorded] : *side)
      if (const auto axis = axis_of(problem, output_of(name, recorded.attributes), extent))
        return recorded.tensor.shape[*axis];
  return 0;
}

std::optional<std::size_t> axis_of(const Problem& problem, std::string_view output,
                                   std::string_view extent) {
  const Operation& operation = problem.data().operation();
  for (const TensorRule& rule : kTensorRules) {
    if (!applies(rule, operation) || rule.tensor != output) continue;
    const auto axes = split_names(rule.shape);
    const auto found = std::find(axes.begin(), axes.end(), extent);
    if (found != axes.end()) return static_cast<std::size_t>(found - axes.begin());
  }
  return std::nullopt;
}

void keep_extent(Problem& problem, std::string_view extent, const Indices& kept) {
  for_each_with(problem, extent,
                [&](Tensor& tensor, std::size_t axis) { keep(tensor, axis, kept); });
}

bool renumber(Tensor& ids, const Indices& kept, std::int64_t extent,
              const std::function<bool(std::int64_t)>& is_used) {
  return ids.dtype == Dtype::int64 ? renumber_as<std::int64_t>(ids, kept, extent, is_used)
                                   : renumber_as<std::int32_t>(ids, kept, extent, is_used);
}

} // namespace dsakit::harness
