#include "topk_rows.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace dsakit::harness {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// NaN sorts below -infinity, which is the lowest value of a float: as a number below all.
constexpr double kNan = -kUnbounded;
constexpr double kMinusInfinity = std::numeric_limits<double>::lowest();

/// The score as a number, moved by its band up (1), down (-1) or not at all (0); one that has no
/// bound may be anything.
double key(const TopkRow& row, std::int64_t i, double direction) {
  const double score = row.scores[i];
  const double band = row.band ? row.band[i] : 0;
  if (!std::isfinite(band)) return direction * kUnbounded;
  if (std::isnan(score)) return kNan;
  if (score == -kUnbounded) return kMinusInfinity;
  return score + direction * band;
}

std::vector<double> keys(const TopkRow& row, double direction) {
  std::vector<double> values(static_cast<std::size_t>(std::max<std::int64_t>(row.length, 0)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = key(row, static_cast<std::int64_t>(i), direction);
  return values;
}

/// The n-th largest; n > 0.
double nth_largest(std::vector<double> values, std::int64_t n) {
  std::nth_element(values.begin(), values.begin() + (n - 1), values.end(), std::greater<>());
  return values[static_cast<std::size_t>(n - 1)];
}

} // namespace

void mark_valid(const TopkRow& row, const std::int32_t* positions, std::uint8_t* valid) {
  const std::vector<double> highest = keys(row, 1);
  const std::vector<double> lowest = row.band ? keys(row, -1) : highest;
  std::vector<bool> taken(highest.size());
  std::vector<std::int64_t> places; // of positions that may be among the best
  std::int64_t padding = std::max(row.k - static_cast<std::int64_t>(taken.size()), std::int64_t{0});
  for (std::int64_t i = 0; i < row.k; ++i) {
    const std::int32_t position = positions[i];
    if (position == -1) {
      valid[i] = padding-- > 0;
      continue;
    }
    valid[i] = position >= 0 && position < row.length && !taken[static_cast<std::size_t>(position)];
    if (!valid[i]) continue;
    taken[static_cast<std::size_t>(position)] = true;
    places.push_back(i);
  }

  // The best of those left out, at their worst, against the worst of those taken, at their best.
  // Whatever stands in an invalid place kept one of the best out already.
  std::vector<double> left_out;
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (!taken[i]) left_out.push_back(lowest[i]);
  std::make_heap(left_out.begin(), left_out.end());
  const auto pop = [&] {
    std::pop_heap(left_out.begin(), left_out.end());
    left_out.pop_back();
  };
  for (std::int64_t n = std::count(valid, valid + row.k, 0); n > 0 && !left_out.empty(); --n)
    pop();
  const auto at_best = [&](std::int64_t place) {
    return highest[static_cast<std::size_t>(positions[place])];
  };
  std::stable_sort(places.begin(), places.end(),
                   [&](std::int64_t a, std::int64_t b) { return at_best(a) > at_best(b); });
  while (!places.empty() && !left_out.empty() && at_best(places.back()) < left_out.front()) {
    valid[places.back()] = 0;
    places.pop_back();
    pop();
  }
}

void count_ties(const TopkRow& row, std::int64_t index, ReportTies& ties) {
  const std::vector<double> scores = keys({row.scores, nullptr, row.length, row.k}, 0);
  const std::int64_t wanted = std::min(row.k, static_cast<std::int64_t>(scores.size()));
  if (wanted == 0) return;
  const double threshold = nth_largest(scores, wanted);
  const std::int64_t group = std::count(scores.begin(), scores.end(), threshold);
  const std::int64_t places =
      wanted -
      std::count_if(scores.begin(), scores.end(), [&](double score) { return score > threshold; });
  ++ties.groups[group];
  if (group <= places) return;
  ++ties.rows;
  if (group <= ties.largest) return;
  ties.largest = group;
  ties.places = places;
  ties.row = index;
}

} // namespace dsakit::harness
