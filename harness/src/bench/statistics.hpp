// Order statistics of times: no distribution is assumed.
#pragma once

#include <optional>
#include <vector>

namespace dsakit::harness {

/// Value at the part `p` of the sorted samples, between two of them in proportion.
double quantile(const std::vector<double>& sorted, double p);

struct Interval {
  double low = 0, high = 0;
};

/// Two order statistics that hold the median of what the samples were drawn from between them, with
/// at least that confidence: the number of samples below it is binomial, whatever their
/// distribution. None where so few samples cannot say so: 8 are needed for 99 %.
std::optional<Interval> median_interval(std::vector<double> samples, double confidence);

} // namespace dsakit::harness
