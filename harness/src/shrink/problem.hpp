// One operation in memory, to be made smaller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

struct Problem {
  OperationId id;
  ContractValues contract;
  Attributes config;
  RecordedOperation tensors;

  OperationData data() const { return {id, contract, tensors, config}; }
  Tensor& input(const char* name) { return tensors.inputs.at(name).tensor; }
  const Tensor& input(const char* name) const { return tensors.inputs.at(name).tensor; }
  bool has(const char* name) const { return tensors.inputs.contains(name); }
  std::int64_t page_size() const { return *parse_page_size(contract); }
  /// BYTES of all tensors.
  std::int64_t bytes() const;
};

/// What RecordingReader says of such a recording: keys, shapes, ids.
Status check(const Problem& problem);

/// Positions along an axis, ascending.
using Indices = std::vector<std::int64_t>;

Indices all_of(std::int64_t extent);

/// Where an index that is kept comes to lie; -1 for the others.
std::vector<std::int64_t> new_places(const Indices& kept, std::int64_t extent);

/// Keeps those positions of an axis.
void keep(Tensor& tensor, std::size_t axis, const Indices& kept);

/// Every tensor with that extent of kTensorRules, and which of its axes it is.
void for_each_with(Problem& problem, std::string_view extent,
                   const std::function<void(Tensor&, std::size_t axis)>& visit);
/// 0 where no tensor has it.
std::int64_t extent_of(const Problem& problem, std::string_view extent);
/// Which axis of that output it is.
std::optional<std::size_t> axis_of(const Problem& problem, std::string_view output,
                                   std::string_view extent);
/// Keeps those positions of an extent in every tensor.
void keep_extent(Problem& problem, std::string_view extent, const Indices& kept);

/// The values of a page table, of slots, of ids: each that was `kept` becomes its new place, each
/// at or beyond `extent` lies as far beyond the new one, each negative one stays. False where
/// another occurs that `is_used`.
bool renumber(Tensor& ids, const Indices& kept, std::int64_t extent,
              const std::function<bool(std::int64_t element)>& is_used);

} // namespace dsakit::harness
