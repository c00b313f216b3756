// Which of its formats a recorded operation has: FP8 and MXFP4 share names (docs/recordings.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// The entry of kOperations; nullptr where none has that name. Of two formats MXFP4's where the
/// operation takes a page layout and the contract's is flat or preshuffle64, or where one of its
/// `tensors` is index_q_packed or k_packed; else FP8's. Outputs by TensorInfo::output().
const Operation* find_recorded(std::string_view operation, const ContractValues& contract,
                               const std::vector<std::string>& tensors);
const Operation* find_recorded(std::string_view operation, const ContractValues& contract,
                               const std::vector<TensorInfo>& inputs,
                               const std::vector<TensorInfo>& outputs);

} // namespace dsakit::harness
