// index_logits_prefill in MXFP4: kernel against the exact reference within the fp32 bound, on every
// device; bit for bit where nothing rounds.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/mxfp4_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_logits_prefill_mxfp4_test {

using testing::OnDevice;

constexpr float kPoison = -12345.0f;
constexpr float kCodeValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kSmallest = std::numeric_limits<std::int32_t>::min();

struct Window {
  std::int32_t ks, ke, origin;
};

struct Problem {
  std::int64_t heads;
  std::int64_t keys;
  std::int64_t columns;
  std::vector<std::uint8_t> q = {};        // [rows, heads, 64]
  std::vector<std::uint8_t> q_scale = {};  // [rows, heads, 4]
  std::vector<std::uint16_t> weights = {}; // [rows, heads]
  std::vector<std::uint8_t> k = {};        // [keys, 64]
  std::vector<std::uint8_t> k_scale = {};  // [keys, 4]
  std::vector<std::int32_t> ks = {};
  std::vector<std::int32_t> ke = {};
  std::vector<std::int32_t> origin = {}; // empty: columns are keys

  std::int64_t rows() const { return static_cast<std::int64_t>(ks.size()); }
  float weight_scale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(heads) * 128));
  }
  reference::IndexLogitsPrefillMxfp4 in_reference() const {
    return {q.data(),
            q_scale.data(),
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
            ActivationDtype::bf16};
  }
};

Problem random_problem(std::int64_t heads, std::int64_t keys, const std::vector<Window>& windows,
                       unsigned seed, bool origins = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto rows = static_cast<std::int64_t>(windows.size());
  Problem p{heads, keys, keys};
  p.k = testing::random_packed(keys * 64, random);
  p.k_scale = testing::random_scales(keys * 4, random);
  p.q = testing::random_packed(rows * heads * 64, random);
  p.q_scale = testing::random_scales(rows * heads * 4, random);
  for (const Window& window : windows) {
    p.ks.push_back(window.ks);
    p.ke.push_back(window.ke);
    if (origins) p.origin.push_back(window.origin);
    for (std::int64_t h = 0; h < heads; ++h)
      p.weights.push_back(testing::to_bf16(normal(random)));
  }
  return p;
}

/// Empty, whole, and around the seams of tiles (16) and workgroups (256); past both ends.
const std::vector<Window> kWindows = {
    {0, 531, 0},       {0, 0, 0},     {300, 200, 0},    {0, 1, 0},     {530, 531, 0}, {15, 17, 0},
    {16, 32, 0},       {255, 257, 0}, {256, 512, 0},    {250, 513, 0}, {511, 512, 0}, {-5, 20, 0},
    {kSmallest, 3, 0}, {520, 600, 0}, {3, kLargest, 0}, {531, 700, 0}, {-20, -3, 0}};

class IndexLogitsPrefillMxfp4 : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  std::vector<float> kernel_logits(optimized::Device& device, const Problem& p) {
    return kernel_logits(device, p, p.weight_scale());
  }

  /// [rows, columns]. Rows of q, its scales, weights and logits lie apart, NaN between them.
  std::vector<float> kernel_logits(optimized::Device& device, const Problem& p,
                                   float weight_scale) {
    const auto widen = [&](const auto& values, std::int64_t width, std::int64_t stride, auto fill) {
      std::vector<decltype(fill)> wide(static_cast<std::size_t>(p.rows() * stride), fill);
      for (std::int64_t r = 0; r < p.rows(); ++r)
        std::copy_n(values.begin() + r * width, width, wide.begin() + r * stride);
      return wide;
    };
    const std::int64_t q_stride = p.heads * 64 + 48;
    const std::int64_t q_scale_stride = p.heads * 4 + 5;
    const std::int64_t weights_stride = p.heads + 3;
    const std::int64_t logits_stride = p.columns + 7;
    OnDevice<std::uint8_t> q(device, widen(p.q, p.heads * 64, q_stride, std::uint8_t{0x77}));
    OnDevice<std::uint8_t> q_scale(
        device, widen(p.q_scale, p.heads * 4, q_scale_stride, std::uint8_t{0xFF}));
    OnDevice<std::uint16_t> weights(
        device, widen(p.weights, p.heads, weights_stride, std::uint16_t{0x7FC0}));
    OnDevice<std::uint8_t> k(device, p.k);
    OnDevice<std::uint8_t> k_scale(device, p.k_scale);
    OnDevice<std::int32_t> ks(device, p.ks);
    OnDevice<std::int32_t> ke(device, p.ke);
    OnDevice<std::int32_t> origin(device, p.origin);
    OnDevice<float> logits(
        device, std::vector<float>(static_cast<std::size_t>(p.rows() * logits_stride), kPoison));
    optimized::IndexLogitsPrefillMxfp4Params params{};
    params.q_packed = q.data();
    params.q_scale = q_scale.data();
    params.k_packed = k.data();
    params.k_scale = k_scale.data();
    params.weights = weights.data();
    params.ks = ks.data();
    params.ke = ke.data();
    params.column_origin = p.origin.empty() ? nullptr : origin.data();
    params.logits = logits.data();
    params.q_stride = q_stride;
    params.q_scale_stride = q_scale_stride;
    params.weights_stride = weights_stride;
    params.logits_stride = logits_stride;
    params.rows = p.rows();
    params.heads = static_cast<std::int32_t>(p.heads);
    params.keys = static_cast<std::int32_t>(p.keys);
    params.columns = static_cast<std::int32_t>(p.columns);
    params.weight_scale = weight_scale;
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
    ASSERT_TRUE(reference::index_logits_prefill_mxfp4<reference::Exact>(all.in_reference(),
                                                                        all_exact.data()));
    ASSERT_TRUE(reference::index_logits_prefill_mxfp4_bound(all.in_reference(), Accumulation::fp32,
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

TEST_P(IndexLogitsPrefillMxfp4, S32_EveryHeadCount) {
  for (std::int64_t heads : {1, 8, 12, 16, 17, 24, 32, 48, 63, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const std::vector<Window> windows = {{3, 279, 0}, {0, 40, 0}, {255, 281, 0}};
    expect_within_bound(random_problem(heads, 281, windows, static_cast<unsigned>(heads)));
  }
}

// S14, S24: windows of every kind; nothing outside them is written.
TEST_P(IndexLogitsPrefillMxfp4, S14_S24_EveryWindow) {
  expect_within_bound(random_problem(5, 531, kWindows, 2));
}

// S36: request-local columns; keys before the origin or past the last column are left out.
TEST_P(IndexLogitsPrefillMxfp4, S36_ColumnsFromAnOrigin) {
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
TEST_P(IndexLogitsPrefillMxfp4, S29_S36_ChunkedEqualsWhole) {
  const Problem whole = random_problem(16, 531, kWindows, 4);
  const std::vector<float> want = kernel_logits(*device_, whole);
  std::vector<float> got;
  for (std::int64_t first = 0; first < whole.rows(); first += 5) {
    const std::int64_t last = std::min(first + 5, whole.rows());
    Problem chunk = whole;
    const auto cut = [&](auto& values, std::int64_t width) {
      values.assign(values.begin() + first * width, values.begin() + last * width);
    };
    cut(chunk.q, whole.heads * 64);
    cut(chunk.q_scale, whole.heads * 4);
    cut(chunk.weights, whole.heads);
    cut(chunk.ks, 1);
    cut(chunk.ke, 1);
    const std::vector<float> part = kernel_logits(*device_, chunk);
    got.insert(got.end(), part.begin(), part.end());
  }
  testing::expect_same("logits", got, want, static_cast<std::size_t>(whole.columns));
}

// S27: negative dots count as 0, each head by itself; weights may be negative, and so may a logit.
TEST_P(IndexLogitsPrefillMxfp4, S27_ReluIsInsideTheSumOfHeads) {
  Problem p{2, 3, 3};
  p.q.assign(128, 0);
  p.q[0] = 0x02;  // head 0 reads dim 0: 1
  p.q[64] = 0x20; // head 1 reads dim 1
  p.weights = {0x3F80, 0xBF80};
  p.k.assign(std::size_t{3} * 64, 0);
  p.k[0] = 0x2D;  // -3, 1
  p.k[64] = 0x44; // 2, 2
  p.q_scale.assign(8, 127);
  p.k_scale.assign(12, 127);
  p.ks = {0};
  p.ke = {2};
  EXPECT_EQ(kernel_logits(*device_, p, 1), (std::vector<float>{-1, 0, kPoison}));
}

// Every code of query and key against each other, at places of every group and half of a byte, each
// group with a scale of its own. One product a logit, so the kernel must give its very bits.
TEST_P(IndexLogitsPrefillMxfp4, AllCodesInEveryGroup) {
  for (std::size_t place : {0u, 9u, 38u, 69u, 90u, 127u}) {
    SCOPED_TRACE("dim " + std::to_string(place));
    Problem p{1, 16, 16};
    p.q.assign(16 * 64, 0);
    p.k.assign(16 * 64, 0);
    std::vector<float> want;
    for (std::size_t code = 0; code < 16; ++code) {
      p.q[code * 64 + place / 2] = static_cast<std::uint8_t>(code << 4 * (place % 2));
      p.k[code * 64 + place / 2] = static_cast<std::uint8_t>(code << 4 * (place % 2));
      for (int g = 0; g < 4; ++g) {
        p.q_scale.push_back(static_cast<std::uint8_t>(120 + 3 * g));
        p.k_scale.push_back(static_cast<std::uint8_t>(128 - g));
      }
      p.weights.push_back(0x3F80);
      p.ks.push_back(0);
      p.ke.push_back(16);
      for (std::size_t key = 0; key < 16; ++key) {
        const int group = static_cast<int>(place / 32);
        const float dot = std::ldexp(kCodeValues[code] * kCodeValues[key], 2 * group - 6);
        want.push_back(dot > 0 ? dot : 0.0f);
      }
    }
    std::vector<float> got = kernel_logits(*device_, p, 1);
    for (float& logit : got)
      logit += 0.0f; // no -0
    testing::expect_same("logits", got, want, 16);
  }
}

// Scales from end to end of e8m0: a product is right wherever fp32 holds it, 0 or infinite beyond;
// 0xFF is NaN, whatever the codes of its group.
TEST_P(IndexLogitsPrefillMxfp4, EveryPairOfScaleBytes) {
  for (const std::size_t group : {0u, 3u}) {
    Problem p{1, 256, 256};
    p.q.assign(std::size_t{256} * 64, 0);
    p.k = p.q;
    p.q_scale.assign(std::size_t{256} * 4, 127);
    p.k_scale = p.q_scale;
    std::vector<float> want;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      // 0xFF over codes that are all 0, too.
      p.q[byte * 64 + group * 16] = byte == 255 ? 0 : 0x07; // 6
      p.k[byte * 64 + group * 16] = byte == 255 ? 0 : 0x03; // 1.5
      p.q_scale[byte * 4 + group] = static_cast<std::uint8_t>(byte);
      p.k_scale[byte * 4 + group] = static_cast<std::uint8_t>(byte);
      p.weights.push_back(0x3F80);
      p.ks.push_back(0);
      p.ke.push_back(256);
      for (std::size_t key = 0; key < 256; ++key)
        want.push_back(byte == 255 || key == 255 ? std::numeric_limits<float>::quiet_NaN()
                                                 : static_cast<float>(std::ldexp(
                                                       9.0, static_cast<int>(byte + key) - 254)));
    }
    testing::expect_same("logits", kernel_logits(*device_, p, 1), want, 256);
  }
}

// A NaN scale of one head, and of a key: their row, and their column; nothing else.
TEST_P(IndexLogitsPrefillMxfp4, NanScalesStayInTheirRowAndColumn) {
  Problem p = random_problem(24, 300, {{0, 300, 0}, {0, 300, 0}, {5, 290, 0}}, 12);
  p.q_scale[static_cast<std::size_t>((1 * 24 + 23) * 4 + 2)] = 0xFF;
  p.k_scale[static_cast<std::size_t>(17 * 4 + 3)] = 0xFF;
  p.k_scale[static_cast<std::size_t>(280 * 4)] = 0xFF;
  expect_within_bound(p);
}

TEST_P(IndexLogitsPrefillMxfp4, NothingToScoreWritesNothing) {
  expect_within_bound(random_problem(4, 9, {}, 8));
  Problem no_keys{4, 0, 5};
  no_keys.q.assign(256, 0x22);
  no_keys.q_scale.assign(16, 127);
  no_keys.weights.assign(4, 0x3F80);
  no_keys.ks = {0};
  no_keys.ke = {5};
  expect_within_bound(no_keys);
}

TEST_P(IndexLogitsPrefillMxfp4, RefusesWhatItCannotScore) {
  optimized::IndexLogitsPrefillMxfp4Params params{};
  params.heads = 64;
  const auto refusal = [&](auto change) {
    optimized::IndexLogitsPrefillMxfp4Params changed = params;
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

INSTANTIATE_TEST_SUITE_P(Devices, IndexLogitsPrefillMxfp4,
                         ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesPrefillMxfp4 : public IndexLogitsPrefillMxfp4 {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesPrefillMxfp4, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
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
TEST_P(HostLanesPrefillMxfp4, S12_OffsetsBeyond32Bits) {
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
  optimized::IndexLogitsPrefillMxfp4Params params{};
  params.q_packed = q.data();
  params.q_scale = p.q_scale.data();
  params.k_packed = k.data();
  params.k_scale = p.k_scale.data();
  params.weights = p.weights.data();
  params.ks = p.ks.data();
  params.ke = p.ke.data();
  params.logits = logits;
  params.q_stride = 64;
  params.q_scale_stride = 4;
  params.weights_stride = 1;
  params.logits_stride = kStride;
  params.rows = 2;
  params.heads = 1;
  params.keys = 20;
  params.columns = 20;
  params.weight_scale = p.weight_scale();
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_TRUE(status) << status.what();
  testing::expect_same("logits", std::vector<float>(logits + kStride, logits + kStride + 20),
                       std::vector<float>(want.begin() + 20, want.end()), 20);
  munmap(region, bytes);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesPrefillMxfp4, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_logits_prefill_mxfp4_test
} // namespace dsakit
