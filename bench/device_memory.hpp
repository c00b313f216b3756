// Kernel benchmarks: a device, tensors on it, and the timed loop.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/kernel.hpp"

namespace dsakit::bench {

/// A device and the tensors of one benchmark; freed together.
class Bench {
public:
  explicit Bench(optimized::DeviceKind kind) {
    auto device = optimized::open_device(kind);
    if (device)
      device_ = std::move(*device);
    else
      why_not_ = device.status().what();
  }
  ~Bench() {
    for (void* memory : tensors_)
      device_->release(memory);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  explicit operator bool() const { return device_ != nullptr; }
  optimized::Device& device() { return *device_; }
  const std::string& why_not() const { return why_not_; }

  template <class T>
  T* upload(const std::vector<T>& values) {
    auto memory = device_->allocate(values.size() * sizeof(T));
    if (!memory) throw std::runtime_error(memory.status().what());
    tensors_.push_back(*memory);
    const Status status = device_->upload(*memory, values.data(), values.size() * sizeof(T));
    if (!status) throw std::runtime_error(status.what());
    return static_cast<T*>(*memory);
  }

  /// Runs the picked kernel once an iteration, on a workspace of its size; the time is the
  /// device's.
  template <class Params>
  void run(benchmark::State& state, const Params& params) {
    auto kernel = optimized::pick<Params>(device_->arch(), params);
    if (!kernel) return state.SkipWithError(kernel.status().what().c_str());
    const std::size_t bytes = (*kernel)->workspace_bytes(params);
    void* workspace = upload(std::vector<std::uint8_t>(bytes));
    for (auto _ : state) {
      Status status = device_->start_timer();
      if (status) status = (*kernel)->launch(params, workspace, bytes, device_->stream());
      const auto microseconds = device_->stop_timer();
      if (!status || !microseconds) return state.SkipWithError(status.what().c_str());
      state.SetIterationTime(*microseconds * 1e-6);
    }
    state.SetLabel(device_->description() + ", " + std::string((*kernel)->name));
  }

  /// The same of a projection, by the library of the device.
  void project(benchmark::State& state, const optimized::ProjectionParams& params) {
    for (auto _ : state) {
      Status status = device_->start_timer();
      if (status) status = device_->project(params);
      const auto microseconds = device_->stop_timer();
      if (!status || !microseconds) return state.SkipWithError(status.what().c_str());
      state.SetIterationTime(*microseconds * 1e-6);
    }
    state.SetLabel(device_->description() + ", " + std::string(device_->projection_library()));
  }

private:
  std::unique_ptr<optimized::Device> device_;
  std::string why_not_;
  std::vector<void*> tensors_;
};

inline std::vector<std::uint8_t> random_codes(std::size_t n) {
  std::mt19937 random(7);
  std::vector<std::uint8_t> codes(n);
  for (auto& code : codes)
    code = static_cast<std::uint8_t>(random() & 0xF7u) | 1; // no NaN, no -0
  return codes;
}

/// Positive bf16 values from 0.5 up, not all alike.
inline std::vector<std::uint16_t> ramp_bf16(std::size_t n) {
  std::vector<std::uint16_t> values(n);
  for (std::size_t i = 0; i < n; ++i)
    values[i] = static_cast<std::uint16_t>(0x3F00 + i % 0x180);
  return values;
}

} // namespace dsakit::bench

/// One benchmark a device: `function(State&, DeviceKind)` at a size that suits it.
#define DSAKIT_BENCHMARK(function, host_size, gpu_size)                                            \
  BENCHMARK_CAPTURE(function, host, ::dsakit::optimized::DeviceKind::host)                         \
      ->Arg(host_size)                                                                             \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMicrosecond);                                                             \
  BENCHMARK_CAPTURE(function, hip, ::dsakit::optimized::DeviceKind::hip)                           \
      ->Arg(gpu_size)                                                                              \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMicrosecond);                                                             \
  BENCHMARK_CAPTURE(function, cuda, ::dsakit::optimized::DeviceKind::cuda)                         \
      ->Arg(gpu_size)                                                                              \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMicrosecond)
