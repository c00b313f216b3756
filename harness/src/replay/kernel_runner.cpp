#include "kernel_runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "child_process.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

/// `body` with the library, in a child: to load it already runs its code.
Result<std::string>
with_library(const std::string& path,
             const std::function<Result<std::string>(const KernelLibrary&)>& body, int limit_s) {
  auto result = run_in_child(
      [&]() -> Result<std::string> {
        ::dup2(STDERR_FILENO, STDOUT_FILENO); // what it prints is no part of the report
        const auto library = KernelLibrary::load(path);
        DSAKIT_TRY(library);
        return body(*library);
      },
      limit_s);
  if (result || result.status().what().starts_with(path)) return result;
  return Status(result.status().code(), path + ": " + result.status().what());
}

} // namespace

std::string kind_name(optimized::DeviceKind kind) {
  constexpr std::array<const char*, 3> names = {"host", "hip", "cuda"};
  return names[static_cast<std::size_t>(kind)];
}

Result<std::vector<std::string>> library_operations(const std::string& path, int time_limit_s) {
  const auto names = with_library(
      path,
      [](const KernelLibrary& library) -> Result<std::string> {
        const auto operations = library.operations();
        DSAKIT_TRY(operations);
        std::string text;
        for (const std::string& operation : *operations)
          text += operation + " ";
        return text;
      },
      time_limit_s);
  DSAKIT_TRY(names);
  auto operations = split_names(*names);
  if (operations.empty())
    return unsupported(path + ": found kernels for no operation (docs/recordings.md)");
  return operations;
}

Status KernelRunner::look_into_library() {
  if (library_.empty() || !operations_.empty()) return {};
  auto operations = library_operations(library_, time_limit_s_);
  DSAKIT_TRY(operations);
  operations_ = std::move(*operations);
  return {};
}

Result<std::string> KernelRunner::open() {
  DSAKIT_TRY(look_into_library());
  if (!on_host())
    return run_in_child(
        [&]() -> Result<std::string> {
          const auto device = optimized::open_device(kind_, options_);
          DSAKIT_TRY(device);
          return (*device)->description();
        },
        time_limit_s_);
  auto device = optimized::open_device(kind_, options_);
  DSAKIT_TRY(device);
  host_ = std::move(*device);
  return host_->description();
}

Result<std::string> KernelRunner::in_library(
    const std::function<Result<std::string>(const KernelLibrary&, optimized::Device&)>& body)
    const {
  return with_library(
      library_,
      [&](const KernelLibrary& library) -> Result<std::string> {
        const auto device = optimized::open_device(kind_, options_);
        DSAKIT_TRY(device);
        return body(library, **device);
      },
      time_limit_s_);
}

Result<KernelRun> KernelRunner::run_library(const OperationData& data,
                                            const std::function<void(KernelRun&)>& keep) const {
  const auto bytes = in_library(
      [&](const KernelLibrary& library, optimized::Device& device) -> Result<std::string> {
        auto run = run_foreign(library, data, device);
        DSAKIT_TRY(run);
        keep(*run);
        return serialise(*run);
      });
  DSAKIT_TRY(bytes);
  return parse_kernel_run(*bytes);
}

Result<KernelRun> KernelRunner::run(const OperationAdapter& adapter,
                                    const OperationData& data) const {
  if (takes(data.id.operation)) return run_library(data, [](KernelRun&) {});
  if (on_host()) return adapter.run(data, *host_);
  if (find_adapter(data.id.operation) == &adapter) return worker_->run(data);
  const auto bytes = run_in_child(
      [&]() -> Result<std::string> {
        const auto device = optimized::open_device(kind_, options_);
        DSAKIT_TRY(device);
        const auto run = adapter.run(data, **device);
        DSAKIT_TRY(run);
        return serialise(*run);
      },
      time_limit_s_);
  DSAKIT_TRY(bytes);
  return parse_kernel_run(*bytes);
}

Result<KernelRun> KernelRunner::run_again(const OperationAdapter& adapter,
                                          const OperationData& data, int time) const {
  if (!on_host() || takes(data.id.operation)) return run(adapter, data);
  optimized::HostOptions other = options_;
  other.schedule_seed += static_cast<std::uint64_t>(time);
  const auto device = optimized::open_device(kind_, other);
  DSAKIT_TRY(device);
  return adapter.run(data, **device);
}

bool KernelRunner::takes(const std::string& operation) const {
  return std::find(operations_.begin(), operations_.end(), operation) != operations_.end();
}

std::string KernelRunner::served() const {
  std::string text;
  for (const std::string& operation : operations_)
    text += (text.empty() ? "" : ", ") + operation;
  return text;
}

} // namespace dsakit::harness
