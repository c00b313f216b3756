#include "kernel_worker.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <poll.h>
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

} // namespace

Status KernelWorker::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return {Code::device_error, std::string("socketpair: ") + std::strerror(errno)};
  end_worker_threads();
  const auto child = fork_child([&] {
    std::signal(SIGINT, SIG_DFL);
    ::close(ends[0]);
    KernelServer(kind_, options_, ends[1]).serve();
  });
  ::close(ends[1]);
  if (!child) {
    ::close(ends[0]);
    return child.status();
  }
  child_ = *child;
  socket_ = ends[0];
  ::fcntl(socket_, F_SETFL, O_NONBLOCK);
  return {};
}

ChildEnd KernelWorker::end(bool in_time) {
  ChildEnd end;
  if (child_ < 0) return end;
  ::close(socket_);
  take_child(child_, in_time, end);
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

bool KernelWorker::send(const void* bytes, std::size_t count) const {
  return move_all(count, [&](std::size_t done) -> ssize_t {
    if (!wait_for(POLLOUT)) return 0;
    return ::send(socket_, static_cast<const char*>(bytes) + done, count - done, MSG_NOSIGNAL);
  });
}

bool KernelWorker::receive(void* bytes, std::size_t count) const {
  return move_all(count, [&](std::size_t done) -> ssize_t {
    if (!wait_for(POLLIN)) return 0;
    return ::recv(socket_, static_cast<char*>(bytes) + done, count - done, 0);
  });
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
