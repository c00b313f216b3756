// A device that does what another one does, for tests that change one thing of it.
#pragma once

#include <memory>

#include "dsakit/optimized/device.hpp"

namespace dsakit::testing {

class ForwardingDevice : public optimized::Device {
public:
  explicit ForwardingDevice(std::unique_ptr<optimized::Device> real =
                                std::move(*optimized::open_device(optimized::DeviceKind::host)))
      : real_(std::move(real)) {}

  optimized::DeviceKind kind() const override { return real_->kind(); }
  optimized::Arch arch() const override { return real_->arch(); }
  std::string description() const override { return real_->description(); }
  Result<void*> allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory) override { real_->release(memory); }
  Status upload(void* device, const void* host, std::size_t bytes) override {
    return real_->upload(device, host, bytes);
  }
  Status download(void* host, const void* device, std::size_t bytes) override {
    return real_->download(host, device, bytes);
  }
  Status copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t rows) override {
    return real_->copy_rows(to, to_stride, from, from_stride, bytes, rows);
  }
  Status project(const optimized::ProjectionParams& params) override {
    return real_->project(params);
  }
  std::string_view projection_library() const override { return real_->projection_library(); }
  void* stream() override { return real_->stream(); }
  Status synchronize() override { return real_->synchronize(); }
  Status start_timer() override { return real_->start_timer(); }
  Result<double> stop_timer() override { return real_->stop_timer(); }

protected:
  std::unique_ptr<optimized::Device> real_;
};

} // namespace dsakit::testing
