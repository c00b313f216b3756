#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dsakit::harness {

double quantile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::optional<Interval> median_interval(std::vector<double> samples, double confidence) {
  std::sort(samples.begin(), samples.end());
  const auto n = static_cast<double>(samples.size());
  // P(at most `left` of n samples lie below the median), term by term, in logarithms: 2^-n of many
  // samples is no double.
  double tail = 0;
  std::size_t left = 0; // samples that may be left out on either side
  for (double k = 0; k < n / 2; ++k) {
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                     n * std::log(2.0));
    if (1 - 2 * tail < confidence) break;
    left = static_cast<std::size_t>(k) + 1;
  }
  if (left == 0) return std::nullopt;
  return Interval{samples[left - 1], samples[samples.size() - left]};
}

} // namespace dsakit::harness
