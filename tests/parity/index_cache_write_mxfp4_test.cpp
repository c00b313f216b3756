// index_cache_write to MXFP4 pages: kernel against reference, byte for byte, on every device.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/index_cache_write.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/mxfp4_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_cache_write_mxfp4_test {

using testing::Mxfp4Case;
using testing::OnDevice;

struct Keys {
  std::vector<std::uint16_t> rows; // [tokens, stride]
  std::int64_t stride = 128;
  std::vector<std::int64_t> slots;
};

class IndexCacheWriteMxfp4 : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// Writes the keys into a poisoned cache by kernel and by reference; the bytes must be equal.
  void expect_same_bytes(const Mxfp4Case& c, const Keys& keys, std::int64_t pages,
                         Hadamard hadamard = Hadamard::none) {
    const std::vector<std::uint8_t> before(static_cast<std::size_t>(pages * c.page_stride()), 0xA5);
    const auto tokens = static_cast<std::int64_t>(keys.slots.size());
    std::vector<std::uint8_t> want = before;
    std::vector<std::uint16_t> contiguous;
    for (std::int64_t t = 0; t < tokens; ++t)
      contiguous.insert(contiguous.end(), keys.rows.begin() + t * keys.stride,
                        keys.rows.begin() + t * keys.stride + 128);
    // The reference refuses slots past the pool; the kernel skips them as it skips -1.
    std::vector<std::int64_t> slots = keys.slots;
    for (std::int64_t& slot : slots)
      if (slot >= pages * c.page_size) slot = -1;
    ASSERT_TRUE(reference::index_cache_write_mxfp4(c.pages(), {ActivationDtype::bf16, hadamard},
                                                   contiguous.data(), tokens, slots,
                                                   {want.data(), pages, c.page_stride()}));

    OnDevice<std::uint16_t> index_k(*device_, keys.rows);
    OnDevice<std::int64_t> slot_mapping(*device_, keys.slots);
    OnDevice<std::uint8_t> cache(*device_, before);
    optimized::IndexCacheWriteMxfp4Params params{};
    params.index_k = index_k.data();
    params.slot_mapping = slot_mapping.data();
    params.cache = cache.data();
    params.index_k_stride = keys.stride;
    params.page_stride = c.page_stride();
    params.tokens = tokens;
    params.pages = pages;
    params.page_size = static_cast<std::int32_t>(c.page_size);
    params.hadamard = hadamard == Hadamard::query_and_key;
    params.layout = c.layout;
    const Status status = testing::run_kernel(*device_, params);
    ASSERT_TRUE(status) << status.what();
    testing::expect_same("page, byte", cache.values(), want,
                         static_cast<std::size_t>(c.page_stride()));
  }
};

TEST_P(IndexCacheWriteMxfp4, RandomRowsInEveryLayout) {
  for (const Mxfp4Case& c : testing::mxfp4_cases())
    for (const Hadamard hadamard : {Hadamard::none, Hadamard::query_and_key}) {
      SCOPED_TRACE(c.name() + " " + std::string(name(hadamard)));
      std::mt19937 random(static_cast<unsigned>(c.page_size));
      std::normal_distribution<float> normal;
      const std::int64_t pages = 1 + 300 / c.page_size;
      Keys keys;
      keys.stride = 136; // rows of a wider tensor
      keys.slots.resize(static_cast<std::size_t>(pages * c.page_size));
      std::iota(keys.slots.begin(), keys.slots.end(), 0);
      std::shuffle(keys.slots.begin(), keys.slots.end(), random);
      keys.slots.resize(std::min<std::size_t>(77, keys.slots.size()));
      keys.slots[3] = -1;
      keys.slots[5] = pages * c.page_size; // the first slot past the pool
      keys.rows.resize(keys.slots.size() * 136 + 7, 0x7FC0);
      for (std::size_t t = 0; t < keys.slots.size(); ++t)
        for (std::size_t d = 0; d < 128; ++d)
          keys.rows[t * 136 + d] = testing::to_bf16(
              normal(random) * (t % 7 == 0 ? 1e-6f : 3.0f + 9.0f * static_cast<float>(d / 32 % 3)));
      expect_same_bytes(c, keys, pages, hadamard);
    }
}

// Every token of a page, in both layouts: where each of its bytes lies.
TEST_P(IndexCacheWriteMxfp4, EveryByteOfAPageHasItsPlace) {
  for (const IndexPageLayout layout : {IndexPageLayout::flat, IndexPageLayout::preshuffle64}) {
    SCOPED_TRACE(std::string(name(layout)));
    Keys keys;
    for (std::int64_t slot = 0; slot < 192; ++slot) {
      keys.slots.push_back(191 - slot);
      for (std::int64_t d = 0; d < 128; ++d) // group g of token t: a scale and codes of its own
        keys.rows.push_back(testing::to_bf16(std::ldexp(static_cast<float>((slot + d) % 13 - 6),
                                                        static_cast<int>(slot % 31 + d / 32))));
    }
    expect_same_bytes({layout, 64, 0}, keys, 3);
  }
}

// S02, spec 11: zeros, -0, values below the floor, NaN and infinities, as index_query_quant.
TEST_P(IndexCacheWriteMxfp4, S02_ZeroTinyAndNonFiniteRows) {
  Keys keys;
  keys.rows.assign(std::size_t{5} * 128, 0);
  for (std::size_t d = 0; d < 128; ++d) {
    keys.rows[128 + d] = d % 2 ? 0x8000 : 0x0003;
    keys.rows[256 + d] = d == 9 ? 0x7FC0 : 0x3FC0;
    keys.rows[384 + d] = d == 127 ? 0xFF80 : 0xBFC0;
    keys.rows[512 + d] = 0xFFC1;
  }
  keys.slots = {4, 0, 2, 1, 3};
  for (const Hadamard hadamard : {Hadamard::none, Hadamard::query_and_key})
    expect_same_bytes({IndexPageLayout::flat, 5, 0}, keys, 1, hadamard);
}

TEST_P(IndexCacheWriteMxfp4, NoTokensWriteNothing) {
  expect_same_bytes({IndexPageLayout::flat, 64, 0}, {}, 2);
}

// S20: only as many rows as there are slots are taken.
TEST_P(IndexCacheWriteMxfp4, S20_RowsBeyondTheSlotsAreIgnored) {
  Keys keys;
  keys.rows.assign(std::size_t{20} * 128, testing::to_bf16(2.0f));
  keys.slots = {1, -1, 65};
  expect_same_bytes({IndexPageLayout::preshuffle64, 64, 0}, keys, 2);
}

TEST_P(IndexCacheWriteMxfp4, RefusesWhatItCannotWrite) {
  optimized::IndexCacheWriteMxfp4Params params{};
  params.index_k_stride = 128;
  params.page_stride = 64 * 68;
  params.page_size = 64;
  params.layout = IndexPageLayout::flat;
  const auto refusal = [&](auto change) {
    optimized::IndexCacheWriteMxfp4Params changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) {
              p.layout = IndexPageLayout::block_flat;
            }).find("block_flat does not hold MXFP4 keys, want flat | preshuffle64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_stride = 4348; }).find("4348 bytes, want at least 4352"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) {
              p.layout = IndexPageLayout::preshuffle64;
              p.page_size = 32;
            }).find("page_size is 32, want 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_size = 0; }).find("page_size is 0, want at least 1"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.index_k_stride = 130; }).find("130 elements"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexCacheWriteMxfp4,
                         ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_cache_write_mxfp4_test
} // namespace dsakit
