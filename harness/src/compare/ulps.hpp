// A histogram of distances in steps of a dtype: exact up to 255, above in bins whose lower edges
// have 8 significant bits, so that no bin lies on both sides of a power of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace dsakit::harness {

class UlpHistogram {
public:
  void add(std::int64_t steps, std::int64_t at) {
    ++bins_[bin(static_cast<std::uint64_t>(steps))];
    if (steps > max_) {
      max_ = steps;
      at_ = at;
    }
  }

  /// None of all these where nothing was added.
  std::optional<std::int64_t> max() const { return max_ < 0 ? std::nullopt : std::optional(max_); }
  std::optional<std::int64_t> at() const { return max_ < 0 ? std::nullopt : std::optional(at_); }

  /// The upper edge of the bin that the 99th of 100 elements is in.
  std::optional<std::int64_t> p99() const;

  /// By powers of two: 0, 1, 2 to 3, 4 to 7, ... steps, up to max().
  std::vector<std::int64_t> by_power_of_two() const;

private:
  static constexpr int kBits = 8;
  static constexpr std::size_t kHalf = std::size_t{1} << (kBits - 1);
  static constexpr std::size_t kBins = (64 - kBits + 2) * kHalf;

  static std::size_t bin(std::uint64_t steps) {
    const int shift = std::max(static_cast<int>(std::bit_width(steps)) - kBits, 0);
    return static_cast<std::size_t>(shift) * kHalf + static_cast<std::size_t>(steps >> shift);
  }
  static std::uint64_t lower_edge(std::size_t bin);

  std::vector<std::int64_t> bins_ = std::vector<std::int64_t>(kBins);
  std::int64_t max_ = -1;
  std::int64_t at_ = 0;
};

} // namespace dsakit::harness
