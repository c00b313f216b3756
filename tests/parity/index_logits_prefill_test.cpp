// index_logits_prefill: kernel against the exact reference within the fp32 bound, on every device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_logits_prefill_test {

using testing::OnDevice;

constexpr float kPoison = -12345.0f;
constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kSmallest = std::numeric_limits<std::int32_t>::min();

struct Window {
  std::int32_t ks, ke, origin;
};

struct Problem {
  std::int64_t heads;
  std::int64_t keys;
  std::int64_t columns;
  Fp8Encoding encoding = Fp8Encoding::e4m3fn;
  std::vector<std::uint8_t> q = {}; // [rows, heads, 128]
  std::vector<float> weights = {};  // [rows, heads]
  std::vector<std::uint8_t> k = {}; // [keys, 128]
  std::vector<float> k_scale = {};  // [keys]
  std::vector<std::int32_t> ks = {};
  std::vector<std::int32_t> ke = {};
  std::vector<std::int32_t> origin = {}; // empty: columns are keys

  std::int64_t rows() const { return static_cast<std::int64_t>(ks.size()); }
  reference::IndexLogitsPrefill in_reference() const {
    return {q.data(),
            weights.data(),
            k.data(),
            k_scale.data(),
            ks.data(),
            ke.data(),
            origin.empty() ? nullptr : origin.data(),
            rows(),
            heads,
            keys,
            columns,
            encoding};
  }
};

std::uint8_t finite_code(std::mt19937& random) {
  std::uint8_t code;
  do
    code = static_cast<std::uint8_t>(random());
  while ((code & 0x7F) == 0x7F || code == 0x80);
  return code;
}

Problem random_problem(std::int64_t heads, std::int64_t keys, const std::vector<Window>& windows,
                       unsigned seed, bool origins = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{heads, keys, keys};
  for (std::int64_t i = 0; i < keys * 128; ++i)
    p.k.push_back(finite_code(random));
  for (std::int64_t n = 0; n < keys; ++n)
    p.k_scale.push_back(std::ldexp(1.0f, static_cast<int>(random() % 9) - 8));
  for (const Window& window : windows) {
    p.ks.push_back(window.ks);
    p.ke.push_back(window.ke);
    if (origins) p.origin.push_back(window.origin);
    for (std::int64_t h = 0; h < heads; ++h)
      p.weights.push_back(normal(random));
    for (std::int64_t i = 0; i < heads * 128; ++i)
      p.q.push_back(finite_code(random));
  }
  return p;
}

/// Empty, whole, and around the seams of tiles (16) and workgroups (256); past both ends.
const std::vector<Window> kWindows = {
    {0, 531, 0},       {0, 0, 0},     {300, 200, 0},    {0, 1, 0},     {530, 531, 0}, {15, 17, 0},
    {16, 32, 0},       {255, 257, 0}, {256, 512, 0},    {250, 513, 0}, {511, 512, 0}, {-5, 20, 0},
    {kSmallest, 3, 0}, {520, 600, 0}, {3, kLargest, 0}, {531, 700, 0}, {-20, -3, 0}};

class IndexLogitsPrefill : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// [rows, columns]. Rows of q, weights and logits lie apart, NaN between them.
  std::vector<float> kernel_logits(optimized::Device& device, const Problem& p) {
    const std::int64_t q_stride = p.heads * 128 + 48;
    const std::int64_t weights_stride = p.heads + 3;
    const std::int64_t logits_stride = p.columns + 7;
    std::vector<std::uint8_t> wide_q(static_cast<std::size_t>(p.rows() * q_stride),
                                     p.encoding == Fp8Encoding::e4m3fn ? 0x7F : 0x80);
    std::vector<float> wide_weights(static_cast<std::size_t>(p.rows() * weights_stride),
                                    std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t r = 0; r < p.rows(); ++r) {
      std::copy_n(p.q.begin() + r * p.heads * 128, p.heads * 128, wide_q.begin() + r * q_stride);
      std::copy_n(p.weights.begin() + r * p.heads, p.heads,
                  wide_weights.begin() + r * weights_stride);
    }
    OnDevice<std::uint8_t> q(device, wide_q);
    OnDevice<float> weights(device, wide_weights);
    OnDevice<std::uint8_t> k(device, p.k);
    OnDevice<float> k_scale(device, p.k_scale);
    OnDevice<std::int32_t> ks(device, p.ks);
    OnDevice<std::int32_t> ke(device, p.ke);
    OnDevice<std::int32_t> origin(device, p.origin);
    OnDevice<float> logits(
        device, std::vector<float>(static_cast<std::size_t>(p.rows() * logits_stride), kPoison));
    optimized::IndexLogitsPrefillParams params{};
    params.q = q.data();
    params.k_fp8 = k.data();
    params.k_scale = k_scale.data();
    params.weights = weights.data();
    params.ks = ks.data();
    params.ke = ke.data();
    params.column_origin = p.origin.empty() ? nullptr : origin.data();
    params.logits = logits.data();
    params.q_stride = q_stride;
    params.weights_stride = weights_stride;
    params.logits_stride = logits_stride;
    params.rows = p.rows();
    params.heads = static_cast<std::int32_t>(p.heads);
    params.keys = static_cast<std::int32_t>(p.keys);
    params.columns = static_cast<std::int32_t>(p.columns);
    params.encoding = p.encoding;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    const std::vector<float> padded = logits.values();
    std::vector<float> result;
    std::size_t strayed = 0;
    for (std::size_t i = 0; i < padded.size(); ++i)
      if (static_cast<std::int64_t>(i) % logits_stride < p.columns)
        result.push_back(padded[i]);
      else
        strayed += padded[i] != kPoison;
    EXPECT_EQ(strayed, 0u) << "cells between the rows were written";
    return result;
  }

  void expect_within_bound(const Problem& p) {
    // The reference scores every key into its own column and refuses keys whose column does not
    // exist; the kernel leaves those out.
    Problem all = p;
    all.origin.clear();
    all.columns = p.keys;
    const auto all_cells = static_cast<std::size_t>(all.rows() * all.columns);
    std::vector<double> all_exact(all_cells, kPoison);
    std::vector<double> all_bound(all_cells);
    ASSERT_TRUE(
        reference::index_logits_prefill<reference::Exact>(all.in_reference(), all_exact.data()));
    ASSERT_TRUE(reference::index_logits_prefill_bound(all.in_reference(), Accumulation::fp32,
                                                      all_bound.data()));
    const auto cells = static_cast<std::size_t>(p.rows() * p.columns);
    std::vector<double> exact(cells, kPoison);
    std::vector<double> bound(cells);
    for (std::int64_t r = 0; r < p.rows(); ++r)
      for (std::int64_t key = 0; key < p.keys; ++key) {
        const std::int64_t origin = p.origin.empty() ? 0 : p.origin[static_cast<std::size_t>(r)];
        const std::int64_t column = key - origin;
        if (column < 0 || column >= p.columns) continue;
        const auto from = static_cast<std::size_t>(r * p.keys + key);
        const auto to = static_cast<std::size_t>(r * p.columns + column);
        exact[to] = all_exact[from];
        bound[to] = all_bound[from];
      }
    testing::expect_within("logits", kernel_logits(*device_, p), exact, bound,
                           static_cast<std::size_t>(p.columns));
  }
};

TEST_P(IndexLogitsPrefill, S32_EveryHeadCount) {
  for (std::int64_t heads = 1; heads <= 64; heads = heads < 17 ? heads + 1 : heads * 2 - 1) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const std::vector<Window> windows = {{3, 279, 0}, {0, 40, 0}, {255, 281, 0}};
    expect_within_bound(random_problem(heads, 281, windows, static_cast<unsigned>(heads)));
  }
  for (std::int64_t heads : {24, 32, 48, 63, 64})
    expect_within_bound(random_problem(heads, 37, {{1, 36, 0}}, static_cast<unsigned>(heads)));
}

// S14, S24: windows of every kind; nothing outside them is written.
TEST_P(IndexLogitsPrefill, S14_S24_EveryWindow) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    Problem p = random_problem(5, 531, kWindows, 2);
    p.encoding = encoding;
    expect_within_bound(p);
  }
}

// S36: request-local columns; keys before the origin or past the last column are left out.
TEST_P(IndexLogitsPrefill, S36_ColumnsFromAnOrigin) {
  Problem p = random_problem(7, 531,
                             {{100, 300, 100},
                              {100, 300, 150},
                              {100, 300, 40},
                              {0, 531, 500},
                              {0, 531, 531},
                              {0, 531, 0},
                              {20, 90, -30},
                              {0, 531, -600},
                              {256, 257, 255},
                              {-9, 531, kLargest},
                              {-9, 531, kSmallest}},
                             3, true);
  p.columns = 211;
  expect_within_bound(p);
}

// S29, S36: rows scored a chunk at a time have the bits of one launch.
TEST_P(IndexLogitsPrefill, S29_S36_ChunkedEqualsWhole) {
  const Problem whole = random_problem(16, 531, kWindows, 4);
  const std::vector<float> want = kernel_logits(*device_, whole);
  std::vector<float> got;
  for (std::int64_t first = 0; first < whole.rows(); first += 5) {
    const std::int64_t last = std::min(first + 5, whole.rows());
    Problem chunk = whole;
    const auto cut = [&](auto& values, std::int64_t width) {
      values.assign(values.begin() + first * width, values.begin() + last * width);
    };
    cut(chunk.q, whole.heads * 128);
    cut(chunk.weights, whole.heads);
    cut(chunk.ks, 1);
    cut(chunk.ke, 1);
    const std::vector<float> part = kernel_logits(*device_, chunk);
    got.insert(got.end(), part.begin(), part.end());
  }
  testing::expect_same("logits", got, want, static_cast<std::size_t>(whole.columns));
}

// S27: the example of cases.md. Negative dots count as 0, each head by itself; weights may be
// negative, and so may a logit.
TEST_P(IndexLogitsPrefill, S27_ReluIsInsideTheSumOfHeads) {
  const auto code = [](float x) {
    return reference::encode_fp8_saturating(Fp8Encoding::e4m3fn, x);
  };
  Problem p{2, 3, 3};
  p.q.assign(256, 0);
  p.q[0] = code(1);       // head 0 reads dim 0
  p.q[128 + 1] = code(1); // head 1 reads dim 1
  p.weights = {1, -1};
  p.k.assign(std::size_t{3} * 128, 0);
  p.k[0] = code(-3);
  p.k[1] = code(1);
  p.k[128] = code(2);
  p.k[129] = code(2);
  p.k_scale = {1, 1, 1};
  p.ks = {0};
  p.ke = {2};
  EXPECT_EQ(kernel_logits(*device_, p), (std::vector<float>{-1, 0, kPoison}));
}

// S30: weights are fp32 to the end.
TEST_P(IndexLogitsPrefill, S30_WeightsAreNotRounded) {
  Problem p = random_problem(1, 2, {{0, 2, 0}}, 5);
  std::fill(p.q.begin(), p.q.end(), std::uint8_t{0});
  std::fill(p.k.begin(), p.k.end(), std::uint8_t{0});
  p.q[5] = p.k[5] = p.k[128 + 5] = 0x38; // 1
  p.k_scale = {1, 2};
  p.weights = {1.00390625f + 0x1p-20f};
  EXPECT_EQ(kernel_logits(*device_, p), (std::vector<float>{p.weights[0], 2 * p.weights[0]}));
}

// S01: all 256 codes of query and key against each other, in both encodings.
TEST_P(IndexLogitsPrefill, S01_All256CodesThroughEachReader) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (std::size_t place : {0u, 45u, 96u, 127u}) {
      SCOPED_TRACE(std::string(name(encoding)) + " dim " + std::to_string(place));
      Problem p{1, 256, 256, encoding};
      p.q.assign(std::size_t{256} * 128, 0);
      p.k.assign(std::size_t{256} * 128, 0);
      std::vector<float> want;
      for (std::size_t code = 0; code < 256; ++code) {
        p.q[code * 128 + place] = static_cast<std::uint8_t>(code);
        p.k[code * 128 + place] = static_cast<std::uint8_t>(code);
        p.weights.push_back(1);
        p.k_scale.push_back(1);
        p.ks.push_back(0);
        p.ke.push_back(256);
        // One product a logit, so the kernel must give the reference's bits.
        for (std::size_t key = 0; key < 256; ++key) {
          const float dot = reference::decode_fp8(encoding, static_cast<std::uint8_t>(code)) *
                            reference::decode_fp8(encoding, static_cast<std::uint8_t>(key));
          want.push_back(dot < 0 ? 0.0f : dot + 0.0f); // no -0
        }
      }
      std::vector<float> got = kernel_logits(*device_, p);
      for (float& logit : got)
        logit += 0.0f;
      testing::expect_same("logits", got, want, 256);
    }
}

// Codes that the hardware would misread, among ordinary ones: the tile goes another way.
TEST_P(IndexLogitsPrefill, ExtremeCodesAmongOrdinaryOnes) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    Problem p = random_problem(24, 531, kWindows, 6);
    p.encoding = encoding;
    std::mt19937 random(7);
    for (std::size_t i = 0; i < p.q.size(); i += 1 + random() % 997)
      p.q[i] = encoding == Fp8Encoding::e4m3fn ? 0x80 : 0xFF;
    for (std::size_t i = 100; i < p.k.size(); i += 1 + random() % 4999)
      p.k[i] = encoding == Fp8Encoding::e4m3fn ? 0x7F : i % 2 ? 0x80 : 0x7F;
    expect_within_bound(p);
  }
}

TEST_P(IndexLogitsPrefill, NothingToScoreWritesNothing) {
  expect_within_bound(random_problem(4, 9, {}, 8));
  Problem no_keys{4, 0, 5};
  no_keys.q.assign(512, 0x38);
  no_keys.weights.assign(4, 1.0f);
  no_keys.ks = {0};
  no_keys.ke = {5};
  expect_within_bound(no_keys);
}

TEST_P(IndexLogitsPrefill, RefusesWhatItCannotScore) {
  optimized::IndexLogitsPrefillParams params{};
  params.heads = 64;
  const auto refusal = [&](auto change) {
    optimized::IndexLogitsPrefillParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.heads = 65; }).find("heads is 65, want 1 to 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.heads = 0; }).find("heads is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.q_stride = 100; }).find("q_stride is 100 bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) {
              p.rows = std::int64_t{1} << 31;
              p.keys = 1 << 20;
            }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexLogitsPrefill, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesPrefill : public IndexLogitsPrefill {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesPrefill, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  const Problem p = random_problem(48, 531, kWindows, 77);
  const std::vector<float> want = kernel_logits(*device_, p);
  for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
    for (std::uint64_t seed : {0u, 12345u}) {
      auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
      testing::expect_same("logits", kernel_logits(*device, p), want,
                           static_cast<std::size_t>(p.columns));
    }
}

// S12: a row of logits past 2^32 bytes, in memory that is touched in one place.
TEST_P(HostLanesPrefill, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 30) + 64; // elements
  const std::size_t bytes = (kStride + 64) * sizeof(float);
  void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 4 GiB of address space";
  auto* logits = static_cast<float*>(region);
  const Problem p = random_problem(1, 20, {{0, 0, 0}, {0, 20, 0}}, 9);
  const std::vector<float> want = kernel_logits(*device_, p);
  OnDevice<std::uint8_t> q(*device_, p.q);
  OnDevice<std::uint8_t> k(*device_, p.k);
  optimized::IndexLogitsPrefillParams params{};
  params.q = q.data();
  params.k_fp8 = k.data();
  params.k_scale = p.k_scale.data();
  params.weights = p.weights.data();
  params.ks = p.ks.data();
  params.ke = p.ke.data();
  params.logits = logits;
  params.q_stride = 128;
  params.weights_stride = 1;
  params.logits_stride = kStride;
  params.rows = 2;
  params.heads = 1;
  params.keys = 20;
  params.columns = 20;
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_TRUE(status) << status.what();
  testing::expect_same("logits", std::vector<float>(logits + kStride, logits + kStride + 20),
                       std::vector<float>(want.begin() + 20, want.end()), 20);
  munmap(region, bytes);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesPrefill, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_logits_prefill_test
} // namespace dsakit
