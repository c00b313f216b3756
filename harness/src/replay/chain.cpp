#include "chain.hpp"

#include "names.hpp"

namespace dsakit::harness {

RecordedOperation Chain::feed(RecordedOperation recorded) const {
  for (auto& [name, input] : recorded.inputs)
    if (const auto links = links_.find(name); links != links_.end())
      for (const Link& link : links->second)
        if (link.recorded.bytes == input.tensor.bytes) {
          input.tensor.bytes = link.ours.bytes; // the dtype stays as recorded: codes may be uint8
          break;
        }
  return recorded;
}

void Chain::take(const RecordedOperation& recorded, const KernelRun& run) {
  for (const auto& [name, output] : recorded.outputs) {
    const std::string canonical = output_of(name, output.attributes);
    if (const auto ours = run.outputs.find(canonical); ours != run.outputs.end())
      links_[canonical].push_back({output.tensor, ours->second});
  }
}

} // namespace dsakit::harness
