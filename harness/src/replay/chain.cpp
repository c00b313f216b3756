#include "chain.hpp"

#include <algorithm>

#include "dsakit/reference/dense.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

/// The last columns of qkv_a.
Tensor k_pe_of(const Tensor& qkv_a) {
  const std::int64_t columns = qkv_a.shape[1];
  const std::int64_t width = std::min<std::int64_t>(columns, 64);
  Tensor k_pe(qkv_a.dtype, {qkv_a.shape[0], width});
  reference::take_columns(qkv_a.as<std::uint16_t>(), qkv_a.shape[0], columns, columns - width,
                          width, k_pe.as<std::uint16_t>());
  return k_pe;
}

} // namespace

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
    const auto ours = run.outputs.find(canonical);
    if (ours == run.outputs.end()) continue;
    links_[canonical].push_back({output.tensor, ours->second});
    if (canonical == "qkv_a") // no norm takes k_pe: it goes to the cache as it is
      links_["k_pe"].push_back({k_pe_of(output.tensor), k_pe_of(ours->second)});
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
