#include "feeds.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "dsakit/reference/dense.hpp"

namespace dsakit::harness {
namespace {

constexpr std::string_view kKeyPe = "k_pe"; // no norm takes it: it goes to the cache as it is

/// What a later operation calls an output: of a rank of context parallelism its selection's slots
/// without gaps, and its share of what the ranks offer to a merge.
struct Alias {
  std::string_view output;
  std::string_view input;
};
constexpr Alias kAliases[] = {{"compact_slots", "slots"},    {"topk_indices", "rank_indices"},
                              {"dcp_scores", "rank_scores"}, {"latent", "rank_latent"},
                              {"lse", "rank_lse"},           {"qkv_a", kKeyPe}};

} // namespace

std::vector<std::string> inputs_fed_by(const std::string& output) {
  std::vector<std::string> names = {output};
  for (const Alias& alias : kAliases)
    if (alias.output == output) names.emplace_back(alias.input);
  return names;
}

Tensor as_input(const Tensor& output, const std::string& input) {
  if (input != kKeyPe || output.shape.size() != 2) return output;
  const std::int64_t columns = output.shape[1];
  const std::int64_t width = std::min<std::int64_t>(columns, 64);
  Tensor k_pe(output.dtype, {output.shape[0], width});
  reference::take_columns(output.as<std::uint16_t>(), output.shape[0], columns, columns - width,
                          width, k_pe.as<std::uint16_t>());
  return k_pe;
}

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

} // namespace dsakit::harness
