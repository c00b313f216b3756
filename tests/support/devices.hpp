// Every device of this machine, and memory on it that is checked for stray writes.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsakit/optimized/device.hpp"

namespace dsakit::testing {

/// Host lanes of both archs always; a GPU where there is one.
inline std::vector<std::string> device_names() {
  std::vector<std::string> names = {"gfx942", "gfx950"};
  if (optimized::open_device(optimized::DeviceKind::hip)) names.emplace_back("hip");
  if (optimized::open_device(optimized::DeviceKind::cuda)) names.emplace_back("cuda");
  return names;
}

inline std::unique_ptr<optimized::Device> open(const std::string& name,
                                               optimized::HostOptions host = {}) {
  using optimized::DeviceKind;
  host.arch = name == "gfx950" ? optimized::Arch::gfx950 : optimized::Arch::gfx942;
  auto device = optimized::open_device(name == "hip"    ? DeviceKind::hip
                                       : name == "cuda" ? DeviceKind::cuda
                                                        : DeviceKind::host,
                                       host);
  if (!device) ADD_FAILURE() << device.status().what();
  return std::move(*device);
}

/// `values` on the device, between canaries in one allocation.
template <class T>
class OnDevice {
public:
  OnDevice(optimized::Device& device, const std::vector<T>& values)
      : device_(device), size_(values.size()) {
    std::vector<std::uint8_t> bytes(size_ * sizeof(T) + 2 * kPad, kCanary);
    if (size_ != 0) std::memcpy(bytes.data() + kPad, values.data(), size_ * sizeof(T));
    auto memory = device.allocate(bytes.size());
    if (!memory) throw std::runtime_error(memory.status().what());
    memory_ = static_cast<std::uint8_t*>(*memory);
    EXPECT_TRUE(device.upload(memory_, bytes.data(), bytes.size()));
  }
  ~OnDevice() { device_.release(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() { return reinterpret_cast<T*>(memory_ + kPad); }

  /// The values now; fails where a canary was overwritten.
  std::vector<T> values() {
    std::vector<std::uint8_t> bytes(size_ * sizeof(T) + 2 * kPad);
    EXPECT_TRUE(device_.download(bytes.data(), memory_, bytes.size()));
    std::size_t strayed = 0;
    for (std::size_t i = 0; i < kPad; ++i)
      strayed += (bytes[i] != kCanary) + (bytes[bytes.size() - 1 - i] != kCanary);
    EXPECT_EQ(strayed, 0u) << "bytes outside the tensor were written";
    std::vector<T> result(size_);
    if (size_ != 0) std::memcpy(result.data(), bytes.data() + kPad, size_ * sizeof(T));
    return result;
  }

private:
  static constexpr std::size_t kPad = 1024; // keeps the alignment of an allocation
  static constexpr std::uint8_t kCanary = 0xA7;
  optimized::Device& device_;
  std::uint8_t* memory_;
  std::size_t size_;
};

} // namespace dsakit::testing
