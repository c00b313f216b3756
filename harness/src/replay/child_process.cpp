#include "child_process.hpp"

#include <csignal>
#include <cstring>

#include <tbb/global_control.h>
#include <unistd.h>

#include "../process/child.hpp"
#include "kernel_wire.hpp"

namespace dsakit::harness {
namespace {

/// false: there are fewer bytes than that takes.
template <class... Ts>
bool read_from(const std::string& text, Ts&... values) {
  std::size_t at = 0;
  WireReader wire([&](void* bytes, std::size_t count) {
    if (text.size() - at < count) return false;
    std::memcpy(bytes, text.data() + at, count);
    at += count;
    return true;
  });
  wire(values...);
  return wire.fine();
}

[[noreturn]] void be_child(const std::function<Result<std::string>()>& body, int descriptor) {
  std::signal(SIGINT, SIG_DFL);
  const auto result = body();
  WireWriter wire([&](const void* bytes, std::size_t count) {
    return move_all(count, [&](std::size_t done) {
      return ::write(descriptor, static_cast<const char*>(bytes) + done, count - done);
    });
  });
  wire(result ? Code::ok : result.status().code(), result ? *result : result.status().what());
  ::_exit(0);
}

} // namespace

void end_worker_threads() {
  tbb::task_scheduler_handle scheduler{tbb::attach{}};
  tbb::finalize(scheduler, std::nothrow);
}

Result<std::string> run_in_child(const std::function<Result<std::string>()>& body, int limit_s) {
  end_worker_threads();
  const auto end = run_forked([&](int out, int) { be_child(body, out); }, limit_s);
  DSAKIT_TRY(end);
  DSAKIT_TRY(survived(*end, limit_s));
  Code code{};
  std::string text;
  if (!read_from(end->out, code, text)) return exited(*end);
  if (code != Code::ok) return Status(code, text);
  return text;
}

std::string serialise(const KernelRun& run) {
  std::string text;
  WireWriter wire([&](const void* bytes, std::size_t count) {
    text.append(static_cast<const char*>(bytes), count);
    return true;
  });
  wire(run);
  return text;
}

KernelRun parse_kernel_run(const std::string& bytes) {
  KernelRun run;
  read_from(bytes, run);
  return run;
}

} // namespace dsakit::harness
