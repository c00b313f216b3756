#include "child.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dsakit::harness {
namespace {

using ChildClock = std::chrono::steady_clock;

struct Pipe {
  int ends[2] = {-1, -1}; ///< to read from, to write to
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(0);
    close(1);
  }
  /// Closed by an exec, so that no sibling holds it open.
  bool open() { return ::pipe2(ends, O_CLOEXEC) == 0; }
  void close(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
};

Status no_child(const char* what) {
  return {Code::device_error, std::string(what) + ": " + std::strerror(errno)};
}

/// Everything until the ends of both pipes; false where the time runs out first.
bool read_all(std::array<Pipe, 2>& pipes, ChildClock::time_point deadline, ChildEnd& end) {
  std::vector<char> block(1 << 20);
  std::string* texts[] = {&end.out, &end.error};
  while (pipes[0].ends[0] >= 0 || pipes[1].ends[0] >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - ChildClock::now()).count();
    if (left <= 0) return false;
    pollfd waiting[] = {{pipes[0].ends[0], POLLIN, 0}, {pipes[1].ends[0], POLLIN, 0}};
    if (::poll(waiting, 2, static_cast<int>(std::min<long long>(left, 1000))) <= 0) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      if (waiting[i].revents == 0) continue;
      const ssize_t count = ::read(waiting[i].fd, block.data(), block.size());
      if (count == 0 || (count < 0 && errno != EINTR)) pipes[i].close(0);
      if (count > 0) texts[i]->append(block.data(), static_cast<std::size_t>(count));
    }
  }
  return true;
}

[[noreturn]] void become(const std::vector<char*>& arguments, int nothing, int out, int error) {
  ::setpgid(0, 0); // Ctrl-C is for us alone, and one kill reaches its own children
  std::signal(SIGINT, SIG_DFL);
  if (::dup2(nothing, STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0 &&
      ::dup2(error, STDERR_FILENO) >= 0)
    ::execv(arguments[0], arguments.data());
  const char* why = std::strerror(errno);
  static_cast<void>(!::write(error, why, std::strlen(why)));
  ::_exit(127);
}

bool reap(pid_t child, int& status) {
  for (int i = 0; i < 500; ++i) {
    if (::waitpid(child, &status, WNOHANG) == child) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

} // namespace

Result<pid_t> fork_child(const std::function<void()>& body) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return no_child("fork");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) body();
  ::_exit(1);
}

void take_child(pid_t child, bool in_time, ChildEnd& end) {
  end.in_time = in_time && reap(child, end.status);
  if (end.in_time) return;
  if (::kill(-child, SIGKILL) != 0) ::kill(child, SIGKILL); // it has no group of its own
  // One that a driver holds fast even when killed is left to the system.
  static_cast<void>(reap(child, end.status));
}

Result<ChildEnd> run_forked(const std::function<void(int out, int error)>& body, int limit_s) {
  std::array<Pipe, 2> pipes;
  if (!pipes[0].open() || !pipes[1].open()) return no_child("pipe");
  const auto child = fork_child([&] {
    for (Pipe& pipe : pipes)
      pipe.close(0);
    body(pipes[0].ends[1], pipes[1].ends[1]);
  });
  DSAKIT_TRY(child);
  for (Pipe& pipe : pipes)
    pipe.close(1);
  ChildEnd end;
  const bool in_time = read_all(pipes, ChildClock::now() + std::chrono::seconds(limit_s), end);
  take_child(*child, in_time, end);
  return end;
}

Result<ChildEnd> run_command(const std::vector<std::string>& command, int limit_s) {
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str())); // execv does not write there
  arguments.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0) return no_child("/dev/null");
  auto end =
      run_forked([&](int out, int error) { become(arguments, nothing, out, error); }, limit_s);
  ::close(nothing);
  return end;
}

Status survived(const ChildEnd& end, int limit_s) {
  if (!end.in_time)
    return {Code::device_error, "found no end after " + std::to_string(limit_s) +
                                    " s, want one (--time-limit); it was killed"};
  if (WIFSIGNALED(end.status))
    return {Code::device_error, "its process was ended by signal " +
                                    std::to_string(WTERMSIG(end.status)) + ", " +
                                    strsignal(WTERMSIG(end.status))};
  return {};
}

Status exited(const ChildEnd& end) {
  return {Code::device_error,
          "its process ended with exit code " + std::to_string(WEXITSTATUS(end.status))};
}

} // namespace dsakit::harness
