#include "launch.hpp"

#include <algorithm>

namespace dsakit::harness {
namespace {
constexpr std::byte kGuardByte{0xA5};
} // namespace

Result<DeviceBuffer> DeviceBuffer::upload(optimized::Device& device, const std::byte* data,
                                          std::size_t bytes) {
  std::vector<std::byte> image(bytes + 2 * kGuard, kGuardByte);
  std::copy_n(data, bytes, image.data() + kGuard);
  const auto memory = device.allocate(image.size());
  DSAKIT_TRY(memory);
  DeviceBuffer buffer(device, static_cast<std::byte*>(*memory), bytes);
  DSAKIT_TRY(device.upload(*memory, image.data(), image.size()));
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_), base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

DeviceBuffer::~DeviceBuffer() {
  if (base_) device_->release(base_);
}

Result<bool> DeviceBuffer::download(Tensor& tensor) const {
  std::vector<std::byte> image(bytes_ + 2 * kGuard);
  DSAKIT_TRY(device_->download(image.data(), base_, image.size()));
  std::copy_n(image.data() + kGuard, bytes_, tensor.bytes.data());
  const auto intact = [](const std::byte* guard) {
    return std::all_of(guard, guard + kGuard, [](std::byte b) { return b == kGuardByte; });
  };
  return intact(image.data()) && intact(image.data() + kGuard + bytes_);
}

Status need_bf16(const ContractValues& contract) {
  const auto dtype = parse_activation_dtype(contract);
  DSAKIT_TRY(dtype);
  if (*dtype != ActivationDtype::bf16)
    return unsupported("activation_dtype: found fp16, want bf16");
  return {};
}

Tensor poisoned(Dtype dtype, Shape shape) {
  Tensor tensor(dtype, std::move(shape));
  std::fill(tensor.bytes.begin(), tensor.bytes.end(), poison_byte(dtype));
  return tensor;
}

Status take_output(KernelRun& run, const std::string& name, const DeviceBuffer& buffer,
                   Tensor tensor) {
  const auto intact = buffer.download(tensor);
  DSAKIT_TRY(intact);
  if (!*intact && !run.stray) run.stray = StrayWrite{name, {}};
  run.outputs.insert_or_assign(name, std::move(tensor));
  return {};
}

} // namespace dsakit::harness
