// A buffer that starts poisoned and lies between canaries, in one allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "support/same_bits.hpp"

namespace dsakit::testing {

template <class T>
class Guarded {
public:
  Guarded(std::size_t size, T poison, T canary)
      : cells_(size + 2 * kPad, canary), size_(size), canary_(canary) {
    std::fill_n(data(), size, poison);
  }

  T* data() { return cells_.data() + kPad; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }

  /// No canary was overwritten.
  bool intact() const {
    const auto same = [this](const T& cell) { return same_bits(cell, canary_); };
    return std::all_of(cells_.begin(), cells_.begin() + kPad, same) &&
           std::all_of(cells_.end() - kPad, cells_.end(), same);
  }

private:
  static constexpr std::ptrdiff_t kPad = 256;
  std::vector<T> cells_;
  std::size_t size_;
  T canary_;
};

} // namespace dsakit::testing
