#include "kernel_worker.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child_process.hpp"
#include "kernel_wire.hpp"

namespace dsakit::harness {
namespace {

/// The child: takes problems from the socket until that closes.
class KernelServer {
public:
  KernelServer(optimized::DeviceKind kind, const optimized::HostOptions& options, int socket)
      : kind_(kind), options_(options), socket_(socket) {}

  [[noreturn]] void serve() {
    while (true) {
      const auto run = launch();
      WireWriter answer([&](const void* bytes, std::size_t count) {
        return move_all(count, [&](std::size_t done) {
          return ::send(socket_, static_cast<const char*>(bytes) + done, count - done,
                        MSG_NOSIGNAL);
        });
      });
      answer(run ? Code::ok : run.status().code());
      if (run)
        answer(*run);
      else
        answer(run.status().what());
      // What a driver does after an error is anybody's guess.
      if (!answer.fine() || run.status().code() == Code::device_error) ::_exit(0);
    }
  }

private:
  template <class Move>
  static bool move_all(std::size_t count, const Move& move) {
    for (std::size_t done = 0; done < count;) {
      const ssize_t moved = move(done);
      if (moved == 0 || (moved < 0 && errno != EINTR)) return false;
      done += static_cast<std::size_t>(std::max<ssize_t>(moved, 0));
    }
    return true;
  }

  Result<KernelRun> launch() {
    WireReader request([&](void* bytes, std::size_t count) {
      return move_all(count, [&](std::size_t done) {
        return ::recv(socket_, static_cast<char*>(bytes) + done, count - done, 0);
      });
    });
    OperationId id;
    ContractValues contract;
    RecordedOperation tensors;
    Attributes config;
    optimized::Configuration configuration;
    request(id, contract, tensors, config, configuration);
    if (!request.fine()) ::_exit(0); // nobody wants more
    if (!device_) {
      auto device = optimized::open_device(kind_, options_);
      DSAKIT_TRY(device);
      device_ = std::move(*device);
    }
    return find_adapter(id.operation)
        ->run({id, contract, tensors, config, nullptr, configuration}, *device_);
  }

  optimized::DeviceKind kind_;
  const optimized::HostOptions& options_;
  int socket_;
  std::unique_ptr<optimized::Device> device_;
};

Status no_worker(const char* what) {
  return {Code::device_error, std::string(what) + ": " + std::strerror(errno)};
}

} // namespace

Status KernelWorker::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return no_worker("socketpair");
  end_worker_threads();
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    std::signal(SIGINT, SIG_DFL);
    ::close(ends[0]);
    KernelServer(kind_, options_, ends[1]).serve();
  }
  const int error = errno;
  ::close(ends[1]);
  socket_ = ends[0];
  if (child_ < 0) {
    end(false);
    errno = error;
    return no_worker("fork");
  }
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
  return {};
}

/// Takes the child away, by force where it was not `in_time`.
ChildEnd KernelWorker::end(bool in_time) {
  ChildEnd end;
  if (socket_ >= 0) ::close(socket_);
  if (child_ > 0) {
    end.in_time = in_time && reap(child_, end.status);
    if (!end.in_time) {
      ::kill(child_, SIGKILL);
      static_cast<void>(reap(child_, end.status));
    }
  }
  socket_ = -1;
  child_ = -1;
  return end;
}

bool KernelWorker::wait_for(short event) const {
  while (Clock::now() < deadline_) {
    pollfd waiting{socket_, event, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (::poll(&waiting, 1, static_cast<int>(std::clamp<long long>(left.count(), 0, 1000))) > 0)
      return true;
  }
  return false;
}

bool KernelWorker::send(const void* bytes, std::size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count > 0;) {
    if (!wait_for(POLLOUT)) return false;
    const ssize_t sent = ::send(socket_, at, count, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR && errno != EAGAIN) return false;
    at += std::max<ssize_t>(sent, 0);
    count -= static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  }
  return true;
}

bool KernelWorker::receive(void* bytes, std::size_t count) {
  for (char* at = static_cast<char*>(bytes); count > 0;) {
    if (!wait_for(POLLIN)) return false;
    const ssize_t received = ::recv(socket_, at, count, 0);
    if (received == 0 || (received < 0 && errno != EINTR && errno != EAGAIN)) return false;
    at += std::max<ssize_t>(received, 0);
    count -= static_cast<std::size_t>(std::max<ssize_t>(received, 0));
  }
  return true;
}

Result<KernelRun> KernelWorker::run(const OperationData& data) {
  if (child_ < 0) DSAKIT_TRY(start());
  deadline_ = Clock::now() + std::chrono::seconds(time_limit_s_);
  WireWriter request([this](const void* bytes, std::size_t count) { return send(bytes, count); });
  request(data.id, data.contract, data.tensors, data.config, data.configuration);
  WireReader answer([this](void* bytes, std::size_t count) { return receive(bytes, count); });
  Code code{};
  KernelRun run;
  std::string why;
  if (request.fine()) answer(code);
  if (code == Code::ok)
    answer(run);
  else
    answer(why);
  if (!request.fine() || !answer.fine()) {
    const ChildEnd ended = end(Clock::now() < deadline_);
    DSAKIT_TRY(survived(ended, time_limit_s_));
    return exited(ended);
  }
  if (code == Code::ok) return run;
  if (code == Code::device_error) end(true);
  return Status(code, why);
}

} // namespace dsakit::harness
