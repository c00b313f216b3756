// How far a run is, for who watches it.
#pragma once

#include <chrono>
#include <string>

#include "dsakit/harness/progress.hpp"

/// A bar with the time that is left, on standard error where that is a terminal; nothing elsewhere.
class ProgressBar {
public:
  ProgressBar() = default;
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar(); ///< wipes it

  /// Draws on this bar, which must outlive it; empty where nobody would see it.
  dsakit::harness::Progress progress();

private:
  using Clock = std::chrono::steady_clock;

  void draw(double done, const std::string& what);

  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_{};
  std::string what_;
  bool visible_ = false;
};
