#include "runtime/host_device.hpp"

#include <chrono>
#include <cstring>
#include <new>

#include "runtime/host_executor.hpp"
#include "runtime/host_projection.hpp"

namespace dsakit::optimized {
namespace {

constexpr std::align_val_t kAlignment{256};

/// A launch runs before it returns, so the stream has nothing to wait for.
class HostDevice final : public Device, LaunchStream {
public:
  explicit HostDevice(const HostOptions& options) : options_(options) {}

  DeviceKind kind() const override { return DeviceKind::host; }
  Arch arch() const override { return options_.arch; }
  std::string description() const override {
    return "host lanes (" + std::string(name(options_.arch)) + " model)";
  }

  Result<void*> allocate(std::size_t bytes) override {
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr)
      return Status(Code::device_error,
                    "host device: no memory for " + std::to_string(bytes) + " bytes");
    return memory;
  }
  void release(void* memory) override { ::operator delete(memory, kAlignment); }
  Status upload(void* device, const void* host, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
    return {};
  }
  Status download(void* host, const void* device, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
    return {};
  }
  Status copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t rows) override {
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to) + row * to_stride,
                  static_cast<const std::byte*>(from) + row * from_stride,
                  static_cast<std::size_t>(bytes));
    return {};
  }
  Status project(const ProjectionParams& params) override { return project_on_host(params); }
  std::string_view projection_library() const override { return "eigen"; }
  void* stream() override { return static_cast<LaunchStream*>(this); }
  Status synchronize() override { return {}; }
  Status start_timer() override {
    start_ = std::chrono::steady_clock::now();
    return {};
  }
  Result<double> stop_timer() override {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }

private:
  Status launch(const Launch& launch) override {
    host::ExecutorOptions options;
    options.schedule_seed = options_.schedule_seed;
    options.lds_pattern = options_.lds_pattern;
    options.lds_limit = options_.arch == Arch::gfx950 ? 160 << 10 : 64 << 10;
    return host::run_grid(options, launch);
  }

  HostOptions options_;
  std::chrono::steady_clock::time_point start_;
};

} // namespace

Result<std::unique_ptr<Device>> open_host_device(const HostOptions& options) {
  if (options.arch != Arch::gfx942 && options.arch != Arch::gfx950)
    return bad_input("host device: found arch " + std::string(name(options.arch)) +
                     ", want gfx942 | gfx950");
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(options));
}

} // namespace dsakit::optimized
