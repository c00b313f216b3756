#include "runtime/hip_runtime.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/launch.hpp"
#include "runtime/blas_lt.hpp"

namespace dsakit::optimized {
namespace {

// What is used of HIP, declared here because ROCm's headers are not needed to build. All of it has
// had this binary form from ROCm 5 to 7. hipGetDeviceProperties has not: hence an arch is
// recognised by loading its code objects, which the runtime refuses for any other.
using HipError = int; // 0 is hipSuccess
#define DSAKIT_HIP_FUNCTIONS(X)                                                                    \
  X(hipInit, HipError(unsigned flags))                                                             \
  X(hipGetErrorName, const char*(HipError))                                                        \
  X(hipGetDeviceCount, HipError(int* count))                                                       \
  X(hipSetDevice, HipError(int device))                                                            \
  X(hipDeviceGetName, HipError(char* name, int bytes, int device))                                 \
  X(hipModuleLoadData, HipError(void** module, const void* image))                                 \
  X(hipModuleUnload, HipError(void* module))                                                       \
  X(hipModuleGetFunction, HipError(void** function, void* module, const char* symbol))             \
  X(hipModuleLaunchKernel,                                                                         \
    HipError(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
             unsigned block_y, unsigned block_z, unsigned lds_bytes, void* stream, void** params,  \
             void** extra))                                                                        \
  X(hipStreamCreate, HipError(void** stream))                                                      \
  X(hipStreamDestroy, HipError(void* stream))                                                      \
  X(hipStreamSynchronize, HipError(void* stream))                                                  \
  X(hipEventCreate, HipError(void** event))                                                        \
  X(hipEventDestroy, HipError(void* event))                                                        \
  X(hipEventRecord, HipError(void* event, void* stream))                                           \
  X(hipEventSynchronize, HipError(void* event))                                                    \
  X(hipEventElapsedTime, HipError(float* milliseconds, void* start, void* stop))                   \
  X(hipMalloc, HipError(void** memory, std::size_t bytes))                                         \
  X(hipFree, HipError(void* memory))                                                               \
  X(hipMemcpyAsync,                                                                                \
    HipError(void* to, const void* from, std::size_t bytes, int kind, void* stream))               \
  X(hipMemcpy2DAsync,                                                                              \
    HipError(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,           \
             std::size_t bytes, std::size_t rows, int kind, void* stream))

// Graphs, which every runtime since ROCm 5 has; where one lacks them nothing else is missing.
#define DSAKIT_HIP_GRAPH_FUNCTIONS(X)                                                              \
  X(hipStreamBeginCapture, HipError(void* stream, int mode))                                       \
  X(hipStreamEndCapture, HipError(void* stream, void** graph))                                     \
  X(hipGraphInstantiateWithFlags,                                                                  \
    HipError(void** runnable, void* graph, unsigned long long flags))                              \
  X(hipGraphLaunch, HipError(void* runnable, void* stream))                                        \
  X(hipGraphExecDestroy, HipError(void* runnable))                                                 \
  X(hipGraphDestroy, HipError(void* graph))

constexpr int kThreadLocalCapture = 1; // hipStreamCaptureMode
constexpr int kHostToDevice = 1;       // hipMemcpyKind
constexpr int kDeviceToHost = 2;
constexpr int kDeviceToDevice = 3;

void* extra_tag(std::uintptr_t tag) {
  return reinterpret_cast<void*>(tag);
}

struct Hip {
#define DSAKIT_MEMBER(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  DSAKIT_HIP_FUNCTIONS(DSAKIT_MEMBER)
  DSAKIT_HIP_GRAPH_FUNCTIONS(DSAKIT_MEMBER)
#undef DSAKIT_MEMBER

  bool has_graphs() const {
#define DSAKIT_IS_THERE(name, ...) name != nullptr&&
    return DSAKIT_HIP_GRAPH_FUNCTIONS(DSAKIT_IS_THERE) true;
#undef DSAKIT_IS_THERE
  }
  Status check(HipError error, const std::string& call) const {
    if (error == 0) return {};
    return {Code::device_error, call + ": " + hipGetErrorName(error)};
  }
};

Status no_device(std::string why) {
  return {Code::no_device, "hip: " + std::move(why)};
}

/// The library stays loaded: the HIP runtime does not survive being closed.
Result<Hip> load_hip() {
  constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
  void* library = nullptr;
  for (const char* name : kNames) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) break;
  }
  if (!library) return no_device("libamdhip64.so.7, .so.6 and .so.5 do not load");
  Hip hip;
#define DSAKIT_LOAD(name, ...)                                                                     \
  hip.name = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(library, #name));             \
  if (!hip.name) return no_device("the HIP runtime has no " #name);
  DSAKIT_HIP_FUNCTIONS(DSAKIT_LOAD)
#undef DSAKIT_LOAD
#define DSAKIT_LOAD(name, ...)                                                                     \
  hip.name = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(library, #name));
  DSAKIT_HIP_GRAPH_FUNCTIONS(DSAKIT_LOAD)
#undef DSAKIT_LOAD
  return hip;
}

class HipGraph final : public DeviceGraph {
public:
  HipGraph(const Hip& hip, void* stream) : hip_(hip), stream_(stream) {}
  ~HipGraph() override {
    if (runnable_) hip_.hipGraphExecDestroy(runnable_);
  }

  Status instantiate(void* graph) {
    return hip_.check(hip_.hipGraphInstantiateWithFlags(&runnable_, graph, 0),
                      "hipGraphInstantiateWithFlags");
  }
  Status replay() override {
    return hip_.check(hip_.hipGraphLaunch(runnable_, stream_), "hipGraphLaunch");
  }

private:
  const Hip& hip_;
  void* stream_;
  void* runnable_ = nullptr;
};

class HipDevice final : public Device, public LaunchStream {
public:
  explicit HipDevice(const Hip& hip) : hip_(hip) {}

  ~HipDevice() override {
    projections_.close(*this);
    for (void* module : modules_)
      hip_.hipModuleUnload(module);
    for (void* event : {start_, stop_})
      if (event) hip_.hipEventDestroy(event);
    if (stream_) hip_.hipStreamDestroy(stream_);
  }

  /// Loads the code objects of `arch` on the current device.
  Status open(Arch arch, std::string description) {
    for (const CodeObject& object : code_objects()) {
      if (object.arch != arch) continue;
      void* module = nullptr;
      DSAKIT_TRY(hip_.check(hip_.hipModuleLoadData(&module, object.data),
                            std::string(name(arch)) + " code object"));
      modules_.push_back(module);
    }
    DSAKIT_TRY(hip_.check(hip_.hipStreamCreate(&stream_), "hipStreamCreate"));
    DSAKIT_TRY(hip_.check(hip_.hipEventCreate(&start_), "hipEventCreate"));
    DSAKIT_TRY(hip_.check(hip_.hipEventCreate(&stop_), "hipEventCreate"));
    arch_ = arch;
    description_ = std::move(description);
    return {};
  }

  DeviceKind kind() const override { return DeviceKind::hip; }
  Arch arch() const override { return arch_; }
  std::string description() const override { return description_; }
  void* stream() override { return static_cast<LaunchStream*>(this); }
  void* native_stream() const { return stream_; }

  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    DSAKIT_TRY(hip_.check(hip_.hipMalloc(&memory, bytes), "hipMalloc"));
    return memory;
  }
  void release(void* memory) override { hip_.hipFree(memory); }

  Status upload(void* device, const void* host, std::size_t bytes) override {
    return copy(device, host, bytes, kHostToDevice);
  }
  Status download(void* host, const void* device, std::size_t bytes) override {
    return copy(host, device, bytes, kDeviceToHost);
  }

  Status copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t rows) override {
    if (bytes == 0 || rows == 0) return {};
    return hip_.check(hip_.hipMemcpy2DAsync(
                          to, static_cast<std::size_t>(to_stride), from,
                          static_cast<std::size_t>(from_stride), static_cast<std::size_t>(bytes),
                          static_cast<std::size_t>(rows), kDeviceToDevice, stream_),
                      "hipMemcpy2DAsync");
  }
  Status project(const ProjectionParams& params) override {
    return projections_.project(*this, params, stream_);
  }
  std::string_view projection_library() const override { return "hipblaslt"; }

  Status synchronize() override {
    return hip_.check(hip_.hipStreamSynchronize(stream_), "hipStreamSynchronize");
  }
  Status start_timer() override {
    return hip_.check(hip_.hipEventRecord(start_, stream_), "hipEventRecord");
  }
  Result<double> stop_timer() override {
    float milliseconds = 0;
    DSAKIT_TRY(hip_.check(hip_.hipEventRecord(stop_, stream_), "hipEventRecord"));
    DSAKIT_TRY(hip_.check(hip_.hipEventSynchronize(stop_), "hipEventSynchronize"));
    DSAKIT_TRY(
        hip_.check(hip_.hipEventElapsedTime(&milliseconds, start_, stop_), "hipEventElapsedTime"));
    return 1e3 * static_cast<double>(milliseconds);
  }

  Status begin_capture() override {
    if (!hip_.has_graphs()) return Device::begin_capture();
    return hip_.check(hip_.hipStreamBeginCapture(stream_, kThreadLocalCapture),
                      "hipStreamBeginCapture");
  }
  Result<std::unique_ptr<DeviceGraph>> end_capture() override {
    void* captured = nullptr;
    DSAKIT_TRY(hip_.check(hip_.hipStreamEndCapture(stream_, &captured), "hipStreamEndCapture"));
    auto graph = std::make_unique<HipGraph>(hip_, stream_);
    const Status status = graph->instantiate(captured);
    hip_.hipGraphDestroy(captured);
    if (!status) return status;
    return std::unique_ptr<DeviceGraph>(std::move(graph));
  }

  Status launch(const Launch& launch) override {
    void* function = nullptr;
    for (void* module : modules_)
      if (hip_.hipModuleGetFunction(&function, module, launch.kernel) == 0) break;
    if (!function)
      return {Code::device_error,
              std::string(launch.kernel) + ": in no code object of " + std::string(name(arch_))};
    std::size_t bytes = launch.argument_bytes;
    void* extra[] = {extra_tag(1), const_cast<void*>(launch.arguments), // ..._BUFFER_POINTER
                     extra_tag(2), &bytes,                              // ..._BUFFER_SIZE
                     extra_tag(3)};                                     // ..._END
    return hip_.check(hip_.hipModuleLaunchKernel(function, launch.grid.x, launch.grid.y,
                                                 launch.grid.z, launch.block.x, launch.block.y,
                                                 launch.block.z, 0, stream_, nullptr, extra),
                      launch.kernel);
  }

private:
  Status copy(void* to, const void* from, std::size_t bytes, int kind) {
    DSAKIT_TRY(hip_.check(hip_.hipMemcpyAsync(to, from, bytes, kind, stream_), "hipMemcpyAsync"));
    return synchronize();
  }

  Hip hip_;
  Arch arch_ = Arch::gfx942;
  std::string description_;
  std::vector<void*> modules_;
  void* stream_ = nullptr;
  void* start_ = nullptr;
  void* stop_ = nullptr;
  BlasLt projections_{kHipBlasLt};
};

std::vector<Arch> embedded_archs() {
  std::vector<Arch> archs;
  for (const CodeObject& object : code_objects())
    if (archs.empty() || archs.back() != object.arch) archs.push_back(object.arch);
  return archs;
}

} // namespace

void* hip_stream(Device& device) {
  return static_cast<HipDevice&>(device).native_stream();
}

Result<std::unique_ptr<Device>> open_hip_device() {
  const std::vector<Arch> archs = embedded_archs();
  if (archs.empty()) return no_device("this build has no code objects");
  const Result<Hip> hip = load_hip();
  if (!hip) return hip.status();
  int count = 0;
  HipError error = hip->hipInit(0);
  if (error == 0) error = hip->hipGetDeviceCount(&count);
  if (error != 0) return no_device("no device (" + std::string(hip->hipGetErrorName(error)) + ")");
  if (count == 0) return no_device("no device");

  std::string reasons;
  for (int index = 0; index < count; ++index) {
    char description[256] = "unknown";
    hip->hipDeviceGetName(description, sizeof description, index);
    const Status set = hip->check(hip->hipSetDevice(index), "hipSetDevice");
    reasons += (index == 0 ? "" : "; ") + std::string(description) + ": " + set.what();
    for (std::size_t i = 0; set && i < archs.size(); ++i) {
      auto device = std::make_unique<HipDevice>(*hip);
      const Status opened = device->open(archs[i], description);
      if (opened) return Result<std::unique_ptr<Device>>(std::move(device));
      reasons += (i == 0 ? "" : ", ") + opened.what();
    }
  }
  return no_device(reasons);
}

} // namespace dsakit::optimized
