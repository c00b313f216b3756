#include "dsakit/harness/operations.hpp"

#include <algorithm>

#include "../replay/names.hpp"
#include "adapters.hpp"

namespace dsakit::harness {

const RecordedTensor& OperationData::output(std::string_view name) const {
  return std::find_if(tensors.outputs.begin(), tensors.outputs.end(),
                      [&](const auto& item) {
                        return output_of(item.first, item.second.attributes) == name;
                      })
      ->second;
}

Result<std::vector<double>> OperationAdapter::bound(const OperationData& data,
                                                    std::string_view output, Accumulation) const {
  return bad_input(data.id.operation + " has no derived bound for " + std::string(output) +
                   ", want gate exact");
}

const OperationAdapter* find_adapter(std::string_view operation) {
  if (operation == "index_cache_write") return &index_cache_write_adapter();
  if (operation == "index_cache_gather") return &index_cache_gather_adapter();
  if (operation == "index_logits_decode") return &index_logits_decode_adapter();
  return nullptr;
}

} // namespace dsakit::harness
