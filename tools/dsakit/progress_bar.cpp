#include "progress_bar.hpp"

#include <cstdio>

#include <unistd.h>

#include "dsakit/harness/text.hpp"

namespace {

/// "12 s", "3 min", "2.5 h"; the first hundredth of the work says too little.
std::string time_left(double done, double elapsed_s) {
  if (done < 0.01) return "?";
  const double left = elapsed_s * (1 - done) / done;
  char text[16];
  if (left < 100)
    std::snprintf(text, sizeof text, "%.0f s", left);
  else if (left < 6000)
    std::snprintf(text, sizeof text, "%.0f min", left / 60);
  else
    std::snprintf(text, sizeof text, "%.1f h", left / 3600);
  return text;
}

} // namespace

ProgressBar::~ProgressBar() {
  if (visible_) std::fprintf(stderr, "\r\033[K");
}

dsakit::harness::Progress ProgressBar::progress() {
  if (!isatty(STDERR_FILENO)) return {};
  return [this](double done, const std::string& what) { draw(done, what); };
}

void ProgressBar::draw(double done, const std::string& what) {
  const auto now = Clock::now();
  if (done < 1 && what == what_ && now - drawn_ < std::chrono::milliseconds(100)) return;
  what_ = what;
  drawn_ = now;
  visible_ = true;
  constexpr int kWidth = 20;
  const int filled = static_cast<int>(done * kWidth);
  const double elapsed_s = std::chrono::duration<double>(now - begin_).count();
  // Below 80 columns: a line that wraps cannot be drawn over.
  std::fprintf(stderr, "\r\033[K[%-*.*s] %3.0f %% ETA %-7s %.35s", kWidth, filled,
               "####################", 100 * done, time_left(done, elapsed_s).c_str(),
               dsakit::harness::escaped(what).c_str());
}
