#include "interrupt.hpp"

#include <csignal>
#include <string_view>

#include <unistd.h>

#include "dsakit/harness/output.hpp"
#include "exit_codes.hpp"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void ask_to_stop(int) {
  if (interrupted.exchange(true)) {
    dsakit::harness::remove_unfinished_outputs();
    ::_exit(kExitInterrupted);
  }
  constexpr std::string_view kNote =
      "\ndsakit: interrupted: ends after what is at work, with a partial report; again: at once\n";
  // Nobody hears of a failure here.
  static_cast<void>(!::write(STDERR_FILENO, kNote.data(), kNote.size()));
}

} // namespace

const std::atomic<bool>& catch_interrupt() {
  std::signal(SIGINT, ask_to_stop);
  return interrupted;
}
