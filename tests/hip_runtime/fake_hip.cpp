// A stand-in for libamdhip64 without a GPU: memory is the host's, launches are only written down.
// It is as strict as the real one where dsakit relies on it: a code object of another arch does not
// load, a kernel that the code object lacks is not found, a launch takes its arguments as a tagged
// buffer.
#include "fake_hip.hpp"

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNoDevice = 100;
constexpr int kNoBinaryForGpu = 209;
constexpr int kNotFound = 500;

std::vector<FakeLaunch> launches;

long from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtol(text, nullptr, 0) : 0;
}

std::string_view file_of(const void* image) {
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  return {static_cast<const char*>(image),
          header->e_shoff + std::size_t{header->e_shnum} * header->e_shentsize};
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT std::vector<FakeLaunch>* fake_hip_launches() {
  return &launches;
}

EXPORT int hipInit(unsigned) {
  return from_environment("FAKE_HIP_DEVICES") ? 0 : kNoDevice;
}
EXPORT const char* hipGetErrorName(int error) {
  switch (error) {
  case kNoDevice:
    return "hipErrorNoDevice";
  case kNoBinaryForGpu:
    return "hipErrorNoBinaryForGpu";
  case kNotFound:
    return "hipErrorNotFound";
  default:
    return "hipErrorInvalidValue";
  }
}
EXPORT int hipGetDeviceCount(int* count) {
  *count = static_cast<int>(from_environment("FAKE_HIP_DEVICES"));
  return 0;
}
EXPORT int hipSetDevice(int) {
  return 0;
}
EXPORT int hipDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Fake Instinct", static_cast<std::size_t>(bytes));
  return 0;
}

EXPORT int hipModuleLoadData(void** module, const void* image) {
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return kInvalidValue;
  if ((header->e_flags & 0xFF) != from_environment("FAKE_HIP_MACH")) return kNoBinaryForGpu;
  *module = const_cast<void*>(image);
  return 0;
}
EXPORT int hipModuleUnload(void*) {
  return 0;
}
EXPORT int hipModuleGetFunction(void** function, void* module, const char* symbol) {
  // In the string table, a kernel's descriptor is <symbol>.kd between zeros.
  const std::string descriptor = '\0' + std::string(symbol) + ".kd" + '\0';
  if (file_of(module).find(descriptor) == std::string_view::npos) return kNotFound;
  *function = const_cast<char*>(symbol);
  return 0;
}
EXPORT int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned /*lds_bytes*/, void* /*stream*/, void** params,
                                 void** extra) {
  const auto tag = [extra](int i) { return reinterpret_cast<std::uintptr_t>(extra[i]); };
  if (params || !extra || tag(0) != 1 || tag(2) != 2 || tag(4) != 3) return kInvalidValue;
  const auto* bytes = static_cast<const std::uint8_t*>(extra[1]);
  launches.push_back({static_cast<const char*>(function),
                      {grid_x, grid_y, grid_z},
                      {block_x, block_y, block_z},
                      {bytes, bytes + *static_cast<const std::size_t*>(extra[3])}});
  return from_environment("FAKE_HIP_LAUNCH_ERROR") ? kInvalidValue : 0;
}

EXPORT int hipStreamCreate(void** stream) {
  *stream = &launches;
  return 0;
}
EXPORT int hipStreamDestroy(void*) {
  return 0;
}
EXPORT int hipStreamSynchronize(void*) {
  return 0;
}
EXPORT int hipEventCreate(void** event) {
  *event = &launches;
  return 0;
}
EXPORT int hipEventDestroy(void*) {
  return 0;
}
EXPORT int hipEventRecord(void*, void*) {
  return 0;
}
EXPORT int hipEventSynchronize(void*) {
  return 0;
}
EXPORT int hipEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0.5F;
  return 0;
}
EXPORT int hipMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return 0;
}
EXPORT int hipFree(void* memory) {
  std::free(memory);
  return 0;
}
EXPORT int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void*) {
  if (kind != 1 && kind != 2) return kInvalidValue;
  std::memcpy(to, from, bytes);
  return 0;
}
