// What the tensors of a replayed operation must look like, and which ids they may hold.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// The tensors of one operation, as one argument.
struct OperationTensors {
  const std::string& path; ///< the file, for messages
  const OperationId& id;
  const std::vector<TensorInfo>& inputs;
  const std::vector<TensorInfo>& outputs;
  const Attributes& config; ///< of the file
};

/// Contract and config keys, required tensors, dtypes and shapes of an operation in kOperations. ok
/// for operations that are only recorded, and where check_replayable is not ok.
Status check_structure(const OperationTensors& operation, const ContractValues& contract);

/// What the shapes of a dense operation's tensors must be together, where kTensorRules cannot say
/// it: check_structure asks this last. ok for the others.
Status check_dense(const OperationTensors& operation);

/// unsupported for MLA rows of bf16, which this version records and does not replay.
Status check_replayable(const OperationTensors& operation, const ContractValues& contract);

/// Nothing of a Tensor that holds none: its shape is that of one element.
inline std::span<const std::int32_t> int32s(const Tensor& tensor) {
  return {tensor.as<std::int32_t>(), tensor.bytes.size() / sizeof(std::int32_t)};
}

/// The request of each gathered row, -1 for a row that belongs to none and is skipped: the one that
/// row_request names if its range holds the row, or without row_request the one whose range does.
std::vector<std::int64_t> gather_requests(std::span<const std::int32_t> cu_seq_lens,
                                          std::span<const std::int32_t> row_request,
                                          std::int64_t rows);

/// Finds the payload of a tensor of the operation.
using TensorLookup = std::function<Result<Tensor>(const TensorInfo&)>;

/// Ids of an operation that passed check_structure (spec 11, "invalid ids").
Status check_ids(const OperationTensors& operation, const ContractValues& contract,
                 const TensorLookup& payload);

} // namespace dsakit::harness
