// A child process with a time limit: kernels of a replay and candidates of a sweep run in one.
#pragma once

#include <algorithm>
#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// How a child ended, and what it wrote.
struct ChildEnd {
  bool in_time = true; ///< false: it was killed
  int status = 0;      ///< as waitpid gives it
  std::string out;
  std::string error;
};

/// Forks; the child calls `body` with the write ends of two pipes, `out` and `error`, and exits
/// with 1 should that return. Everything in the child's process group is killed when `limit_s`
/// seconds are over; the child itself also when the calling thread ends. device_error where there
/// is no process or no pipe to be had.
Result<ChildEnd> run_forked(const std::function<void(int out, int error)>& body, int limit_s);

/// Forks; the child calls `body` and exits with 1 should that return. It ends with the calling
/// thread. device_error where there is no process to be had.
Result<pid_t> fork_child(const std::function<void()>& body);
/// Takes a child away, by force where it was not `in_time` or does not end within five seconds.
void take_child(pid_t child, bool in_time, ChildEnd& end);

/// Moves `count` bytes: `move` does what there is to be done behind so many, as read, write, recv
/// and send do. False where the other end is closed, or fails.
template <class Move>
bool move_all(std::size_t count, const Move& move) {
  for (std::size_t done = 0; done < count;) {
    const ssize_t moved = move(done);
    if (moved == 0 || (moved < 0 && errno != EINTR && errno != EAGAIN)) return false;
    done += static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
  }
  return true;
}

/// Runs a program with its arguments, in a process group of its own, nothing on its standard input.
/// May be called from any thread.
Result<ChildEnd> run_command(const std::vector<std::string>& command, int limit_s);

/// device_error for a child that was killed or that a signal ended.
Status survived(const ChildEnd& end, int limit_s);
/// device_error for a child that ended by itself although more was wanted of it.
Status exited(const ChildEnd& end);

} // namespace dsakit::harness
