// index_cache_write: kernel against reference, byte for byte, on every device.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_cache_write.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_cache_write_test {

using testing::IndexCase;
using testing::OnDevice;

struct Keys {
  std::vector<std::uint16_t> rows; // [tokens, stride]
  std::int64_t stride = 128;
  std::vector<std::int64_t> slots;
};

class IndexCacheWrite : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// Writes the keys into a poisoned cache by kernel and by reference; the bytes must be equal.
  void expect_same_bytes(const IndexCase& c, const Keys& keys, std::int64_t pages,
                         float floor = 1e-4f, float qmax = 0) {
    if (qmax == 0) qmax = c.encoding == Fp8Encoding::e4m3fn ? 448.0f : 224.0f;
    const IndexKeyQuant contract{c.pages(), ActivationDtype::bf16, ScaleKind::ue8m0, floor, qmax};
    const std::vector<std::uint8_t> before(static_cast<std::size_t>(pages * c.page_stride()), 0xA5);

    std::vector<std::uint8_t> want = before;
    std::vector<std::uint16_t> contiguous;
    for (std::size_t t = 0; t < keys.slots.size(); ++t)
      contiguous.insert(contiguous.end(),
                        keys.rows.begin() + static_cast<std::ptrdiff_t>(t) * keys.stride,
                        keys.rows.begin() + static_cast<std::ptrdiff_t>(t) * keys.stride + 128);
    // The reference refuses slots past the pool; the kernel skips them as it skips -1.
    std::vector<std::int64_t> slots = keys.slots;
    for (std::int64_t& slot : slots)
      if (slot >= pages * c.page_size) slot = -1;
    ASSERT_TRUE(reference::index_cache_write(contract, contiguous.data(),
                                             static_cast<std::int64_t>(keys.slots.size()), slots,
                                             {want.data(), pages, c.page_stride()}));

    OnDevice<std::uint16_t> index_k(*device_, keys.rows);
    OnDevice<std::int64_t> slot_mapping(*device_, keys.slots);
    OnDevice<std::uint8_t> cache(*device_, before);
    optimized::IndexCacheWriteParams params{};
    params.index_k = index_k.data();
    params.slot_mapping = slot_mapping.data();
    params.cache = cache.data();
    params.index_k_stride = keys.stride;
    params.page_stride = c.page_stride();
    params.tokens = static_cast<std::int64_t>(keys.slots.size());
    params.pages = pages;
    params.page_size = static_cast<std::int32_t>(c.page_size);
    params.amax_floor = floor;
    params.qmax = qmax;
    params.encoding = c.encoding;
    params.layout = c.layout;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();

    const std::vector<std::uint8_t> got = cache.values();
    std::size_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      if (got[i] != want[i] && ++different == 1)
        ADD_FAILURE() << "page " << static_cast<std::int64_t>(i) / c.page_stride() << " byte "
                      << static_cast<std::int64_t>(i) % c.page_stride() << ": got " << int{got[i]}
                      << ", want " << int{want[i]};
    EXPECT_EQ(different, 0u);
  }
};

std::vector<std::int64_t> shuffled_slots(std::int64_t count, std::int64_t pool,
                                         std::mt19937& random) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(pool));
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<std::int64_t>(i);
  std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(static_cast<std::size_t>(count));
  return slots;
}

TEST_P(IndexCacheWrite, RandomRowsInEveryLayout) {
  for (const IndexCase& c : testing::index_cases()) {
    SCOPED_TRACE(std::string(name(c.encoding)) + " " + std::string(name(c.layout)) + " page " +
                 std::to_string(c.page_size));
    std::mt19937 random(static_cast<unsigned>(c.page_size));
    std::normal_distribution<float> normal;
    const std::int64_t pages = 1 + 300 / c.page_size;
    Keys keys;
    keys.stride = 136; // rows of a wider tensor
    keys.slots = shuffled_slots(std::min<std::int64_t>(37, pages * c.page_size),
                                pages * c.page_size, random);
    keys.slots[3] = -1;
    keys.slots[5] = pages * c.page_size; // the first slot past the pool
    keys.rows.resize(keys.slots.size() * 136 + 7, 0x7FC0);
    for (std::size_t t = 0; t < keys.slots.size(); ++t)
      for (std::size_t d = 0; d < 128; ++d)
        keys.rows[t * 136 + d] = testing::to_bf16(normal(random) * (t % 7 == 0 ? 1e-6f : 3.0f));
    expect_same_bytes(c, keys, pages);
  }
}

// Every bf16 value goes through each writer many times: once beside its neighbours, then beside an
// element that sets the row's scale from far below it to the row's own.
TEST_P(IndexCacheWrite, All65536InputsThroughEachWriter) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (float qmax : {448.0f, 240.0f, 224.0f}) {
      if (encoding == Fp8Encoding::e4m3fnuz && qmax == 448.0f) continue;
      SCOPED_TRACE(std::string(name(encoding)) + " qmax " + std::to_string(qmax));
      const IndexCase c{encoding, IndexPageLayout::block_flat, 64, 0};
      for (std::uint32_t anchor : {0x0000u, 0x3F80u, 0x43E0u, 0x4360u, 0x4370u, 0x3900u, 0x7F7Fu}) {
        Keys keys;
        for (std::uint32_t first = 0; first < 0x10000; first += 127) {
          for (std::uint32_t i = 0; i < 127; ++i)
            keys.rows.push_back(static_cast<std::uint16_t>(std::min(first + i, 0xFFFFu)));
          keys.rows.push_back(static_cast<std::uint16_t>(anchor));
          keys.slots.push_back(static_cast<std::int64_t>(keys.slots.size()));
        }
        expect_same_bytes(c, keys, 9, 1e-4f, qmax);
      }
    }
}

// S02: an all-zero row has a positive scale; so has a row below the floor, whatever the floor.
TEST_P(IndexCacheWrite, S02_ZeroAndTinyRowsKeepAPositiveScale) {
  Keys keys;
  keys.rows.assign(std::size_t{3} * 128, 0);
  keys.rows[128 + 77] = testing::to_bf16(1e-30f);
  for (std::size_t d = 0; d < 128; ++d)
    keys.rows[256 + d] = 0x8000; // -0
  keys.slots = {4, 0, 2};
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (float floor : {1e-4f, 1e-10f, 0x1p-117f})
      expect_same_bytes({encoding, IndexPageLayout::block_flat, 5, 0}, keys, 1, floor);
}

// Spec 11: NaN takes no part in amax and becomes the format's NaN; an infinity saturates.
TEST_P(IndexCacheWrite, NonFiniteElements) {
  Keys keys;
  keys.rows.assign(std::size_t{4} * 128, testing::to_bf16(1.5f));
  keys.rows[9] = 0x7FC0;         // NaN
  keys.rows[128 + 127] = 0xFF80; // -inf
  keys.rows[256] = 0x7F80;       // inf beside NaN
  keys.rows[257] = 0xFFFF;       // NaN
  for (std::size_t d = 0; d < 128; ++d)
    keys.rows[384 + d] = 0xFFC1; // nothing but NaN
  keys.slots = {3, 1, 0, 2};
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    expect_same_bytes({encoding, IndexPageLayout::block_flat, 4, 0}, keys, 1);
}

TEST_P(IndexCacheWrite, NoTokensWriteNothing) {
  expect_same_bytes({Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0}, {}, 2);
}

// S20: only as many rows as there are slots are taken.
TEST_P(IndexCacheWrite, S20_RowsBeyondTheSlotsAreIgnored) {
  Keys keys;
  keys.rows.assign(std::size_t{20} * 128, testing::to_bf16(2.0f));
  keys.slots = {1, -1, 17};
  expect_same_bytes({Fp8Encoding::e4m3fn, IndexPageLayout::mfma_preshuffle, 16, 0}, keys, 2);
}

TEST_P(IndexCacheWrite, RefusesWhatItCannotWrite) {
  optimized::IndexCacheWriteParams params{};
  params.index_k_stride = 128;
  params.page_stride = 64 * 132;
  params.page_size = 64;
  params.amax_floor = 1e-4f;
  params.qmax = 448;
  params.layout = IndexPageLayout::block_flat;
  const auto refusal = [&](auto change) {
    optimized::IndexCacheWriteParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.layout = IndexPageLayout::flat; }).find("flat"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_stride = 8444; }).find("8444 bytes, want at least 8448"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) {
              p.layout = IndexPageLayout::mfma_preshuffle;
              p.page_size = 40;
            }).find("page_size is 40"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.index_k_stride = 130; }).find("130 elements"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexCacheWrite, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_cache_write_test
} // namespace dsakit
