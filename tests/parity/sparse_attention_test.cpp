// sparse_attention: kernel against the exact reference within its bounds, on every device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/mla_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace sparse_attention_test {

using testing::MlaPages;
using testing::OnDevice;

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kSmallest = std::numeric_limits<std::int32_t>::min();
constexpr double kScale = 0.07216878364870322; // 192^-0.5
constexpr std::uint16_t kLatentPoison = 0x7FDE;
constexpr float kLsePoison = -12345.0f;

struct Problem {
  std::int64_t heads;
  std::int64_t k;
  MlaPages pages;
  Fp8Encoding encoding = Fp8Encoding::e4m3fn;
  MlaScaleRead scale_read = MlaScaleRead::fp32;
  LseBase lse_base = LseBase::e;
  std::int32_t splits = 1;
  std::vector<std::uint16_t> q = {};    // [tokens, heads, 576]
  std::vector<std::uint8_t> cache = {}; // records that no slot names are NaN
  std::vector<std::int32_t> slots = {}; // [tokens, k]

  std::int64_t tokens() const { return static_cast<std::int64_t>(q.size()) / (heads * 576); }
};

/// Random queries and records for the slots that are set.
void fill(Problem& p, std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  p.q.clear();
  for (std::int64_t i = 0; i < tokens * p.heads * 576; ++i)
    p.q.push_back(testing::to_bf16(normal(random)));
  p.cache = testing::poisoned_mla_cache(p.pages, p.encoding);
  std::vector<bool> done(static_cast<std::size_t>(p.pages.slots()));
  for (std::int32_t slot : p.slots)
    if (slot >= 0 && slot < p.pages.slots() && !done[static_cast<std::size_t>(slot)]) {
      done[static_cast<std::size_t>(slot)] = true;
      testing::random_mla_record(p.cache.data() + p.pages.offset(slot), random);
    }
}

/// Distinct slots; of every `invalid_every`th one of the invalid ids.
Problem random_problem(std::int64_t tokens, std::int64_t heads, std::int64_t k,
                       const MlaPages& pages, Fp8Encoding encoding, std::int64_t invalid_every,
                       unsigned seed) {
  Problem p{heads, k, pages, encoding};
  std::mt19937 random(seed);
  const std::int32_t invalid[] = {-1, static_cast<std::int32_t>(pages.slots()), kLargest, kSmallest,
                                  -2};
  std::vector<std::int32_t> all(static_cast<std::size_t>(pages.slots()));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::int32_t>(i);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    for (std::int64_t i = 0; i < k; ++i)
      p.slots.push_back(invalid_every != 0 && (i + t) % invalid_every == 0
                            ? invalid[static_cast<std::size_t>(i + t) % std::size(invalid)]
                            : all[static_cast<std::size_t>(i) % all.size()]);
  }
  fill(p, tokens, seed + 1);
  return p;
}

struct Result {
  std::vector<std::uint16_t> latent = {}; // [tokens, heads, 512] bits
  std::vector<float> lse = {};            // [tokens, heads]
};

class SparseAttention : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  /// Tokens of q and rows of slots lie apart: NaN, and slots that exist, between them.
  Result kernel_result(optimized::Device& device, const Problem& p) {
    const std::int64_t q_stride = p.heads * 576 + 24;
    const std::int64_t slots_stride = p.k + 3;
    std::vector<std::uint16_t> wide_q(static_cast<std::size_t>(p.tokens() * q_stride), 0x7FC0);
    std::vector<std::int32_t> wide_slots(static_cast<std::size_t>(p.tokens() * slots_stride), 0);
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      std::copy_n(p.q.begin() + t * p.heads * 576, p.heads * 576, wide_q.begin() + t * q_stride);
      std::copy_n(p.slots.begin() + t * p.k, p.k, wide_slots.begin() + t * slots_stride);
    }
    const auto rows = static_cast<std::size_t>(p.tokens() * p.heads);
    OnDevice<std::uint16_t> q(device, wide_q);
    OnDevice<std::uint8_t> cache(device, p.cache);
    OnDevice<std::int32_t> slots(device, wide_slots);
    OnDevice<std::uint16_t> latent(device, std::vector<std::uint16_t>(rows * 512, kLatentPoison));
    OnDevice<float> lse(device, std::vector<float>(rows, kLsePoison));
    optimized::SparseAttentionParams params{};
    params.q = q.data();
    params.cache = cache.data();
    params.slots = slots.data();
    params.latent = latent.data();
    params.lse = lse.data();
    params.q_token_stride = q_stride;
    params.slots_stride = slots_stride;
    params.page_stride = p.pages.page_stride();
    params.record_stride = p.pages.record_stride();
    params.tokens = p.tokens();
    params.pages = p.pages.pages;
    params.heads = static_cast<std::int32_t>(p.heads);
    params.k = static_cast<std::int32_t>(p.k);
    params.page_size = static_cast<std::int32_t>(p.pages.page_size);
    params.splits = p.splits;
    params.softmax_scale = static_cast<float>(kScale);
    params.encoding = p.encoding;
    params.scale_read = p.scale_read;
    params.lse_base = p.lse_base;
    const Status status = testing::run_kernel(device, params);
    EXPECT_TRUE(status) << status.what();
    return {latent.values(), lse.values()};
  }

  Result expect_within_bound(const Problem& p) {
    const reference::SparseAttention in{p.q.data(),
                                        {p.cache.data(), p.pages.pages, p.pages.page_size,
                                         p.pages.page_stride(), p.pages.record_stride()},
                                        p.slots.data(),
                                        p.tokens(),
                                        p.heads,
                                        p.k,
                                        kScale,
                                        p.encoding,
                                        p.scale_read,
                                        p.lse_base};
    const auto rows = static_cast<std::size_t>(p.tokens() * p.heads);
    std::vector<double> latent(rows * 512);
    std::vector<double> lse(rows);
    std::vector<double> latent_bound(rows * 512);
    std::vector<double> lse_bound(rows);
    EXPECT_TRUE(reference::sparse_attention_exact(in, latent.data(), lse.data()));
    EXPECT_TRUE(reference::sparse_attention_bound(in, latent_bound.data(), lse_bound.data()));
    Result got = kernel_result(*device_, p);
    std::vector<float> values;
    for (std::uint16_t bits : got.latent)
      values.push_back(reference::bf16_to_float(bits));
    testing::expect_within("latent", values, latent, latent_bound, 512);
    testing::expect_within("lse", got.lse, lse, lse_bound, static_cast<std::size_t>(p.heads));
    return got;
  }

  static void expect_same(const Result& got, const Result& want, std::int64_t heads) {
    testing::expect_same("latent", got.latent, want.latent, 512);
    testing::expect_same("lse", got.lse, want.lse, static_cast<std::size_t>(heads));
  }
};

// S32: head counts that fill no tile, in both encodings.
TEST_P(SparseAttention, S32_EveryHeadCount) {
  for (std::int64_t heads : {1, 4, 7, 8, 12, 15, 16, 17, 24, 40, 96, 112, 128})
    for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
      SCOPED_TRACE("heads " + std::to_string(heads) + " " + std::string(name(encoding)));
      expect_within_bound(
          random_problem(3, heads, 37, {6, 16}, encoding, 9, static_cast<unsigned>(heads)));
    }
}

// S33, S47: seams of a round of 32 keys, and the width of the layer.
TEST_P(SparseAttention, S33_S47_EveryWidth) {
  for (std::int64_t k : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 300}) {
    SCOPED_TRACE("k " + std::to_string(k));
    expect_within_bound(
        random_problem(2, 7, k, {5, 64}, Fp8Encoding::e4m3fn, 0, static_cast<unsigned>(k)));
  }
  expect_within_bound(random_problem(1, 16, 2048, {33, 64}, Fp8Encoding::e4m3fn, 13, 3));
}

// S52, S56, S57: any number of splits, empty ones among them, within the bound; and the same bits
// every time, for a token alone as in company.
TEST_P(SparseAttention, S52_S56_S57_EveryNumberOfSplits) {
  for (std::int64_t k : {3, 33, 300})
    for (std::int32_t splits : {1, 2, 3, 7, 16, 64}) {
      SCOPED_TRACE("k " + std::to_string(k) + " splits " + std::to_string(splits));
      Problem p = random_problem(3, 17, k, {5, 64}, Fp8Encoding::e4m3fnuz, 11, 5);
      p.splits = splits;
      p.lse_base = splits % 2 ? LseBase::e : LseBase::two;
      const Result first = expect_within_bound(p);
      expect_same(kernel_result(*device_, p), first, p.heads);
      Problem alone = p;
      alone.q.assign(p.q.begin() + 17 * 576, p.q.begin() + 2 * 17 * 576);
      alone.slots.assign(p.slots.begin() + k, p.slots.begin() + 2 * k);
      expect_same(kernel_result(*device_, alone),
                  {{first.latent.begin() + 17 * 512, first.latent.begin() + 2 * 17 * 512},
                   {first.lse.begin() + 17, first.lse.begin() + 2 * 17}},
                  p.heads);
    }
}

// S23, S49: invalid slots first, last, between, in whole rounds; none is read.
TEST_P(SparseAttention, S23_S49_InvalidSlotsAnywhere) {
  const auto valid = [](std::int64_t pattern, std::int64_t i) {
    switch (pattern) {
    case 0:
      return i >= 4; // cases.md S49
    case 1:
      return i >= 70; // two whole rounds
    case 2:
      return i < 3; // all but the first
    case 3:
      return i % 2 == 1; //
    case 4:
      return i < 32 || i >= 64; // a round in the middle
    default:
      return i == 99; // only the very last
    }
  };
  for (std::int32_t splits : {1, 3}) {
    Problem p = random_problem(6, 5, 100, {4, 53}, Fp8Encoding::e4m3fn, 0, 7);
    const std::int32_t invalid[] = {-1, 4 * 53, kLargest, kSmallest};
    for (std::int64_t t = 0; t < 6; ++t)
      for (std::int64_t i = 0; i < p.k; ++i)
        if (!valid(t, i)) p.slots[static_cast<std::size_t>(t * p.k + i)] = invalid[i % 4];
    fill(p, 6, 8);
    p.splits = splits;
    expect_within_bound(p);
  }
}

// S24, S50: a row without a valid slot gives 0 and -inf, and changes no other row.
TEST_P(SparseAttention, S24_S50_S53_EmptyRows) {
  for (std::int32_t splits : {1, 2})
    for (LseBase base : {LseBase::e, LseBase::two}) {
      Problem p = random_problem(4, 9, 40, {2, 64}, Fp8Encoding::e4m3fn, 0, 9);
      std::fill_n(p.slots.begin() + 40, 80, -1);
      p.splits = splits;
      p.lse_base = base;
      const Result got = expect_within_bound(p);
      for (std::size_t i = 0; i < std::size_t{2} * 9 * 512; ++i)
        EXPECT_EQ(got.latent[9 * 512 + i], 0) << i;
      for (std::size_t i = 0; i < 18; ++i)
        EXPECT_EQ(got.lse[9 + i], -std::numeric_limits<float>::infinity());
    }
}

// Spec 5.2: a slot that recurs counts each time.
TEST_P(SparseAttention, DuplicatesCountTwice) {
  Problem p = random_problem(2, 3, 66, {2, 64}, Fp8Encoding::e4m3fn, 0, 11);
  for (std::size_t i = 0; i < 40; ++i)
    p.slots[i] = p.slots[i % 3];
  expect_within_bound(p);
}

// S51: the base of lse changes lse and nothing else.
TEST_P(SparseAttention, S51_LseOfBothBases) {
  Problem p = random_problem(2, 16, 48, {1, 64}, Fp8Encoding::e4m3fn, 0, 12);
  const Result natural = expect_within_bound(p);
  p.lse_base = LseBase::two;
  const Result two = expect_within_bound(p);
  testing::expect_same("latent", two.latent, natural.latent, 512);
  for (std::size_t i = 0; i < two.lse.size(); ++i)
    EXPECT_NEAR(two.lse[i], natural.lse[i] * std::log2(std::exp(1.0f)), 1e-5f);
}

// S15, S16: pages and records with room behind them, any page size.
TEST_P(SparseAttention, S15_S16_EveryStride) {
  for (const MlaPages& pages : {MlaPages{97, 1}, MlaPages{49, 2, 16}, MlaPages{7, 16, 2048},
                                MlaPages{3, 53, 0, 16}, MlaPages{33, 3, 32, 112}}) {
    SCOPED_TRACE("page " + std::to_string(pages.page_size));
    expect_within_bound(random_problem(2, 10, 50, pages, Fp8Encoding::e4m3fnuz, 7, 13));
  }
}

// Spec 12: a reader that rounds the scale to bf16 gives other latents, within its own bound.
TEST_P(SparseAttention, ScaleReadAsStoredOrAsBf16) {
  Problem p = random_problem(2, 16, 64, {1, 64}, Fp8Encoding::e4m3fn, 0, 14);
  const Result stored = expect_within_bound(p);
  p.scale_read = MlaScaleRead::bf16;
  const Result rounded = expect_within_bound(p);
  EXPECT_NE(stored.latent, rounded.latent);
}

// S01: a record of each code, one token each: a NaN fills its token and no other.
TEST_P(SparseAttention, S01_All256CodesThroughEachReader) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (std::int32_t splits : {1, 2}) {
      SCOPED_TRACE(std::string(name(encoding)));
      Problem p{3, 4, {4, 65}, encoding};
      for (std::int32_t code = 0; code < 256; ++code)
        p.slots.insert(p.slots.end(), {code, -1, 257 + code % 3, -1});
      fill(p, 256, 15);
      for (std::int32_t code = 0; code < 256; ++code) {
        std::uint8_t* record = p.cache.data() + p.pages.offset(code);
        record[(code * 37 + 5) % 512] = static_cast<std::uint8_t>(code);
      }
      p.splits = splits;
      expect_within_bound(p);
    }
}

// NaN beside invalid slots only, so that nothing else in the round or the split is valid.
TEST_P(SparseAttention, NaNIsNotTakenForAnEmptyRow) {
  for (std::int32_t splits : {1, 3})
    for (std::int64_t at : {0, 1, 5, 31, 32, 70}) {
      SCOPED_TRACE("slot " + std::to_string(at) + " splits " + std::to_string(splits));
      Problem p{2, 71, {3, 4}};
      p.slots.assign(71, -1);
      p.slots[static_cast<std::size_t>(at)] = 7;
      fill(p, 1, 16);
      p.cache[static_cast<std::size_t>(p.pages.offset(7) + 200)] = 0x7F;
      p.splits = splits;
      const Result got = kernel_result(*device_, p);
      for (std::uint16_t bits : got.latent)
        EXPECT_TRUE(std::isnan(reference::bf16_to_float(bits)));
      EXPECT_NE(got.latent[0], kLatentPoison);
      EXPECT_TRUE(std::isnan(got.lse[0]) && std::isnan(got.lse[1]));
    }
}

// Spec 5.2: scores far above and far below what exp takes; a start at 0 would give 0 for the
// latter.
TEST_P(SparseAttention, ScoresFarFromZero) {
  for (float size : {-1.0f, 1.0f})
    for (std::int32_t splits : {1, 3}) {
      SCOPED_TRACE("size " + std::to_string(size) + " splits " + std::to_string(splits));
      Problem p = random_problem(2, 5, 75, {2, 64}, Fp8Encoding::e4m3fn, 8, 17);
      // Keys of positive values, and queries of one sign: scores of some hundreds.
      for (std::int64_t slot = 0; slot < p.pages.slots(); ++slot)
        for (std::int64_t d = 0; d < 512; ++d) {
          std::uint8_t& code = p.cache[static_cast<std::size_t>(p.pages.offset(slot) + d)];
          if (code != 0xFF) code &= 0x7F;
        }
      for (std::size_t i = 0; i < p.q.size(); ++i)
        p.q[i] = testing::to_bf16(size * (12 + static_cast<float>(i % 7)));
      p.splits = splits;
      const Result got = expect_within_bound(p);
      for (float lse : got.lse)
        EXPECT_GT(lse * size, 88.0f);
    }
}

// The softmax's largest may come in any round: sums so far shrink, or the round hardly counts.
TEST_P(SparseAttention, TheLargestScoreMayComeInAnyRound) {
  for (std::int64_t at : {0, 40, 95}) {
    Problem p = random_problem(1, 3, 96, {2, 64}, Fp8Encoding::e4m3fn, 0, 18);
    std::uint8_t* record = p.cache.data() + p.pages.offset(p.slots[static_cast<std::size_t>(at)]);
    for (std::size_t d = 0; d < 64; ++d) { // k_pe along the first head's query
      const std::uint16_t value = testing::to_bf16(8 * reference::bf16_to_float(p.q[512 + d]));
      std::memcpy(record + 528 + 2 * d, &value, sizeof value);
    }
    expect_within_bound(p);
  }
}

TEST_P(SparseAttention, NoTokensWriteNothing) {
  Problem p{4, 8, {1, 16}};
  fill(p, 0, 19);
  expect_within_bound(p);
}

TEST_P(SparseAttention, RefusesWhatItCannotAttend) {
  optimized::SparseAttentionParams params{};
  params.heads = 128;
  params.splits = 1;
  params.k = 4;
  params.page_size = 64;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.q_token_stride = 128 * 576;
  const auto refusal = [&](auto change) {
    optimized::SparseAttentionParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.heads = 129; }).find("heads is 129, want 1 to 128"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.splits = 0; }).find("splits is 0, want 1 to 64"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.splits = 65; }).find("splits is 65"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.k = -1; }).find("k is -1"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.record_stride = 640; }).find("640 bytes, want at least 656"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.page_stride = 41992; }).find("41992"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.q_token_stride = 577; }).find("577 elements"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

TEST_P(SparseAttention, RefusesAWorkspaceThatIsTooSmall) {
  optimized::SparseAttentionParams params{};
  params.heads = 2;
  params.splits = 3;
  params.page_size = 64;
  params.page_stride = 64 * 656;
  params.record_stride = 656;
  params.q_token_stride = 2 * 576;
  params.tokens = 5;
  const auto kernel = optimized::pick(device_->arch(), params);
  ASSERT_TRUE(kernel) << kernel.status().what();
  const std::size_t bytes = (*kernel)->workspace_bytes(params);
  EXPECT_EQ(bytes, std::size_t{5} * 3 * 2 * 513 * 4);
  const Status status = (*kernel)->launch(params, nullptr, bytes - 1, device_->stream());
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.what().find(std::to_string(bytes - 1) + " bytes, want " + std::to_string(bytes)),
            std::string::npos)
      << status.what();
}

INSTANTIATE_TEST_SUITE_P(Devices, SparseAttention, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

class HostLanesSparseAttention : public SparseAttention {};

// Whatever LDS held, and whichever wave went first, the bits are the same.
TEST_P(HostLanesSparseAttention, TwoPatternsAndTwoSchedulesGiveTheSameBits) {
  for (std::int32_t splits : {1, 3}) {
    Problem p = random_problem(2, 23, 100, {2, 64}, Fp8Encoding::e4m3fn, 10, 20);
    p.splits = splits;
    const Result want = kernel_result(*device_, p);
    for (const std::uint8_t pattern : {std::uint8_t{0x00}, std::uint8_t{0xFF}})
      for (std::uint64_t seed : {0u, 12345u}) {
        auto device = testing::open(GetParam(), {.schedule_seed = seed, .lds_pattern = pattern});
        expect_same(kernel_result(*device, p), want, p.heads);
      }
  }
}

// S12: records past 2^32 bytes, in memory that is touched in two places.
TEST_P(HostLanesSparseAttention, S12_OffsetsBeyond32Bits) {
  constexpr std::int64_t kPageStride = (std::int64_t{1} << 32) + 656;
  void* region = mmap(nullptr, 2 * kPageStride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: no 8 GiB of address space";
  auto* cache = static_cast<std::uint8_t*>(region);
  Problem p{2, 2, {2, 1}};
  p.slots = {1, 0};
  fill(p, 1, 21);
  const Result want = kernel_result(*device_, p);
  std::memcpy(cache, p.cache.data(), 656);
  std::memcpy(cache + kPageStride, p.cache.data() + 656, 656);
  OnDevice<std::uint16_t> q(*device_, p.q);
  Result got{std::vector<std::uint16_t>(2 * 512, kLatentPoison), {kLsePoison, kLsePoison}};
  optimized::SparseAttentionParams params{};
  params.q = q.data();
  params.cache = cache;
  params.slots = p.slots.data();
  params.latent = got.latent.data();
  params.lse = got.lse.data();
  params.q_token_stride = 2 * 576;
  params.slots_stride = 2;
  params.page_stride = kPageStride;
  params.record_stride = 656;
  params.tokens = 1;
  params.pages = 2;
  params.heads = 2;
  params.k = 2;
  params.page_size = 1;
  params.splits = 1;
  params.softmax_scale = static_cast<float>(kScale);
  const Status status = testing::run_kernel(*device_, params);
  EXPECT_TRUE(status) << status.what();
  expect_same(got, want, 2);
  munmap(region, 2 * kPageStride);
}

INSTANTIATE_TEST_SUITE_P(Archs, HostLanesSparseAttention, ::testing::Values("gfx942", "gfx950"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace sparse_attention_test
} // namespace dsakit
