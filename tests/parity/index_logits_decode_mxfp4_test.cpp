// index_logits_decode in MXFP4: kernel against the exact reference within the fp32 bound, on every
// device.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/mxfp4_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_logits_decode_mxfp4_test {

using testing::Mxfp4Case;
using testing::OnDevice;

constexpr float kPoison = -12345.0f;
constexpr Mxfp4Case kFlat64 = {IndexPageLayout::flat, 64, 0};

struct Problem {
  std::int64_t heads = 1;
  std::int64_t columns = 0;
  std::int64_t pages = 0;
  std::int64_t table_columns = 0;
  std::int32_t next_n = 1;
  bool name_requests = true;          // row_request, rather than row / next_n
  std::vector<std::uint8_t> q;        // [rows, heads, 64]
  std::vector<std::uint8_t> q_scale;  // [rows, heads, 4]
  std::vector<std::uint16_t> weights; // [rows, heads]
  std::vector<std::uint8_t> cache;
  std::vector<std::int32_t> block_table;
  std::vector<std::int32_t> row_lens;
  std::vector<std::int32_t> row_request;

  std::int64_t rows() const { return static_cast<std::int64_t>(row_lens.size()); }
  std::int64_t requests() const {
    return table_columns ? static_cast<std::int64_t>(block_table.size()) / table_columns : 0;
  }
  float weight_scale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(heads) * 128));
  }
};

/// requests x next_n rows of lengths around the seams of pages, tiles and workgroups.
Problem random_problem(const Mxfp4Case& c, std::int64_t heads, std::int32_t next_n, unsigned seed) {
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
  p.cache = testing::random_mxfp4_cache(c, p.pages, random);
  p.q = testing::random_packed(requests * next_n * heads * 64, random);
  p.q_scale = testing::random_scales(requests * next_n * heads * 4, random);
  for (std::int32_t b = 0; b < requests; ++b)
    for (std::int32_t n = 0; n < next_n; ++n) {
      p.row_lens.push_back(contexts[b] - next_n + n + 1);
      p.row_request.push_back(b);
      for (std::int64_t h = 0; h < heads; ++h)
        p.weights.push_back(testing::to_bf16(normal(random)));
    }
  return p;
}

class IndexLogitsDecodeMxfp4 : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// Rows of q, its scales and weights lie apart, NaN between them.
  std::vector<float> kernel_logits(optimized::Device& device, const Mxfp4Case& c,
                                   const Problem& p) {
    const auto widen = [&](const auto& values, std::int64_t width, std::int64_t stride, auto fill) {
      std::vector<decltype(fill)> wide(static_cast<std::size_t>(p.rows() * stride), fill);
      for (std::int64_t r = 0; r < p.rows(); ++r)
        std::copy_n(values.begin() + r * width, width, wide.begin() + r * stride);
      return wide;
    };
    const std::int64_t q_stride = p.heads * 64 + 16;
    const std::int64_t q_scale_stride = p.heads * 4 + 1;
    const std::int64_t weights_stride = p.heads + 5;
    OnDevice<std::uint8_t> q(device, widen(p.q, p.heads * 64, q_stride, std::uint8_t{0x77}));
    OnDevice<std::uint8_t> q_scale(
        device, widen(p.q_scale, p.heads * 4, q_scale_stride, std::uint8_t{0xFF}));
    OnDevice<std::uint16_t> weights(
        device, widen(p.weights, p.heads, weights_stride, std::uint16_t{0x7FC0}));
    OnDevice<std::uint8_t> cache(device, p.cache);
    OnDevice<std::int32_t> table(device, p.block_table);
    OnDevice<std::int32_t> lens(device, p.row_lens);
    OnDevice<std::int32_t> requests(device, p.row_request);
    OnDevice<float> logits(
        device, std::vector<float>(static_cast<std::size_t>(p.rows() * p.columns), kPoison));
    optimized::IndexLogitsDecodeMxfp4Params params{};
    params.q_packed = q.data();
    params.q_scale = q_scale.data();
    params.cache = cache.data();
    params.weights = weights.data();
    params.block_table = table.data();
    params.row_lens = lens.data();
    params.row_request = p.name_requests ? requests.data() : nullptr;
    params.logits = logits.data();
    params.q_stride = q_stride;
    params.q_scale_stride = q_scale_stride;
    params.weights_stride = weights_stride;
    params.logits_stride = p.columns;
    params.page_stride = c.page_stride();
    params.table_stride = p.table_columns;
    params.rows = p.rows();
    params.pages = p.pages;
    params.heads = static_cast<std::int32_t>(p.heads);
    params.requests = static_cast<std::int32_t>(p.requests());
    params.table_columns = static_cast<std::int32_t>(p.table_columns);
    params.next_n = p.next_n;
    params.columns = static_cast<std::int32_t>(p.columns);
    params.page_size = static_cast<std::int32_t>(c.page_size);
    params.weight_scale = p.weight_scale();
    params.layout = c.layout;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    return logits.values();
  }

  void expect_within_bound(const Mxfp4Case& c, const Problem& p) {
    const reference::IndexLogitsDecodeMxfp4 in{
        p.q.data(),
        p.q_scale.data(),
        p.weights.data(),
        {p.cache.data(), p.pages, c.page_stride()},
        {p.block_table.data(), p.requests(), p.table_columns},
        p.row_lens.data(),
        p.row_request.data(),
        p.rows(),
        p.heads,
        p.columns,
        ActivationDtype::bf16};
    const auto cells = static_cast<std::size_t>(p.rows() * p.columns);
    std::vector<double> exact(cells, kPoison);
    std::vector<double> bound(cells);
    ASSERT_TRUE(
        reference::index_logits_decode_mxfp4<reference::Exact>(c.pages(), in, exact.data()));
    ASSERT_TRUE(reference::index_logits_decode_mxfp4_bound(c.pages(), in, Accumulation::fp32,
                                                           bound.data()));
    testing::expect_within("logits", kernel_logits(*device_, c, p), exact, bound,
                           static_cast<std::size_t>(p.columns));
  }
};

// S32, S34: head counts that fill no tile, and any next_n.
TEST_P(IndexLogitsDecodeMxfp4, S32_S34_EveryHeadCountAndNextN) {
  std::int32_t next_n = 1;
  for (std::int64_t heads : {1, 8, 12, 16, 24, 32, 48, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads) + " next_n " + std::to_string(next_n));
    Problem p = random_problem(kFlat64, heads, next_n, static_cast<unsigned>(heads));
    p.name_requests = next_n % 2 == 0;
    expect_within_bound(kFlat64, p);
    next_n = next_n % 4 + 1;
  }
}

TEST_P(IndexLogitsDecodeMxfp4, EveryLayoutAndPageSize) {
  for (const Mxfp4Case& c : testing::mxfp4_cases()) {
    SCOPED_TRACE(c.name());
    expect_within_bound(c, random_problem(c, 12, 2, static_cast<unsigned>(c.page_size)));
  }
}

// Scores do not depend on where the layout puts a key's bytes: the same bits from both.
TEST_P(IndexLogitsDecodeMxfp4, BothLayoutsGiveTheSameBits) {
  const Mxfp4Case shuffled = {IndexPageLayout::preshuffle64, 64, 0};
  const Problem p = random_problem(kFlat64, 16, 1, 31);
  Problem q = p;
  for (std::int64_t page = 0; page < p.pages; ++page)
    for (std::int64_t token = 0; token < 64; ++token) {
      const std::uint8_t* from = p.cache.data() + page * kFlat64.page_stride();
      std::uint8_t* to = q.cache.data() + page * shuffled.page_stride();
      for (std::int64_t i = 0; i < 64; ++i)
        to[i / 16 * 1024 + token * 16 + i % 16] = from[token * 64 + i];
      for (std::int64_t g = 0; g < 4; ++g)
        to[4096 + g * 64 + token % 16 * 4 + token / 16] = from[4096 + token * 4 + g];
    }
  testing::expect_same("logits", kernel_logits(*device_, shuffled, q),
                       kernel_logits(*device_, kFlat64, p), static_cast<std::size_t>(p.columns));
}

// S34: a row has the same bits as one of a request with several rows, as one of its own, and as a
// prefill row over the same keys.
TEST_P(IndexLogitsDecodeMxfp4, S34_EveryArrangementGivesTheSameBits) {
  Problem p = random_problem(kFlat64, 24, 4, 41);
  p.row_lens.back() = 531;
  p.name_requests = false;
  const std::vector<float> several = kernel_logits(*device_, kFlat64, p);
  p.next_n = 1;
  p.name_requests = true;
  testing::expect_same("flattened", kernel_logits(*device_, kFlat64, p), several, 531);

  // The last row as prefill: its request's keys, gathered.
  const std::int64_t row = p.rows() - 1;
  std::vector<std::uint8_t> codes(531 * 64);
  std::vector<std::uint8_t> scales(531 * 4);
  for (std::int64_t key = 0; key < 531; ++key) {
    const std::int64_t page =
        p.block_table[static_cast<std::size_t>((p.requests() - 1) * p.table_columns + key / 64)];
    const std::uint8_t* from = p.cache.data() + page * kFlat64.page_stride();
    std::copy_n(from + key % 64 * 64, 64, codes.begin() + key * 64);
    std::copy_n(from + 4096 + key % 64 * 4, 4, scales.begin() + key * 4);
  }
  OnDevice<std::uint8_t> q(*device_, {p.q.begin() + row * 24 * 64, p.q.end()});
  OnDevice<std::uint8_t> q_scale(*device_, {p.q_scale.begin() + row * 24 * 4, p.q_scale.end()});
  OnDevice<std::uint16_t> weights(*device_, {p.weights.begin() + row * 24, p.weights.end()});
  OnDevice<std::uint8_t> k(*device_, codes);
  OnDevice<std::uint8_t> k_scale(*device_, scales);
  OnDevice<std::int32_t> ks(*device_, {0});
  OnDevice<std::int32_t> ke(*device_, {531});
  OnDevice<float> logits(*device_, std::vector<float>(531, kPoison));
  optimized::IndexLogitsPrefillMxfp4Params params{};
  params.q_packed = q.data();
  params.q_scale = q_scale.data();
  params.k_packed = k.data();
  params.k_scale = k_scale.data();
  params.weights = weights.data();
  params.ks = ks.data();
  params.ke = ke.data();
  params.logits = logits.data();
  params.q_stride = 24 * 64;
  params.q_scale_stride = 24 * 4;
  params.weights_stride = 24;
  params.logits_stride = 531;
  params.rows = 1;
  params.heads = 24;
  params.keys = 531;
  params.columns = 531;
  params.weight_scale = p.weight_scale();
  const Status status = testing::run_kernel(*device_, params);
  ASSERT_TRUE(status) << status.what();
  testing::expect_same("prefill", logits.values(),
                       std::vector<float>(several.end() - 531, several.end()), 531);
}

// S22: keys on pages outside the table or the pool give -inf and read nothing.
TEST_P(IndexLogitsDecodeMxfp4, S22_InvalidPagesGiveMinusInfinity) {
  const Mxfp4Case c{IndexPageLayout::flat, 16, 0};
  Problem p = random_problem(c, 8, 1, 9);
  p.block_table[1] = -1;
  p.block_table[static_cast<std::size_t>(p.table_columns)] = static_cast<std::int32_t>(p.pages);
  p.block_table[static_cast<std::size_t>(3 * p.table_columns + 2)] = 1 << 30;
  expect_within_bound(c, p);
}

// S24: rows of length 0 and below touch nothing; a problem without rows is fine.
TEST_P(IndexLogitsDecodeMxfp4, S24_EmptyRows) {
  Problem p = random_problem(kFlat64, 16, 1, 21);
  p.row_lens = {0, -3, 1, 0, 64};
  expect_within_bound(kFlat64, p);
  Problem none;
  none.columns = 7;
  expect_within_bound(kFlat64, none);
}

// A cached scale byte 0xFF makes its key NaN and no other.
TEST_P(IndexLogitsDecodeMxfp4, NanScalesStayInTheirKey) {
  for (const IndexPageLayout layout : {IndexPageLayout::flat, IndexPageLayout::preshuffle64}) {
    const Mxfp4Case c{layout, 64, 0};
    Problem p = random_problem(c, 40, 1, 33);
    for (std::int64_t page = 0; page < p.pages; page += 2)
      p.cache[static_cast<std::size_t>(page * c.page_stride() + 4096 + 37 * page % 256)] = 0xFF;
    expect_within_bound(c, p);
  }
}

TEST_P(IndexLogitsDecodeMxfp4, RefusesWhatItCannotScore) {
  optimized::IndexLogitsDecodeMxfp4Params params{};
  params.page_size = 64;
  params.page_stride = 64 * 68;
  params.layout = IndexPageLayout::flat;
  params.heads = 64;
  params.next_n = 1;
  const auto refusal = [&](auto change) {
    optimized::IndexLogitsDecodeMxfp4Params changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.heads = 65; }).find("heads is 65, want 1 to 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.next_n = 0; }).find("next_n is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.q_stride = 100; }).find("q_stride is 100 bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.layout = IndexPageLayout::block_flat; }).find("MXFP4"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexLogitsDecodeMxfp4,
                         ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesDecodeMxfp4 : public IndexLogitsDecodeMxfp4 {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesDecodeMxfp4, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  const Problem p = random_problem(kFlat64, 48, 3, 77);
  const std::vector<float> want = kernel_logits(*device_, kFlat64, p);
  for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
    for (std::uint64_t seed : {0u, 12345u}) {
      auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
      testing::expect_same("logits", kernel_logits(*device, kFlat64, p), want,
                           static_cast<std::size_t>(p.columns));
    }
}

// S12: page offsets past 2^32 bytes. The pages are far apart in memory that is never touched.
TEST_P(HostLanesDecodeMxfp4, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 32) + 64 * 68;
  constexpr std::int64_t kPages = 3;
  void* region = mmap(nullptr, kStride * kPages, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 12 GiB of address space";
  auto* cache = static_cast<std::uint8_t*>(region);
  std::mt19937 random(1);
  Problem p;
  p.columns = 64;
  p.pages = 1;
  p.table_columns = 1;
  p.block_table = {0};
  p.cache = testing::random_mxfp4_cache(kFlat64, 1, random);
  p.q = testing::random_packed(64, random);
  p.q_scale = testing::random_scales(4, random);
  p.weights = {0x3F80};
  p.row_lens = {64};
  p.row_request = {0};
  const std::vector<float> want = kernel_logits(*device_, kFlat64, p);
  std::memcpy(cache + 2 * kStride, p.cache.data(), p.cache.size());

  const std::int32_t table = 2;
  std::vector<float> logits(64, kPoison);
  OnDevice<std::uint8_t> q(*device_, p.q);
  optimized::IndexLogitsDecodeMxfp4Params params{};
  params.q_packed = q.data();
  params.q_scale = p.q_scale.data();
  params.cache = cache;
  params.weights = p.weights.data();
  params.block_table = &table;
  params.row_lens = p.row_lens.data();
  params.logits = logits.data();
  params.q_stride = 64;
  params.q_scale_stride = 4;
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
  params.weight_scale = p.weight_scale();
  params.layout = IndexPageLayout::flat;
  ASSERT_TRUE(testing::run_kernel(*device_, params));
  testing::expect_same("logits", logits, want, 64);
  munmap(region, kStride * kPages);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesDecodeMxfp4, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_logits_decode_mxfp4_test
} // namespace dsakit
