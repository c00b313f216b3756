#include "ulps.hpp"

#include <algorithm>
#include <numeric>

namespace dsakit::harness {

std::uint64_t UlpHistogram::lower_edge(std::size_t bin) {
  if (bin < 2 * kHalf) return bin;
  const std::size_t shift = bin / kHalf - 1;
  return static_cast<std::uint64_t>(bin - shift * kHalf) << shift;
}

std::optional<std::int64_t> UlpHistogram::p99() const {
  if (max_ < 0) return std::nullopt;
  const std::int64_t all = std::accumulate(bins_.begin(), bins_.end(), std::int64_t{0});
  // The place of the last of 99 in 100, rounded up; written so that it does not overflow.
  const std::int64_t place = all - all / 100;
  std::int64_t before = 0;
  for (std::size_t bin = 0; bin + 1 < bins_.size(); ++bin) {
    before += bins_[bin];
    if (before >= place) return std::min(max_, static_cast<std::int64_t>(lower_edge(bin + 1) - 1));
  }
  return max_;
}

std::vector<std::int64_t> UlpHistogram::by_power_of_two() const {
  if (max_ < 0) return {};
  std::vector<std::int64_t> counts(
      static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(max_))) + 1);
  for (std::size_t bin = 0; bin < bins_.size(); ++bin)
    if (bins_[bin] != 0)
      counts[static_cast<std::size_t>(std::bit_width(lower_edge(bin)))] += bins_[bin];
  return counts;
}

} // namespace dsakit::harness
