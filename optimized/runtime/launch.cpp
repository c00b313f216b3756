#include "dsakit/optimized/launch.hpp"

#include <string>

namespace dsakit::optimized {
namespace {

struct LaunchError {
  bool pending = false;
  std::string text;
};
thread_local LaunchError last;

constexpr int kLaunchFailure = 719; // hipErrorLaunchFailure

} // namespace

void set_launch_error(const Status& status) {
  if (!status) last = {true, status.what()};
}

int take_launch_error() {
  const bool pending = last.pending;
  last.pending = false;
  return pending ? kLaunchFailure : 0;
}

const char* launch_error_text() {
  return last.text.c_str();
}

} // namespace dsakit::optimized
