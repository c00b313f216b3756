// index_logits_decode: kernel against the exact reference within the fp32 bound, on every device.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_logits_decode_test {

using testing::IndexCase;
using testing::OnDevice;

constexpr float kPoison = -12345.0f;

struct Problem {
  std::int64_t heads = 1;
  std::int64_t weights_stride = 0; // 0: heads
  std::int64_t columns = 0;
  std::int64_t pages = 0;
  std::int64_t table_columns = 0;
  std::int32_t next_n = 1;
  bool name_requests = true;   // row_request, rather than row / next_n
  std::vector<std::uint8_t> q; // [rows, heads, 128]
  std::vector<float> weights;  // [rows, heads]
  std::vector<std::uint8_t> cache;
  std::vector<std::int32_t> block_table;
  std::vector<std::int32_t> row_lens;
  std::vector<std::int32_t> row_request;

  std::int64_t rows() const { return static_cast<std::int64_t>(row_lens.size()); }
};

std::uint8_t finite_code(std::mt19937& random) {
  std::uint8_t code;
  do
    code = static_cast<std::uint8_t>(random());
  while ((code & 0x7F) == 0x7F || code == 0x80);
  return code;
}

/// requests x next_n rows of lengths around the seams of pages, tiles and workgroups.
Problem random_problem(const IndexCase& c, std::int64_t heads, std::int32_t next_n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p;
  p.heads = heads;
  p.next_n = next_n;
  const std::int32_t contexts[] = {next_n - 1, 17, 255, 257, 530};
  const std::int64_t requests = std::size(contexts);
  p.columns = 531;
  p.table_columns = (p.columns + c.page_size - 1) / c.page_size;
  p.block_table = testing::random_block_table(requests, p.table_columns, random);
  p.pages = requests * p.table_columns;
  p.cache = testing::random_cache(c, p.pages, random);
  for (std::int32_t b = 0; b < requests; ++b)
    for (std::int32_t n = 0; n < next_n; ++n) {
      p.row_lens.push_back(contexts[b] - next_n + n + 1);
      p.row_request.push_back(b);
      for (std::int64_t h = 0; h < heads; ++h)
        p.weights.push_back(normal(random));
      for (std::int64_t i = 0; i < heads * 128; ++i)
        p.q.push_back(finite_code(random));
    }
  return p;
}

class IndexLogitsDecode : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  std::vector<float> kernel_logits(optimized::Device& device, const IndexCase& c,
                                   const Problem& p) {
    const std::int64_t weights_stride = p.weights_stride ? p.weights_stride : p.heads;
    std::vector<float> weights(static_cast<std::size_t>(p.rows() * weights_stride),
                               std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < p.rows(); ++r)
      for (std::int64_t h = 0; h < p.heads; ++h)
        weights[static_cast<std::size_t>(r * weights_stride + h)] =
            p.weights[static_cast<std::size_t>(r * p.heads + h)];
    OnDevice<std::uint8_t> q(device, p.q);
    OnDevice<std::uint8_t> cache(device, p.cache);
    OnDevice<float> weights_on(device, weights);
    OnDevice<std::int32_t> table(device, p.block_table);
    OnDevice<std::int32_t> lens(device, p.row_lens);
    OnDevice<std::int32_t> requests(device, p.row_request);
    OnDevice<float> logits(
        device, std::vector<float>(static_cast<std::size_t>(p.rows() * p.columns), kPoison));
    optimized::IndexLogitsDecodeParams params{};
    params.q = q.data();
    params.cache = cache.data();
    params.weights = weights_on.data();
    params.block_table = table.data();
    params.row_lens = lens.data();
    params.row_request = p.name_requests ? requests.data() : nullptr;
    params.logits = logits.data();
    params.q_stride = p.heads * 128;
    params.weights_stride = weights_stride;
    params.logits_stride = p.columns;
    params.page_stride = c.page_stride();
    params.table_stride = p.table_columns;
    params.rows = p.rows();
    params.pages = p.pages;
    params.heads = static_cast<std::int32_t>(p.heads);
    params.requests = static_cast<std::int32_t>(
        p.table_columns ? static_cast<std::int64_t>(p.block_table.size()) / p.table_columns : 0);
    params.table_columns = static_cast<std::int32_t>(p.table_columns);
    params.next_n = p.next_n;
    params.columns = static_cast<std::int32_t>(p.columns);
    params.page_size = static_cast<std::int32_t>(c.page_size);
    params.encoding = c.encoding;
    params.layout = c.layout;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    return logits.values();
  }

  void expect_within_bound(const IndexCase& c, const Problem& p) {
    const reference::IndexLogitsDecode in{
        p.q.data(),
        p.weights.data(),
        {p.cache.data(), p.pages, c.page_stride()},
        {p.block_table.data(),
         p.table_columns ? static_cast<std::int64_t>(p.block_table.size()) / p.table_columns : 0,
         p.table_columns},
        p.row_lens.data(),
        p.row_request.data(),
        p.rows(),
        p.heads,
        p.columns};
    const auto cells = static_cast<std::size_t>(p.rows() * p.columns);
    std::vector<double> exact(cells, kPoison);
    std::vector<double> bound(cells);
    ASSERT_TRUE(reference::index_logits_decode<reference::Exact>(c.pages(), in, exact.data()));
    ASSERT_TRUE(
        reference::index_logits_decode_bound(c.pages(), in, Accumulation::fp32, bound.data()));
    const std::vector<float> got = kernel_logits(*device_, c, p);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < cells; ++i) {
      const bool right = std::isnan(exact[i])   ? std::isnan(got[i])
                         : std::isinf(exact[i]) ? static_cast<double>(got[i]) == exact[i]
                                                : std::fabs(got[i] - exact[i]) <= bound[i];
      if (!right && ++wrong == 1)
        ADD_FAILURE() << "row " << i / static_cast<std::size_t>(p.columns) << " key "
                      << i % static_cast<std::size_t>(p.columns) << ": got " << got[i] << ", want "
                      << exact[i] << " within " << bound[i];
    }
    EXPECT_EQ(wrong, 0u);
  }
};

// S32, S34: head counts that fill no tile, and any next_n.
TEST_P(IndexLogitsDecode, S32_EveryHeadCount) {
  const IndexCase c{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0};
  std::int32_t next_n = 1;
  for (std::int64_t heads : {1, 8, 12, 16, 24, 32, 48, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads) + " next_n " + std::to_string(next_n));
    Problem p = random_problem(c, heads, next_n, static_cast<unsigned>(heads));
    p.weights_stride = heads + 5;
    p.name_requests = next_n % 2 == 0;
    expect_within_bound(c, p);
    next_n = next_n % 4 + 1;
  }
}

TEST_P(IndexLogitsDecode, EveryLayoutAndPageSize) {
  for (const IndexCase& c : testing::index_cases()) {
    SCOPED_TRACE(std::string(name(c.encoding)) + " " + std::string(name(c.layout)) + " page " +
                 std::to_string(c.page_size));
    expect_within_bound(c, random_problem(c, 12, 2, static_cast<unsigned>(c.page_size)));
  }
}

// All 256 codes of query and key against each other, in both encodings: -0, NaN, the largest.
TEST_P(IndexLogitsDecode, All256CodesThroughEachReader) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    SCOPED_TRACE(std::string(name(encoding)));
    const IndexCase c{encoding, IndexPageLayout::block_flat, 64, 0};
    for (std::int64_t place : {0, 31, 77, 127}) {
      Problem p;
      p.columns = 256;
      p.pages = 4;
      p.table_columns = 4;
      p.block_table = {2, 0, 3, 1};
      p.cache.assign(static_cast<std::size_t>(4 * c.page_stride()), 0);
      for (std::int64_t key = 0; key < 256; ++key) {
        std::uint8_t* page =
            p.cache.data() + p.block_table[static_cast<std::size_t>(key / 64)] * c.page_stride();
        page[key % 64 * 128 + place] = static_cast<std::uint8_t>(key);
        const float one = 1;
        std::memcpy(page + 64 * 128 + key % 64 * 4, &one, sizeof one);
      }
      for (int code = 0; code < 256; ++code) {
        p.q.insert(p.q.end(), 128, 0);
        p.q[static_cast<std::size_t>(code * 128 + place)] = static_cast<std::uint8_t>(code);
        p.weights.push_back(1.0f);
        p.row_lens.push_back(256);
        p.row_request.push_back(0);
      }
      // One product a logit, so the kernel must give the reference's bits.
      const std::vector<float> got = kernel_logits(*device_, c, p);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float dot = reference::decode_fp8(encoding, static_cast<std::uint8_t>(i / 256)) *
                          reference::decode_fp8(encoding, static_cast<std::uint8_t>(i % 256));
        const float want = dot < 0 ? 0.0f : dot;
        const bool right = std::isnan(want) ? std::isnan(got[i]) : got[i] == want;
        if (!right && ++wrong == 1)
          ADD_FAILURE() << "codes " << i / 256 << " x " << i % 256 << ": got " << got[i]
                        << ", want " << want;
      }
      EXPECT_EQ(wrong, 0u);
    }
  }
}

// Codes that the hardware would misread, among ordinary ones: the tile goes another way.
TEST_P(IndexLogitsDecode, ExtremeCodesAmongOrdinaryOnes) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    const IndexCase c{encoding, IndexPageLayout::mfma_preshuffle, 16, 0};
    Problem p = random_problem(c, 24, 1, 3);
    std::mt19937 random(4);
    for (std::size_t i = 0; i < p.q.size(); i += 1 + random() % 997)
      p.q[i] = encoding == Fp8Encoding::e4m3fn ? 0x80 : 0xFF;
    for (std::int64_t page = 0; page < p.pages; page += 3)
      p.cache[static_cast<std::size_t>(page * c.page_stride() + 19 * page % 2048)] =
          encoding == Fp8Encoding::e4m3fn ? 0x7F
          : page % 2                      ? 0x80
                                          : 0x7F;
    expect_within_bound(c, p);
  }
}

// S22: keys on pages outside the table or the pool give -inf and read nothing.
TEST_P(IndexLogitsDecode, S22_InvalidPagesGiveMinusInfinity) {
  const IndexCase c{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 16, 0};
  Problem p = random_problem(c, 8, 1, 9);
  p.block_table[1] = -1;
  p.block_table[static_cast<std::size_t>(p.table_columns)] = static_cast<std::int32_t>(p.pages);
  p.block_table[static_cast<std::size_t>(3 * p.table_columns + 2)] = 1 << 30;
  expect_within_bound(c, p);
}

// S24: rows of length 0 and below touch nothing; a problem without rows is fine.
TEST_P(IndexLogitsDecode, S24_EmptyRows) {
  const IndexCase c{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0};
  Problem p = random_problem(c, 16, 1, 21);
  p.row_lens = {0, -3, 1, 0, 64};
  expect_within_bound(c, p);
  Problem none;
  none.columns = 7;
  expect_within_bound(c, none);
}

TEST_P(IndexLogitsDecode, RefusesWhatItCannotScore) {
  optimized::IndexLogitsDecodeParams params{};
  params.page_size = 64;
  params.page_stride = 64 * 132;
  params.heads = 65;
  params.next_n = 1;
  Status status = testing::run_kernel(*device_, params);
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find("heads is 65, want 1 to 64"), std::string::npos) << status.what();
  params.heads = 64;
  params.q_stride = 100;
  status = testing::run_kernel(*device_, params);
  EXPECT_NE(status.what().find("q_stride is 100 bytes"), std::string::npos) << status.what();
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexLogitsDecode, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanes : public IndexLogitsDecode {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanes, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  const IndexCase c{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0};
  const Problem p = random_problem(c, 48, 3, 77);
  std::vector<std::vector<float>> results;
  for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
    for (std::uint64_t seed : {0, 12345}) {
      auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
      results.push_back(kernel_logits(*device, c, p));
    }
  for (const auto& result : results)
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
}

// S12: page and row offsets past 2^32 bytes. The pages are far apart in memory that is never
// touched.
TEST_P(HostLanes, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 32) + 64 * 132;
  constexpr std::int64_t kPages = 3;
  void* region = mmap(nullptr, kStride * kPages, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 12 GiB of address space";
  auto* cache = static_cast<std::uint8_t*>(region);
  const IndexCase c{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, kStride - 64 * 132};
  std::mt19937 random(1);
  const IndexCase dense{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0};
  const auto page = testing::random_cache(dense, 1, random);
  std::memcpy(cache + 2 * kStride, page.data(), page.size());

  Problem p = random_problem(dense, 1, 1, 2);
  const std::int32_t table = 2;
  const std::int32_t length = 64;
  std::vector<float> logits(64, kPoison);
  optimized::IndexLogitsDecodeParams params{};
  params.q = p.q.data();
  params.cache = cache;
  params.weights = p.weights.data();
  params.block_table = &table;
  params.row_lens = &length;
  params.logits = logits.data();
  params.q_stride = 128;
  params.weights_stride = 1;
  params.logits_stride = 64;
  params.page_stride = kStride;
  params.table_stride = 1;
  params.rows = 1;
  params.pages = kPages;
  params.heads = 1;
  params.requests = 1;
  params.table_columns = 1;
  params.next_n = 1;
  params.columns = 64;
  params.page_size = 64;
  params.encoding = c.encoding;
  params.layout = c.layout;
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(params.q) % 16, 0u);
  ASSERT_TRUE(testing::run_kernel(*device_, params));
  const std::int32_t request = 0;
  const reference::IndexLogitsDecode in{p.q.data(),
                                        p.weights.data(),
                                        {cache, kPages, kStride},
                                        {&table, 1, 1},
                                        &length,
                                        &request,
                                        1,
                                        1,
                                        64};
  std::vector<double> exact(64);
  std::vector<double> bound(64);
  ASSERT_TRUE(reference::index_logits_decode<reference::Exact>(c.pages(), in, exact.data()));
  ASSERT_TRUE(
      reference::index_logits_decode_bound(c.pages(), in, Accumulation::fp32, bound.data()));
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_NEAR(logits[i], exact[i], bound[i]);
  munmap(region, kStride * kPages);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanes, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_logits_decode_test
} // namespace dsakit
