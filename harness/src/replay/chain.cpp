#include "chain.hpp"

#include <algorithm>
#include <optional>

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

/// What a later operation calls an output: of a rank of context parallelism its selection's slots
/// without gaps, and its share of what the ranks offer to a merge.
struct Alias {
  std::string_view output;
  std::string_view input;
};
constexpr Alias kAliases[] = {{"compact_slots", "slots"},
                              {"topk_indices", "rank_indices"},
                              {"dcp_scores", "rank_scores"},
                              {"latent", "rank_latent"},
                              {"lse", "rank_lse"}};

/// Where the input holds the recorded output: at 0 if it is all of it, at a rank's place if the
/// input has the outputs of ranks one after the other.
std::optional<std::ptrdiff_t> place_of(const Tensor& output, const Tensor& input) {
  const auto size = std::ssize(output.bytes), all = std::ssize(input.bytes);
  const bool stacked =
      input.shape.size() == output.shape.size() + 1 &&
      std::equal(output.shape.begin(), output.shape.end(), input.shape.begin() + 1);
  if (size != all && !stacked) return std::nullopt;
  for (std::ptrdiff_t at = 0; size > 0 && at + size <= all; at += size)
    if (std::equal(output.bytes.begin(), output.bytes.end(), input.bytes.begin() + at)) return at;
  return std::nullopt;
}

} // namespace

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
    links_[canonical].push_back({output.tensor, ours->second});
    for (const Alias& alias : kAliases)
      if (alias.output == canonical)
        links_[std::string(alias.input)].push_back({output.tensor, ours->second});
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
