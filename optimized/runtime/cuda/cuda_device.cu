#include "runtime/cuda/cuda_device.hpp"

#include <cuda_runtime.h>

#include <string>

#include "runtime/blas_lt.hpp"

namespace dsakit::optimized {
namespace {

Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return {Code::device_error, std::string("cuda: ") + call + ": " + cudaGetErrorString(error)};
}

class CudaGraph final : public DeviceGraph {
public:
  explicit CudaGraph(cudaStream_t stream) : stream_(stream) {}
  ~CudaGraph() override {
    if (runnable_ != nullptr) cudaGraphExecDestroy(runnable_);
  }

  Status instantiate(cudaGraph_t graph) {
    return check(cudaGraphInstantiate(&runnable_, graph, 0), "cudaGraphInstantiate");
  }
  Status replay() override { return check(cudaGraphLaunch(runnable_, stream_), "cudaGraphLaunch"); }

private:
  cudaStream_t stream_;
  cudaGraphExec_t runnable_ = nullptr;
};

class CudaDevice final : public Device {
public:
  ~CudaDevice() override {
    projections_.close(*this);
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stop_ != nullptr) cudaEventDestroy(stop_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status open(std::string description) {
    description_ = std::move(description);
    DSAKIT_TRY(check(cudaSetDevice(0), "cudaSetDevice"));
    DSAKIT_TRY(
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    DSAKIT_TRY(check(cudaEventCreate(&start_), "cudaEventCreate"));
    return check(cudaEventCreate(&stop_), "cudaEventCreate");
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  Arch arch() const override { return Arch::sm_90; }
  std::string description() const override { return description_; }

  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    DSAKIT_TRY(check(cudaMalloc(&memory, bytes != 0 ? bytes : 1), "cudaMalloc"));
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  Status upload(void* device, const void* host, std::size_t bytes) override {
    return check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
                 "cudaMemcpyAsync");
  }
  Status download(void* host, const void* device, std::size_t bytes) override {
    DSAKIT_TRY(check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
                     "cudaMemcpyAsync"));
    return synchronize();
  }
  Status copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t rows) override {
    if (bytes == 0 || rows == 0) return {};
    return check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_stride), from,
                                   static_cast<std::size_t>(from_stride),
                                   static_cast<std::size_t>(bytes), static_cast<std::size_t>(rows),
                                   cudaMemcpyDeviceToDevice, stream_),
                 "cudaMemcpy2DAsync");
  }
  Status project(const ProjectionParams& params) override {
    return projections_.project(*this, params, stream_);
  }
  std::string_view projection_library() const override { return "cublaslt"; }
  void* stream() override { return stream_; }
  Status synchronize() override {
    return check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  Status start_timer() override {
    return check(cudaEventRecord(start_, stream_), "cudaEventRecord");
  }
  Result<double> stop_timer() override {
    DSAKIT_TRY(check(cudaEventRecord(stop_, stream_), "cudaEventRecord"));
    DSAKIT_TRY(check(cudaEventSynchronize(stop_), "cudaEventSynchronize"));
    float milliseconds = 0;
    DSAKIT_TRY(check(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime"));
    return 1e3 * static_cast<double>(milliseconds);
  }
  Status begin_capture() override {
    return check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    cudaGraph_t captured = nullptr;
    DSAKIT_TRY(check(cudaStreamEndCapture(stream_, &captured), "cudaStreamEndCapture"));
    auto graph = std::make_unique<CudaGraph>(stream_);
    const Status status = graph->instantiate(captured);
    cudaGraphDestroy(captured);
    if (!status) return status;
    return std::unique_ptr<DeviceGraph>(std::move(graph));
  }

private:
  std::string description_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  BlasLt projections_{kCublasLt};
};

} // namespace

Result<std::unique_ptr<Device>> open_cuda_device() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0)
    return Status(Code::no_device,
                  std::string("cuda: no device: ") +
                      (error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none"));
  cudaDeviceProp properties{};
  DSAKIT_TRY(check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  if (properties.major != 9 || properties.minor != 0)
    return Status(Code::no_device, "cuda: found compute capability " +
                                       std::to_string(properties.major) + "." +
                                       std::to_string(properties.minor) + ", want 9.0");
  auto device = std::make_unique<CudaDevice>();
  DSAKIT_TRY(device->open(properties.name));
  return std::unique_ptr<Device>(std::move(device));
}

} // namespace dsakit::optimized
