#include "kernel_runner.hpp"

#include "child_process.hpp"

namespace dsakit::harness {

Result<std::string> KernelRunner::open() {
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

Result<KernelRun> KernelRunner::run(const OperationAdapter& adapter,
                                    const OperationData& data) const {
  if (on_host()) return adapter.run(data, *host_);
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
  if (!on_host()) return run(adapter, data);
  optimized::HostOptions other = options_;
  other.schedule_seed += static_cast<std::uint64_t>(time);
  const auto device = optimized::open_device(kind_, other);
  DSAKIT_TRY(device);
  return adapter.run(data, **device);
}

} // namespace dsakit::harness
