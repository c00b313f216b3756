// mla_cache_write: kernel against reference, byte for byte, on every device.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/mla_cache_write.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/mla_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace mla_cache_write_test {

using testing::MlaPages;
using testing::OnDevice;

constexpr std::int64_t kKvStride = 512 + 40; // elements: rows of wider tensors
constexpr std::int64_t kPeStride = 64 + 8;

struct Quant {
  Fp8Encoding encoding;
  float qmax;
};
constexpr Quant kQuants[] = {{Fp8Encoding::e4m3fn, 448},
                             {Fp8Encoding::e4m3fn, 224},
                             {Fp8Encoding::e4m3fnuz, 240},
                             {Fp8Encoding::e4m3fnuz, 224}};

struct Latents {
  std::vector<std::uint16_t> kv_c = {}; // [>= tokens, 512]
  std::vector<std::uint16_t> k_pe = {}; // [>= tokens, 64]
  std::vector<std::int64_t> slots = {}; // [tokens]

  std::int64_t rows() const { return static_cast<std::int64_t>(k_pe.size() / 64); }
};

/// k_pe names its row and dim.
Latents latents(std::int64_t rows) {
  Latents l;
  l.kv_c.assign(static_cast<std::size_t>(rows) * 512, 0x3F80);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t d = 0; d < 64; ++d)
      l.k_pe.push_back(static_cast<std::uint16_t>(row * 64 + d));
  return l;
}

Latents random_latents(std::int64_t rows, unsigned seed) {
  Latents l = latents(rows);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::size_t tile = 0; tile < l.kv_c.size() / 128; ++tile) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 40) - 20);
    for (std::size_t d = 0; d < 128; ++d)
      l.kv_c[tile * 128 + d] = testing::to_bf16(normal(random) * size);
  }
  return l;
}

std::vector<std::uint16_t> widen(const std::vector<std::uint16_t>& rows, std::int64_t width,
                                 std::int64_t stride) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size()) / width;
  std::vector<std::uint16_t> wide(static_cast<std::size_t>(count * stride), 0x7FC0);
  for (std::int64_t row = 0; row < count; ++row)
    std::copy_n(rows.begin() + row * width, width, wide.begin() + row * stride);
  return wide;
}

class MlaCacheWrite : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  void expect_same_bytes(const Quant& quant, const MlaPages& pages, const Latents& l) {
    std::vector<std::uint8_t> want(static_cast<std::size_t>(pages.bytes()), 0xA5);
    const std::vector<std::uint8_t> before = want;
    std::vector<std::int64_t> slots = l.slots;
    for (std::int64_t& slot : slots) // the reference refuses what the kernel skips
      if (slot < 0 || slot >= pages.slots()) slot = -1;
    ASSERT_TRUE(reference::mla_cache_write(
        {quant.encoding, ActivationDtype::bf16, quant.qmax}, l.kv_c.data(), l.k_pe.data(), l.rows(),
        slots,
        {want.data(), pages.pages, pages.page_size, pages.page_stride(), pages.record_stride()}));

    OnDevice<std::uint16_t> kv_c(*device_, widen(l.kv_c, 512, kKvStride));
    OnDevice<std::uint16_t> k_pe(*device_, widen(l.k_pe, 64, kPeStride));
    OnDevice<std::int64_t> slot_mapping(*device_, l.slots);
    OnDevice<std::uint8_t> cache(*device_, before);
    optimized::MlaCacheWriteParams params{};
    params.kv_c = kv_c.data();
    params.k_pe = k_pe.data();
    params.slot_mapping = slot_mapping.data();
    params.cache = cache.data();
    params.kv_c_stride = kKvStride;
    params.k_pe_stride = kPeStride;
    params.page_stride = pages.page_stride();
    params.record_stride = pages.record_stride();
    params.tokens = static_cast<std::int64_t>(l.slots.size());
    params.pages = pages.pages;
    params.page_size = static_cast<std::int32_t>(pages.page_size);
    params.qmax = quant.qmax;
    params.encoding = quant.encoding;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();
    testing::expect_same("mla_cache", cache.values(), want,
                         static_cast<std::size_t>(pages.page_stride()));
  }
};

// S15, S16: pages and records with and without room behind them.
TEST_P(MlaCacheWrite, S15_S16_EveryStride) {
  unsigned seed = 0;
  for (const MlaPages& pages :
       {MlaPages{7, 64}, MlaPages{301, 1}, MlaPages{11, 16, 2048}, MlaPages{5, 53, 0, 16},
        MlaPages{9, 3, 32, 112}, MlaPages{23, 2, 16}})
    for (const Quant& quant : kQuants) {
      SCOPED_TRACE(std::string(name(quant.encoding)) + " qmax " + std::to_string(quant.qmax) +
                   " page " + std::to_string(pages.page_size));
      Latents l = random_latents(37, ++seed);
      std::vector<std::int64_t> slots(static_cast<std::size_t>(pages.slots()));
      for (std::size_t i = 0; i < slots.size(); ++i)
        slots[i] = static_cast<std::int64_t>(i);
      std::mt19937 random(seed);
      std::shuffle(slots.begin(), slots.end(), random);
      slots.resize(std::min<std::size_t>(slots.size(), 37));
      slots[3] = -1;
      slots[5] = pages.slots(); // the first slot past the pool
      l.slots = slots;
      expect_same_bytes(quant, pages, l);
    }
}

// Every bf16 value beside its neighbours, and beside an element that sets the tile's scale.
TEST_P(MlaCacheWrite, All65536InputsThroughEachWriter) {
  for (const Quant& quant : kQuants)
    for (std::uint32_t anchor : {0x0000u, 0x3F80u, 0x43E0u, 0x3C23u, 0x0080u, 0x7F7Fu}) {
      SCOPED_TRACE(std::string(name(quant.encoding)) + " qmax " + std::to_string(quant.qmax));
      Latents l = latents(130); // 520 tiles of 127 values and the anchor
      for (std::size_t tile = 0; tile < 520; ++tile) {
        for (std::size_t i = 0; i < 127; ++i)
          l.kv_c[tile * 128 + i] =
              static_cast<std::uint16_t>(std::min<std::size_t>(tile * 127 + i, 0xFFFF));
        l.kv_c[tile * 128 + 127] = static_cast<std::uint16_t>(anchor);
      }
      for (std::int64_t t = 0; t < 130; ++t)
        l.slots.push_back(129 - t);
      expect_same_bytes(quant, {3, 64}, l);
    }
}

// S02: an all-zero tile gets the smallest normal scale, and so does one too small for another.
TEST_P(MlaCacheWrite, S02_ZeroAndTinyTilesKeepAPositiveScale) {
  Latents l = latents(2);
  std::fill(l.kv_c.begin(), l.kv_c.end(), std::uint16_t{0});
  l.kv_c[128 + 77] = 0x0001;                      // the smallest subnormal
  std::fill_n(l.kv_c.begin() + 256, 128, 0x8000); // -0
  l.kv_c[384] = 0x0400;                           // amax / 448 is subnormal
  std::fill_n(l.kv_c.begin() + 512, 128, 0x0080); // FLT_MIN
  l.slots = {1, 0};
  for (const Quant& quant : kQuants)
    expect_same_bytes(quant, {1, 2}, l);
}

// S08, S48: the maximum of a tile may lie in any element; no tile sees another's.
TEST_P(MlaCacheWrite, S08_S48_TheMaximumMayLieAnywhere) {
  Latents l = latents(128);
  for (std::size_t t = 0; t < 128; ++t) {
    for (std::size_t tile = 0; tile < 4; ++tile)
      l.kv_c[t * 512 + tile * 128 + (t + 31 * tile) % 128] =
          testing::to_bf16((t % 2 ? -3.0f : 5.0f) * static_cast<float>(tile + 1));
    l.slots.push_back(static_cast<std::int64_t>(t));
  }
  expect_same_bytes(kQuants[0], {2, 64}, l);
}

// Spec 11: NaN takes no part in amax and becomes the format's NaN; an infinity saturates.
TEST_P(MlaCacheWrite, NonFiniteElements) {
  Latents l = latents(3);
  l.kv_c[9] = 0x7FC0;         // NaN
  l.kv_c[128 + 127] = 0xFF80; // -inf
  l.kv_c[256] = 0x7F80;       // inf beside NaN
  l.kv_c[257] = 0xFFFF;
  std::fill_n(l.kv_c.begin() + 384, 128, 0xFFC1); // nothing but NaN
  std::fill_n(l.kv_c.begin() + 512, 128, 0x7F80); // nothing but inf
  l.k_pe[5] = 0x7F80;                             // k_pe is copied whatever it is
  l.k_pe[6] = 0xFFFF;
  l.slots = {2, 0, 1};
  for (const Quant& quant : kQuants)
    expect_same_bytes(quant, {1, 3}, l);
}

// S20: only as many rows as there are slots are taken.
TEST_P(MlaCacheWrite, S20_RowsBeyondTheSlotsAreIgnored) {
  Latents l = random_latents(20, 5);
  l.slots = {1, -1, 17, -7};
  expect_same_bytes(kQuants[0], {2, 16}, l);
}

TEST_P(MlaCacheWrite, NoTokensWriteNothing) {
  expect_same_bytes(kQuants[0], {2, 3}, {});
}

TEST_P(MlaCacheWrite, RefusesWhatItCannotWrite) {
  optimized::MlaCacheWriteParams params{};
  params.kv_c_stride = 512;
  params.k_pe_stride = 64;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.page_size = 64;
  params.qmax = 448;
  const auto refusal = [&](auto change) {
    optimized::MlaCacheWriteParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.record_stride = 640; }).find("640 bytes, want at least 656"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.record_stride = 660; }).find("multiple of 16"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_stride = 41992; }).find("41992"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_size = 0; }).find("page_size is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.kv_c_stride = 516; }).find("516 elements"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.k_pe_stride = 65; }).find("65 elements"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, MlaCacheWrite, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesMlaCacheWrite : public MlaCacheWrite {};

// S12: page offsets past 2^32 bytes, in memory that is touched in one place.
TEST_P(HostLanesMlaCacheWrite, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kPageStride = (std::int64_t{1} << 32) + 656;
  void* region = mmap(nullptr, 2 * kPageStride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 8 GiB of address space";
  auto* cache = static_cast<std::uint8_t*>(region);
  const Latents l = random_latents(1, 9);
  std::vector<std::uint8_t> want(656);
  const std::int64_t first = 0;
  ASSERT_TRUE(reference::mla_cache_write({Fp8Encoding::e4m3fn, ActivationDtype::bf16, 448.0f},
                                         l.kv_c.data(), l.k_pe.data(), 1, {&first, 1},
                                         {want.data(), 1, 1, 656, 656}));
  OnDevice<std::uint16_t> kv_c(*device_, l.kv_c);
  OnDevice<std::uint16_t> k_pe(*device_, l.k_pe);
  const std::int64_t slot = 1; // the second page
  optimized::MlaCacheWriteParams params{};
  params.kv_c = kv_c.data();
  params.k_pe = k_pe.data();
  params.slot_mapping = &slot;
  params.cache = cache;
  params.kv_c_stride = 512;
  params.k_pe_stride = 64;
  params.page_stride = kPageStride;
  params.record_stride = 656;
  params.tokens = 1;
  params.pages = 2;
  params.page_size = 1;
  params.qmax = 448;
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_TRUE(status) << status.what();
  testing::expect_same("mla_cache",
                       std::vector<std::uint8_t>(cache + kPageStride, cache + kPageStride + 656),
                       want, 656);
  munmap(region, 2 * kPageStride);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesMlaCacheWrite, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace mla_cache_write_test
} // namespace dsakit
