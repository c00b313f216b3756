// Writes one key into an index cache on host lanes, and reads a rule, all from installed headers.
#include <cstdint>
#include <cstdio>
#include <vector>

#include <dsakit/core/operations.hpp>
#include <dsakit/optimized/device.hpp>
#include <dsakit/optimized/index_cache_write.hpp>

using namespace dsakit;

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.what().c_str());
  return 1;
}

int main() {
  auto opened = optimized::open_device(optimized::DeviceKind::host);
  if (!opened) return fail(opened.status());
  optimized::Device& device = **opened;

  constexpr int kPageBytes = 16 * 132;
  const std::vector<std::uint16_t> key(128, 0x3F80); // bf16 1.0
  const std::int64_t slot = 0;
  void* memory[3];
  const std::size_t bytes[3] = {256, sizeof slot, kPageBytes};
  for (int i = 0; i < 3; ++i) {
    auto allocated = device.allocate(bytes[i]);
    if (!allocated) return fail(allocated.status());
    memory[i] = *allocated;
  }
  if (Status s = device.upload(memory[0], key.data(), bytes[0]); !s) return fail(s);
  if (Status s = device.upload(memory[1], &slot, bytes[1]); !s) return fail(s);

  optimized::IndexCacheWriteParams params{};
  params.index_k = static_cast<const std::uint16_t*>(memory[0]);
  params.slot_mapping = static_cast<const std::int64_t*>(memory[1]);
  params.cache = static_cast<std::uint8_t*>(memory[2]);
  params.index_k_stride = 128;
  params.page_stride = kPageBytes;
  params.tokens = 1;
  params.pages = 1;
  params.page_size = 16;
  params.amax_floor = 1e-4F;
  params.qmax = 448;
  params.encoding = Fp8Encoding::e4m3fn;
  params.layout = IndexPageLayout::block_flat;
  const auto kernel = optimized::pick(device.arch(), params);
  if (!kernel) return fail(kernel.status());
  if (Status s = (*kernel)->launch(params, nullptr, 0, device.stream()); !s) return fail(s);
  if (Status s = device.synchronize(); !s) return fail(s);

  std::uint8_t code = 0;
  if (Status s = device.download(&code, memory[2], 1); !s) return fail(s);
  for (void* block : memory)
    device.release(block);
  // scale 2^ceil(log2(1 / 448)) = 2^-8, so the code is that of 256: exponent 8 + 7, mantissa 0.
  std::printf("code %#x, want 0x78\n", code);
  return code == 0x78 ? 0 : 1;
}
