#include "launch.hpp"

#include <algorithm>
#include <array>

#include "dsakit/optimized/weight_dequant.hpp"
#include "dsakit/reference/formats.hpp"

namespace dsakit::harness {
namespace {
constexpr std::byte kGuardByte{0xA5};
} // namespace

Result<DeviceBuffer> DeviceBuffer::upload(optimized::Device& device, const std::byte* data,
                                          std::size_t bytes) {
  const auto memory = device.allocate(bytes + 2 * kGuard);
  DSAKIT_TRY(memory);
  DeviceBuffer buffer(device, static_cast<std::byte*>(*memory), bytes);
  // Part by part: an image of all would double what a large tensor takes.
  std::array<std::byte, kGuard> guard;
  guard.fill(kGuardByte);
  DSAKIT_TRY(device.upload(buffer.base_, guard.data(), kGuard));
  if (bytes != 0) DSAKIT_TRY(device.upload(buffer.base_ + kGuard, data, bytes));
  DSAKIT_TRY(device.upload(buffer.base_ + kGuard + bytes, guard.data(), kGuard));
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_), base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_) {}

DeviceBuffer::~DeviceBuffer() {
  if (base_) device_->release(base_);
}

Result<bool> DeviceBuffer::download(Tensor& tensor) const {
  if (bytes_ != 0) DSAKIT_TRY(device_->download(tensor.bytes.data(), base_ + kGuard, bytes_));
  for (const std::byte* at : {base_, base_ + kGuard + bytes_}) {
    std::array<std::byte, kGuard> guard;
    DSAKIT_TRY(device_->download(guard.data(), at, kGuard));
    if (std::any_of(guard.begin(), guard.end(), [](std::byte b) { return b != kGuardByte; }))
      return false;
  }
  return true;
}

Status need_bf16(const ContractValues& contract) {
  const auto dtype = parse_activation_dtype(contract);
  DSAKIT_TRY(dtype);
  if (*dtype != ActivationDtype::bf16)
    return unsupported("activation_dtype: found fp16, want bf16");
  return {};
}

reference::Weight weight_of(const OperationData& data) {
  const Tensor& weight = data.input("weight");
  const Tensor* scale = data.optional_input("weight_scale");
  return {!scale                     ? WeightFormat::bf16
          : scale->shape.size() == 1 ? WeightFormat::fp8_channel
                                     : WeightFormat::fp8_block,
          weight.dtype == Dtype::float8_e4m3fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn,
          weight.bytes.data(),
          scale ? scale->as<float>() : nullptr,
          weight.shape[0],
          weight.shape[1]};
}

Result<DeviceBuffer> upload_weight(optimized::Device& device, const OperationData& data) {
  const reference::Weight weight = weight_of(data);
  auto values = DeviceBuffer::upload(device, data.input("weight"));
  if (!values || weight.format == WeightFormat::bf16) return values;
  const auto scales = DeviceBuffer::upload(device, data.input("weight_scale"));
  DSAKIT_TRY(scales);
  auto widened =
      DeviceBuffer::upload(device, poisoned(Dtype::bfloat16, data.input("weight").shape));
  DSAKIT_TRY(widened);
  optimized::WeightDequantParams params{};
  params.codes = values->as<std::uint8_t>();
  params.scales = scales->as<float>();
  params.weight = widened->as<std::uint16_t>();
  params.outputs = weight.outputs;
  params.inputs = weight.inputs;
  params.format = weight.format;
  params.encoding = weight.encoding;
  DSAKIT_TRY(launch(nullptr, device, params));
  return widened;
}

std::vector<float> widened(const Tensor& parameter) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < parameter.elements(); ++i)
    values.push_back(static_cast<float>(element(parameter, i)));
  return values;
}

void round_to(Tensor& tensor, const std::vector<double>& exact) {
  const auto round =
      tensor.dtype == Dtype::float16 ? reference::float_to_fp16 : reference::float_to_bf16;
  std::transform(exact.begin(), exact.end(), tensor.as<std::uint16_t>(),
                 [&](double value) { return round(static_cast<float>(value)); });
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

Status launch_ready(LaunchObserver* observer, optimized::Device& device, KernelRun& run,
                    const std::function<Status(void* stream)>& once) {
  if (observer) return observer->ready(device, run.kernel, once);
  DSAKIT_TRY(device.start_timer());
  DSAKIT_TRY(once(device.stream()));
  const auto time = device.stop_timer();
  DSAKIT_TRY(time);
  run.time_us = *time;
  return device.synchronize();
}

Result<KernelRun> project(const OperationData& data, optimized::Device& device,
                          const optimized::ProjectionParams& params) {
  if (!data.configuration.empty())
    return bad_input(std::string(device.projection_library()) + " has no configuration " +
                     data.configuration.begin()->first);
  KernelRun run;
  run.kernel = device.projection_library();
  DSAKIT_TRY(
      launch_ready(data.observer, device, run, [&](void*) { return device.project(params); }));
  return run;
}

} // namespace dsakit::harness
