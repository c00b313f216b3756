#include "formats.hpp"

#include <algorithm>

namespace dsakit::harness {

const Operation* find_recorded(std::string_view operation, const ContractValues& contract,
                               const std::vector<std::string>& tensors) {
  if (const Operation* dense = find_operation(operation, "bf16_576")) {
    const auto record = contract.find("mla_record");
    const bool is_dense = record != contract.end() && record->second == dense->format;
    return is_dense ? dense : find_operation(operation, "fp8_ds_mla");
  }
  const Operation* mxfp4 = find_operation(operation, "mxfp4");
  if (!mxfp4) return find_operation(operation);
  const auto layout = contract.find("index_page_layout");
  const bool of_mxfp4 = layout != contract.end() &&
                        (layout->second == "flat" || layout->second == "preshuffle64") &&
                        mxfp4->contract.find("index_page_layout") != std::string_view::npos;
  const bool packed = std::any_of(tensors.begin(), tensors.end(), [](const std::string& name) {
    return name == "index_q_packed" || name == "k_packed";
  });
  return of_mxfp4 || packed ? mxfp4 : find_operation(operation, "fp8");
}

const Operation* find_recorded(std::string_view operation, const ContractValues& contract,
                               const std::vector<TensorInfo>& inputs,
                               const std::vector<TensorInfo>& outputs) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : inputs)
    names.push_back(tensor.name());
  for (const TensorInfo& tensor : outputs)
    names.push_back(tensor.output());
  return find_recorded(operation, contract, names);
}

} // namespace dsakit::harness
