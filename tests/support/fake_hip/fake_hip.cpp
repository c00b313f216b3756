#include "fake_hip.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lane_kernels.hpp"
#include "manifest/code_object.hpp"
#include "memory.hpp"
#include "runtime/host_executor.hpp"

namespace {

using dsakit::code_object::KernelInfo;
using dsakit::optimized::Arch;

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kNoBinaryForGpu = 209;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kIllegalAddress = 700;
constexpr int kLaunchFailure = 719;
constexpr int kCaptureUnsupported = 900;

constexpr unsigned kMachGfx942 = 0x4C;
constexpr unsigned kMachGfx950 = 0x4F;

struct Module {
  Arch arch;
  std::map<std::string, KernelInfo> kernels;
};
struct Function {
  const Module* module;
  const KernelInfo* kernel;
};
using Work = std::function<int()>;
struct Stream {
  std::vector<Work> pending; // in order
  bool capturing = false;    // then what comes is noted and not done
  std::vector<Work> captured;

  std::vector<Work>& queue() { return capturing ? captured : pending; }
};
struct Graph {
  std::vector<Work> nodes;
};
struct Event {
  Stream* stream = nullptr;
  std::chrono::steady_clock::time_point time;
};

std::vector<FakeLaunch> launches;
std::string message;
std::set<Module*> modules;
std::map<std::pair<const Module*, std::string>, Function> functions;
std::set<Stream*> streams;
std::set<Event*> events;
std::set<Graph*> graphs;   // captured, and
std::set<Graph*> runnable; // instantiated

unsigned from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : 0;
}

int refuse(int error, std::string why) {
  message = std::move(why);
  std::fprintf(stderr, "fake HIP: %s\n", message.c_str());
  return error;
}

template <class T>
T* live(const std::set<T*>& all, void* handle) {
  const auto found = all.find(static_cast<T*>(handle));
  return found == all.end() ? nullptr : *found;
}

/// Does what waits in the stream; the first error, after which the rest is dropped. Nobody may wait
/// for a stream that is captured.
int drain(Stream& stream) {
  if (stream.capturing)
    return refuse(kCaptureUnsupported, "a stream is waited for while it is captured");
  const std::vector<Work> pending = std::exchange(stream.pending, {});
  if (pending.empty()) return 0;
  const fake_hip::DeviceAccess access;
  for (const Work& work : pending)
    if (const int error = work()) return error;
  return access.margins_intact()
             ? 0
             : refuse(kIllegalAddress, "bytes beside an allocation were written");
}

std::size_t lds_limit(Arch arch) {
  return arch == Arch::gfx950 ? 160 << 10 : 64 << 10;
}

/// What the metadata, and the host lanes' kernel, say against a launch; empty where nothing.
std::string objection(const Function& function, const unsigned (&grid)[3],
                      const unsigned (&block)[3], std::size_t dynamic_lds,
                      std::size_t argument_bytes) {
  const KernelInfo& kernel = *function.kernel;
  const auto differs = [&](const char* what, std::uint64_t found, const char* want,
                           std::uint64_t limit) {
    return kernel.name + ": " + what + " is " + std::to_string(found) + ", want " + want +
           std::to_string(limit);
  };
  if (argument_bytes != kernel.argument_bytes())
    return differs("the size of the packed arguments", argument_bytes, "", kernel.argument_bytes());
  if (kernel.kernarg_bytes < kernel.argument_bytes())
    return differs("kernarg_segment_size", kernel.kernarg_bytes, "at least ",
                   kernel.argument_bytes());
  if (kernel.arguments.size() != 1 || kernel.arguments[0].kind != "by_value")
    return kernel.name + ": the metadata has other arguments than one by value";
  if (kernel.arguments[0].offset != 0)
    return differs("the argument's offset", kernel.arguments[0].offset, "", 0);
  const std::uint64_t lanes = std::uint64_t{block[0]} * block[1] * block[2];
  if (lanes == 0 || lanes > kernel.max_lanes)
    return differs("the number of lanes in a block", lanes, "1 to ", kernel.max_lanes);
  for (int i = 0; i < 3; ++i)
    if (grid[i] == 0 || std::uint64_t{grid[i]} * block[i] > 0xFFFFFFFFu)
      return differs("the number of lanes along an axis", std::uint64_t{grid[i]} * block[i],
                     "1 to ", 0xFFFFFFFFu);
  if (kernel.wave_size != dsakit::optimized::host::kWaveSize)
    return differs("wavefront_size", kernel.wave_size, "", dsakit::optimized::host::kWaveSize);
  if (kernel.lds_bytes + dynamic_lds > lds_limit(function.module->arch))
    return differs("LDS", kernel.lds_bytes + dynamic_lds, "at most ",
                   lds_limit(function.module->arch));
  const auto* lanes_kernel = fake_hip::find_lane_kernel(function.module->arch, kernel.name);
  if (!lanes_kernel) return kernel.name + ": host lanes have no such kernel";
  if (lanes_kernel->argument_bytes != kernel.arguments[0].bytes)
    return differs("the size of the parameter struct in the code object", kernel.arguments[0].bytes,
                   "", lanes_kernel->argument_bytes);
  return {};
}

int run(const Function& function, const FakeLaunch& launch, std::size_t lds_bytes) {
  using namespace dsakit::optimized;
  host::ExecutorOptions options;
  options.lds_limit = lds_bytes;
  const auto lane = fake_hip::find_lane_kernel(function.module->arch, launch.kernel)
                        ->bind(launch.arguments.data());
  const dsakit::Status status =
      host::run_grid(options, {launch.kernel.c_str(),
                               {launch.grid[0], launch.grid[1], launch.grid[2]},
                               {launch.block[0], launch.block[1], launch.block[2]},
                               launch.arguments.data(),
                               launch.arguments.size(),
                               lane});
  return status ? 0 : refuse(kLaunchFailure, status.what());
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT std::vector<FakeLaunch>* fake_hip_launches() {
  return &launches;
}
EXPORT const char* fake_hip_message() {
  return message.c_str();
}

EXPORT int fake_hip_enqueue(void* handle, const std::function<int()>& work) {
  Stream* stream = live(streams, handle);
  if (!stream) return kInvalidHandle;
  stream->queue().push_back(work);
  return 0;
}
EXPORT bool fake_hip_is_device_memory(const void* memory, std::size_t bytes) {
  return fake_hip::is_device_memory(memory, bytes);
}

EXPORT int hipInit(unsigned) {
  return from_environment("FAKE_HIP_DEVICES") ? 0 : kNoDevice;
}
EXPORT const char* hipGetErrorName(int error) {
  switch (error) {
  case kOutOfMemory:
    return "hipErrorOutOfMemory";
  case kNoDevice:
    return "hipErrorNoDevice";
  case kInvalidDevice:
    return "hipErrorInvalidDevice";
  case kNoBinaryForGpu:
    return "hipErrorNoBinaryForGpu";
  case kInvalidHandle:
    return "hipErrorInvalidHandle";
  case kNotFound:
    return "hipErrorNotFound";
  case kIllegalAddress:
    return "hipErrorIllegalAddress";
  case kLaunchFailure:
    return "hipErrorLaunchFailure";
  case kCaptureUnsupported:
    return "hipErrorStreamCaptureUnsupported";
  default:
    return "hipErrorInvalidValue";
  }
}
EXPORT int hipGetDeviceCount(int* count) {
  *count = static_cast<int>(from_environment("FAKE_HIP_DEVICES"));
  return 0;
}
EXPORT int hipSetDevice(int device) {
  const auto devices = static_cast<int>(from_environment("FAKE_HIP_DEVICES"));
  return device >= 0 && device < devices ? 0 : kInvalidDevice;
}
EXPORT int hipDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake Instinct (host lanes)");
  return 0;
}

EXPORT int hipModuleLoadData(void** module, const void* image) {
  const auto object = dsakit::code_object::read_code_object(image);
  if (!object) return refuse(kInvalidValue, "no AMD code object with metadata");
  if (object->mach != from_environment("FAKE_HIP_MACH")) return kNoBinaryForGpu;
  if (object->mach != kMachGfx942 && object->mach != kMachGfx950) return kNoBinaryForGpu;
  auto loaded = std::make_unique<Module>();
  loaded->arch = object->mach == kMachGfx942 ? Arch::gfx942 : Arch::gfx950;
  loaded->kernels = object->kernels;
  *module = *modules.insert(loaded.release()).first;
  return 0;
}
EXPORT int hipModuleUnload(void* handle) {
  Module* module = live(modules, handle);
  if (!module) return kInvalidHandle;
  modules.erase(module);
  for (auto it = functions.begin(); it != functions.end();)
    it = it->first.first == module ? functions.erase(it) : std::next(it);
  delete module;
  return 0;
}
EXPORT int hipModuleGetFunction(void** function, void* handle, const char* symbol) {
  Module* module = live(modules, handle);
  if (!module) return kInvalidHandle;
  const auto kernel = module->kernels.find(symbol);
  if (kernel == module->kernels.end()) return kNotFound;
  *function = &(functions[{module, symbol}] = {module, &kernel->second});
  return 0;
}
EXPORT int hipModuleLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned lds_bytes, void* stream_handle, void** params,
                                 void** extra) {
  Stream* stream = live(streams, stream_handle);
  if (!stream) return refuse(kInvalidHandle, "a launch needs a stream of hipStreamCreate");
  const Function* function = nullptr;
  for (const auto& [key, one] : functions)
    if (&one == handle) function = &one;
  if (!function) return refuse(kInvalidHandle, "a launch needs a function of hipModuleGetFunction");
  const auto tag = [extra](int i) { return reinterpret_cast<std::uintptr_t>(extra[i]); };
  if (params || !extra || tag(0) != 1 || tag(2) != 2 || tag(4) != 3)
    return refuse(kInvalidValue, "arguments come as a tagged buffer, its size and an end");
  const std::size_t bytes = *static_cast<const std::size_t*>(extra[3]);
  const unsigned grid[] = {grid_x, grid_y, grid_z};
  const unsigned block[] = {block_x, block_y, block_z};
  std::string wrong = objection(*function, grid, block, lds_bytes, bytes);
  if (!wrong.empty()) return refuse(kInvalidValue, std::move(wrong));

  const auto* packed = static_cast<const std::uint8_t*>(extra[1]);
  const FakeLaunch launch{function->kernel->name,
                          {grid_x, grid_y, grid_z},
                          {block_x, block_y, block_z},
                          {packed, packed + bytes}};
  launches.push_back(launch);
  if (from_environment("FAKE_HIP_LAUNCH_ERROR")) return kInvalidValue;
  if (!from_environment("FAKE_HIP_DRY_RUN"))
    stream->queue().emplace_back([what = *function, launch, lds_bytes] {
      return run(what, launch, what.kernel->lds_bytes + lds_bytes);
    });
  return 0;
}

EXPORT int hipStreamCreate(void** stream) {
  *stream = *streams.insert(new Stream).first;
  return 0;
}
EXPORT int hipStreamDestroy(void* handle) {
  Stream* stream = live(streams, handle);
  if (!stream) return kInvalidHandle;
  const int error = drain(*stream);
  streams.erase(stream);
  delete stream;
  return error;
}
EXPORT int hipStreamSynchronize(void* handle) {
  Stream* stream = live(streams, handle);
  return stream ? drain(*stream) : kInvalidHandle;
}

EXPORT int hipStreamBeginCapture(void* handle, int mode) {
  constexpr int kThreadLocal = 1;
  Stream* stream = live(streams, handle);
  if (!stream) return kInvalidHandle;
  if (stream->capturing || mode != kThreadLocal)
    return refuse(kInvalidValue, "hipStreamBeginCapture: mode is " + std::to_string(mode));
  stream->capturing = true;
  return 0;
}
EXPORT int hipStreamEndCapture(void* handle, void** graph) {
  Stream* stream = live(streams, handle);
  if (!stream) return kInvalidHandle;
  if (!stream->capturing) return refuse(kInvalidValue, "hipStreamEndCapture: of no capture");
  stream->capturing = false;
  *graph = *graphs.insert(new Graph{std::exchange(stream->captured, {})}).first;
  return 0;
}
EXPORT int hipGraphInstantiateWithFlags(void** instance, void* handle, unsigned long long flags) {
  const Graph* graph = live(graphs, handle);
  if (!graph || flags != 0) return kInvalidHandle;
  *instance = *runnable.insert(new Graph(*graph)).first;
  return 0;
}
EXPORT int hipGraphLaunch(void* handle, void* stream_handle) {
  const Graph* graph = live(runnable, handle);
  Stream* stream = live(streams, stream_handle);
  if (!graph || !stream) return kInvalidHandle;
  stream->pending.insert(stream->pending.end(), graph->nodes.begin(), graph->nodes.end());
  return 0;
}
EXPORT int hipGraphDestroy(void* handle) {
  Graph* graph = live(graphs, handle);
  if (!graph) return kInvalidHandle;
  graphs.erase(graph);
  delete graph;
  return 0;
}
EXPORT int hipGraphExecDestroy(void* handle) {
  Graph* graph = live(runnable, handle);
  if (!graph) return kInvalidHandle;
  runnable.erase(graph);
  delete graph;
  return 0;
}

EXPORT int hipEventCreate(void** event) {
  *event = *events.insert(new Event).first;
  return 0;
}
EXPORT int hipEventDestroy(void* handle) {
  Event* event = live(events, handle);
  if (!event) return kInvalidHandle;
  Stream* stream = live(streams, event->stream); // what waits there may still write the time
  const int error = stream ? drain(*stream) : 0;
  events.erase(event);
  delete event;
  return error;
}
EXPORT int hipEventRecord(void* handle, void* stream_handle) {
  Event* event = live(events, handle);
  Stream* stream = live(streams, stream_handle);
  if (!event || !stream) return kInvalidHandle;
  event->stream = stream;
  stream->queue().emplace_back([event] {
    event->time = std::chrono::steady_clock::now();
    return 0;
  });
  return 0;
}
EXPORT int hipEventSynchronize(void* handle) {
  Event* event = live(events, handle);
  return event && event->stream ? drain(*event->stream) : kInvalidHandle;
}
EXPORT int hipEventElapsedTime(float* milliseconds, void* start, void* stop) {
  const Event* from = live(events, start);
  const Event* to = live(events, stop);
  if (!from || !to || !from->stream || !to->stream) return kInvalidHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return 0;
}

EXPORT int hipMalloc(void** memory, std::size_t bytes) {
  *memory = bytes == 0 ? nullptr : fake_hip::allocate_memory(bytes);
  return bytes == 0 || *memory ? 0 : kOutOfMemory;
}
EXPORT int hipFree(void* memory) {
  if (!memory) return 0;
  int error = 0; // like the real one, it waits for what may still use the memory
  for (Stream* stream : streams)
    if (const int one = drain(*stream); error == 0) error = one;
  if (!fake_hip::free_memory(memory)) return refuse(kInvalidValue, "hipFree of no allocation");
  return error;
}
EXPORT int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind,
                          void* stream_handle) {
  constexpr int kHostToDevice = 1;
  constexpr int kDeviceToHost = 2;
  Stream* stream = live(streams, stream_handle);
  if (!stream) return kInvalidHandle;
  if (kind != kHostToDevice && kind != kDeviceToHost)
    return refuse(kInvalidValue, "hipMemcpyAsync: kind is " + std::to_string(kind));
  if (bytes == 0) return 0;
  const void* on_device = kind == kHostToDevice ? to : from;
  const void* on_host = kind == kHostToDevice ? from : to;
  if (!fake_hip::is_device_memory(on_device, bytes) || fake_hip::is_device_memory(on_host, 1))
    return refuse(kInvalidValue, "hipMemcpyAsync: " + std::to_string(bytes) +
                                     " bytes do not lie in the memory that the kind names");
  stream->queue().emplace_back([to, from, bytes] {
    std::memcpy(to, from, bytes);
    return 0;
  });
  return 0;
}
EXPORT int hipMemcpy2DAsync(void* to, std::size_t to_stride, const void* from,
                            std::size_t from_stride, std::size_t bytes, std::size_t rows, int kind,
                            void* stream_handle) {
  constexpr int kDeviceToDevice = 3;
  Stream* stream = live(streams, stream_handle);
  if (!stream) return kInvalidHandle;
  if (kind != kDeviceToDevice || bytes > to_stride || bytes > from_stride || rows == 0)
    return refuse(kInvalidValue, "hipMemcpy2DAsync: want rows within their strides, on the device");
  if (!fake_hip::is_device_memory(to, (rows - 1) * to_stride + bytes) ||
      !fake_hip::is_device_memory(from, (rows - 1) * from_stride + bytes))
    return refuse(kInvalidValue, "hipMemcpy2DAsync: the rows leave their allocation");
  stream->queue().emplace_back([=] {
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_stride,
                  static_cast<const char*>(from) + row * from_stride, bytes);
    return 0;
  });
  return 0;
}
