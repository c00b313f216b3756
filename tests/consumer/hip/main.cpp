// An ordinary HIP program: calls a kernel of dsakit with hipLaunchKernelGGL, and its launcher.
// Exit code: 0 both wrote the key, 1 they did not, 77 no GPU.
#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

extern "C" __global__ void
    dsakit_index_cache_write_e4m3fn(dsakit::optimized::IndexCacheWriteParams);

namespace dsakit::optimized::hip {
Status index_cache_write(const IndexCacheWriteParams&, void* workspace, std::size_t workspace_bytes,
                         hipStream_t);
}

namespace {

constexpr int kPageBytes = 16 * 132;

bool ok(hipError_t error, const char* call) {
  if (error != hipSuccess) std::fprintf(stderr, "%s: %s\n", call, hipGetErrorString(error));
  return error == hipSuccess;
}
#define CALL(...)                                                                                  \
  if (!ok(__VA_ARGS__, #__VA_ARGS__)) return 1

} // namespace

int main() {
  int devices = 0;
  if (hipGetDeviceCount(&devices) != hipSuccess || devices == 0) {
    std::puts("no HIP device");
    return 77;
  }
  hipStream_t stream;
  CALL(hipStreamCreate(&stream));
  const std::vector<std::uint16_t> key(128, 0x3F80); // bf16 1.0
  const std::int64_t slot = 0;
  void* device_key;
  void* device_slot;
  void* cache;
  CALL(hipMalloc(&device_key, 256));
  CALL(hipMalloc(&device_slot, sizeof slot));
  CALL(hipMalloc(&cache, kPageBytes));
  CALL(hipMemcpy(device_key, key.data(), 256, hipMemcpyHostToDevice));
  CALL(hipMemcpy(device_slot, &slot, sizeof slot, hipMemcpyHostToDevice));

  dsakit::optimized::IndexCacheWriteParams params{};
  params.index_k = static_cast<const std::uint16_t*>(device_key);
  params.slot_mapping = static_cast<const std::int64_t*>(device_slot);
  params.cache = static_cast<std::uint8_t*>(cache);
  params.index_k_stride = 128;
  params.page_stride = kPageBytes;
  params.tokens = 1;
  params.pages = 1;
  params.page_size = 16;
  params.amax_floor = 1e-4F;
  params.qmax = 448;
  params.encoding = dsakit::Fp8Encoding::e4m3fn;
  params.layout = dsakit::IndexPageLayout::block_flat;

  for (const bool by_launcher : {false, true}) {
    CALL(hipMemsetAsync(cache, 0xCB, kPageBytes, stream));
    if (by_launcher) {
      const dsakit::Status status =
          dsakit::optimized::hip::index_cache_write(params, nullptr, 0, stream);
      if (!status) {
        std::fprintf(stderr, "%s\n", status.what().c_str());
        return 1;
      }
    } else {
      hipLaunchKernelGGL(dsakit_index_cache_write_e4m3fn, dim3(1), dim3(256), 0, stream, params);
      CALL(hipGetLastError());
    }
    std::uint8_t page[kPageBytes];
    CALL(hipMemcpyAsync(page, cache, kPageBytes, hipMemcpyDeviceToHost, stream));
    CALL(hipStreamSynchronize(stream));
    // scale 2^-8, so 1.0 is the code of 256: 0x78.
    for (int i = 0; i < 128; ++i)
      if (page[i] != 0x78) {
        std::fprintf(stderr, "%s: byte %d is %#x, want 0x78\n", by_launcher ? "launcher" : "kernel",
                     i, page[i]);
        return 1;
      }
  }
  std::puts("kernel and launcher wrote the key");
  return 0;
}
