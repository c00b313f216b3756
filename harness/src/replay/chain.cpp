#include "chain.hpp"

#include <algorithm>

#include "feeds.hpp"
#include "names.hpp"

namespace dsakit::harness {
RecordedOperation Chain::feed(RecordedOperation recorded) const {
  for (auto& [name, input] : recorded.inputs)
    if (const auto links = links_.find(name); links != links_.end())
      for (const Link& link : links->second)
        if (const auto place = place_of(link.recorded, input.tensor)) {
          // The dtype stays as recorded: codes may be uint8.
          std::copy(link.ours.bytes.begin(), link.ours.bytes.end(),
                    input.tensor.bytes.begin() + *place);
          break;
        }
  return recorded;
}

void Chain::take(const RecordedOperation& recorded, const KernelRun& run) {
  for (const auto& [name, output] : recorded.outputs) {
    const std::string canonical = output_of(name, output.attributes);
    const auto ours = run.outputs.find(canonical);
    if (ours == run.outputs.end() || ours->second.bytes.size() != output.tensor.bytes.size())
      continue;
    for (const std::string& input : inputs_fed_by(canonical))
      links_[input].push_back({as_input(output.tensor, input), as_input(ours->second, input)});
  }
}

void Chain::take_keys(const RecordedOperation& recorded, const KernelRun& run) {
  for (const char* name : {"k_fp8", "k_packed", "k_scale"}) {
    const auto input = recorded.inputs.find(name);
    const auto ours = run.outputs.find(name);
    if (input != recorded.inputs.end() && ours != run.outputs.end() &&
        input->second.tensor.shape == ours->second.shape)
      links_[name].push_back({input->second.tensor, ours->second});
  }
}

} // namespace dsakit::harness
