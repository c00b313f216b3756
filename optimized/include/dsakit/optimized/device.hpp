// Where kernels run: host lanes, an AMD GPU through the HIP runtime, an NVIDIA GPU through CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/kernel.hpp"
#include "dsakit/optimized/projection.hpp"

namespace dsakit::optimized {

enum class DeviceKind : std::uint8_t { host, hip, cuda };

/// Options of the host device; the other kinds ignore them.
struct HostOptions {
  Arch arch = Arch::gfx942;        ///< whose intrinsics are modelled: gfx942 or gfx950
  std::uint64_t schedule_seed = 0; ///< order of waves between barriers; 0: ascending
  std::uint8_t lds_pattern = 0xCB; ///< LDS bytes before a workgroup starts
};

/// What a stream was given while it was captured, to be done again with one call.
class DeviceGraph {
public:
  virtual ~DeviceGraph() = default;
  /// On the stream.
  virtual Status replay() = 0;
};

/// Memory, one stream and a clock. Not thread-safe.
class Device {
public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceKind kind() const = 0;
  virtual Arch arch() const = 0;
  /// For reports: "host lanes (gfx942)", "AMD Instinct MI300X", "NVIDIA H200".
  virtual std::string description() const = 0;

  /// 256-byte aligned; contents unspecified.
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual Status upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual Status download(void* host, const void* device, std::size_t bytes) = 0;
  /// `rows` rows of `bytes` from device memory to device memory, on the stream; strides in BYTES.
  virtual Status copy_rows(void* to, std::int64_t to_stride, const void* from,
                           std::int64_t from_stride, std::int64_t bytes, std::int64_t rows) = 0;
  /// On the stream, by the library that projects here; unsupported where it does not load.
  virtual Status project(const ProjectionParams& params) = 0;
  /// "eigen", "hipblaslt", "cublaslt"
  virtual std::string_view projection_library() const = 0;
  /// What a launcher takes as its stream.
  virtual void* stream() = 0;
  /// Waits, and reports what went wrong in a launch since the last call.
  virtual Status synchronize() = 0;
  /// Device time between the two calls, in microseconds.
  virtual Status start_timer() = 0;
  virtual Result<double> stop_timer() = 0;
  /// Between the two calls the stream notes what it is given and does nothing of it. unsupported
  /// where there are no graphs: on host lanes, and in a HIP runtime without them. The device
  /// outlives the graph.
  virtual Status begin_capture();
  virtual Result<std::unique_ptr<DeviceGraph>> end_capture();

protected:
  Device() = default;
};

/// no_device where the machine, or this build, has none of that kind.
Result<std::unique_ptr<Device>> open_device(DeviceKind kind, const HostOptions& host = {});

} // namespace dsakit::optimized
