#include "dsakit/reference/sparse_attention.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace sparse_attention_test {

using testing::Guarded;

constexpr std::int64_t kDim = kMlaLatent + kMlaPe;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Inputs of sparse_attention that own their memory.
struct Problem {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t k;
  std::int64_t pages;
  std::int64_t page_size;
  std::int64_t record_stride;
  std::vector<std::uint16_t> query;
  std::vector<std::uint8_t> cache;
  std::vector<std::int32_t> slots;
  double softmax_scale = 0.0625;
  Fp8Encoding encoding = Fp8Encoding::e4m3fn;
  MlaScaleRead scale_read = MlaScaleRead::fp32;
  LseBase lse_base = LseBase::e;
  MlaRecord mla_record = MlaRecord::fp8_ds_mla;

  std::int64_t page_stride() const { return std::ssize(cache) / pages; }
  SparseAttention view() const {
    return {query.data(),
            {cache.data(), pages, page_size, page_stride(), record_stride},
            slots.data(),
            tokens,
            heads,
            k,
            softmax_scale,
            encoding,
            scale_read,
            lse_base,
            ActivationDtype::bf16,
            mla_record};
  }
  std::uint8_t* record(std::int64_t slot) {
    return cache.data() + slot / page_size * page_stride() + slot % page_size * record_stride;
  }
  /// One token with its slots.
  Problem token(std::int64_t t) const {
    Problem p = *this;
    p.tokens = 1;
    p.query.assign(query.begin() + t * heads * kDim, query.begin() + (t + 1) * heads * kDim);
    p.slots.assign(slots.begin() + t * k, slots.begin() + (t + 1) * k);
    return p;
  }
  /// The first heads of every token.
  Problem first_heads(std::int64_t n) const {
    Problem p = *this;
    p.heads = n;
    p.query.clear();
    for (std::int64_t t = 0; t < tokens; ++t)
      p.query.insert(p.query.end(), query.begin() + t * heads * kDim,
                     query.begin() + (t * heads + n) * kDim);
    return p;
  }
};

/// Random queries and records; bytes that no record owns are poisoned; slots distinct, some of them
/// invalid.
Problem random_problem(std::int64_t tokens, std::int64_t heads, std::int64_t k,
                       Fp8Encoding encoding, unsigned seed) {
  constexpr std::int64_t kPages = 5, kPageSize = 12, kStride = 672;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{tokens,    heads,
            k,         kPages,
            kPageSize, kStride,
            {},        std::vector<std::uint8_t>(index(kPages * (kPageSize * kStride + 32)), 0xFF),
            {}};
  p.encoding = encoding;
  for (std::int64_t i = 0; i < tokens * heads * kDim; ++i)
    p.query.push_back(float_to_bf16(normal(random)));
  for (std::int64_t slot = 0; slot < kPages * kPageSize; ++slot) {
    std::uint8_t* record = p.record(slot);
    for (std::int64_t d = 0; d < kMlaLatent; ++d)
      record[d] = encode_fp8_saturating(encoding, 60 * normal(random));
    for (std::int64_t tile = 0; tile < 4; ++tile) {
      const float scale = 0.02f * (1 + std::fabs(normal(random)));
      std::memcpy(record + 512 + tile * 4, &scale, sizeof scale);
    }
    for (std::int64_t d = 0; d < kMlaPe; ++d) {
      const std::uint16_t bits = float_to_bf16(normal(random));
      std::memcpy(record + 528 + 2 * d, &bits, sizeof bits);
    }
  }
  std::vector<std::int32_t> pool(kPages * kPageSize);
  for (std::size_t i = 0; i < pool.size(); ++i)
    pool[i] = static_cast<std::int32_t>(i);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::shuffle(pool.begin(), pool.end(), random);
    for (std::int64_t i = 0; i < k; ++i)
      p.slots.push_back(random() % 5 == 0 ? -1 : pool[index(i % std::ssize(pool))]);
  }
  return p;
}

struct Exactly {
  std::vector<double> latent;
  std::vector<double> lse;
};
struct Simulated {
  std::vector<float> latent;
  std::vector<float> lse;
};

template <class Value>
std::vector<Value> values(Guarded<Value>& guarded) {
  EXPECT_TRUE(guarded.intact());
  return {guarded.data(), guarded.data() + guarded.size()};
}

Exactly exact_of(const Problem& p) {
  Guarded<double> latent(index(p.tokens * p.heads * kMlaLatent), 777, -555),
      lse(index(p.tokens * p.heads), 777, -555);
  const Status status = sparse_attention_exact(p.view(), latent.data(), lse.data());
  EXPECT_TRUE(status) << status.what();
  return {values(latent), values(lse)};
}

Exactly bound_of(const Problem& p) {
  Guarded<double> latent(index(p.tokens * p.heads * kMlaLatent), 777, -555),
      lse(index(p.tokens * p.heads), 777, -555);
  const Status status = sparse_attention_bound(p.view(), latent.data(), lse.data());
  EXPECT_TRUE(status) << status.what();
  return {values(latent), values(lse)};
}

Simulated simulated_of(const Problem& p) {
  Guarded<std::uint16_t> latent(index(p.tokens * p.heads * kMlaLatent), 0x7FC1, 0x1234);
  Guarded<float> lse(index(p.tokens * p.heads), 777, -555);
  const Status status = sparse_attention(p.view(), latent.data(), lse.data());
  EXPECT_TRUE(status) << status.what();
  Simulated result{{}, values(lse)};
  for (std::uint16_t bits : values(latent))
    result.latent.push_back(bf16_to_float(bits));
  return result;
}

/// Largest |got - exact| / bound; equal values use nothing.
template <class Value>
double used(const std::vector<Value>& got, const std::vector<double>& exact,
            const std::vector<double>& bound) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = static_cast<double>(got[i]);
    if (value == exact[i]) continue;
    const double fraction = std::fabs(value - exact[i]) / bound[i];
    if (!(fraction <= worst)) worst = fraction; // NaN too
  }
  return worst;
}

bool same(const Simulated& a, const Simulated& b) {
  return a.latent == b.latent && a.lse == b.lse;
}

// ---- The formula --------------------------------------------------------------------------------

TEST(SparseAttention, AGeometryThatOverlapsIsRefusedAndNothingIsWritten) {
  const Problem p = random_problem(2, 3, 7, Fp8Encoding::e4m3fn, 1);
  SparseAttention in = p.view();
  in.cache.record_stride = 655;
  const std::string want = "mla_cache record stride: found 655 bytes, want at least 656";
  EXPECT_EQ(sparse_attention_exact(in, nullptr, nullptr).what(), want);
  EXPECT_EQ(sparse_attention(in, nullptr, nullptr).what(), want);
  EXPECT_EQ(sparse_attention_bound(in, nullptr, nullptr).what(), want);
}

TEST(SparseAttention, FollowsThePlainFormulaForEachEncodingScaleReadAndBase) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (MlaScaleRead scale_read : {MlaScaleRead::fp32, MlaScaleRead::bf16})
      for (LseBase base : {LseBase::e, LseBase::two}) {
        Problem p = random_problem(3, 5, 41, encoding, 2);
        p.scale_read = scale_read;
        p.lse_base = base;
        const Exactly exact = exact_of(p), bound = bound_of(p);
        for (std::int64_t row = 0; row < p.tokens * p.heads; ++row) {
          const std::uint16_t* q = p.query.data() + row * kDim;
          long double largest = -kInf, sum = 0, score_terms = 0;
          std::vector<std::vector<float>> keys;
          std::vector<long double> weights;
          for (std::int64_t i = 0; i < p.k; ++i) {
            const std::int32_t slot = p.slots[index(row / p.heads * p.k + i)];
            if (slot < 0) continue;
            keys.emplace_back(kDim);
            read_mla_record(encoding, scale_read, p.record(slot), keys.back().data());
            long double score = 0, terms = 0;
            for (std::int64_t d = 0; d < kDim; ++d) {
              const long double product =
                  static_cast<long double>(bf16_to_float(q[d])) * keys.back()[index(d)];
              score += product;
              terms += std::fabs(product);
            }
            weights.push_back(score * p.softmax_scale);
            largest = std::max(largest, weights.back());
            score_terms = std::max(score_terms, terms);
          }
          for (long double& w : weights)
            sum += w = std::exp(w - largest);
          const long double lse =
              (largest + std::log(sum)) / (base == LseBase::two ? std::numbers::ln2 : 1);
          ASSERT_NEAR(exact.lse[index(row)], static_cast<double>(lse), 1e-12);
          const double eps = static_cast<double>(578 * 0x1p-24L * score_terms * p.softmax_scale);
          const double ulp = std::ldexp(1.0, std::ilogb(exact.lse[index(row)]) - 23);
          // A dot of 576 products, its scale and its maximum: 578 roundings.
          ASSERT_NEAR(bound.lse[index(row)],
                      eps * (base == LseBase::two ? std::numbers::log2e : 1) + 4 * ulp, eps * 1e-9);
          for (std::int64_t d = 0; d < kMlaLatent; ++d) {
            long double out = 0, terms = 0;
            for (std::size_t j = 0; j < keys.size(); ++j) {
              out += weights[j] / sum * keys[j][index(d)];
              terms += weights[j] / sum * std::fabs(keys[j][index(d)]);
            }
            const std::size_t at = index(row * kMlaLatent + d);
            ASSERT_NEAR(exact.latent[at], static_cast<double>(out), 1e-12);
            const long double want =
                0x1p-8L * (std::fabs(out) + terms) + (std::exp(2.0L * eps) - 1) * terms;
            ASSERT_NEAR(bound.latent[at], static_cast<double>(want),
                        static_cast<double>(want) * 1e-9);
          }
        }
        const Simulated simulated = simulated_of(p);
        EXPECT_LE(used(simulated.latent, exact.latent, bound.latent), 1);
        EXPECT_LE(used(simulated.lse, exact.lse, bound.lse), 1);
      }
}

TEST(SparseAttention, S32_HeadsAreIndependentForAnyNumberOfThem) {
  const Problem all = random_problem(3, 24, 21, Fp8Encoding::e4m3fn, 3);
  const Simulated want = simulated_of(all);
  for (std::int64_t heads : {1, 4, 8, 12, 16, 23}) {
    const Simulated got = simulated_of(all.first_heads(heads));
    for (std::int64_t t = 0; t < 3; ++t) {
      EXPECT_TRUE(std::equal(got.lse.begin() + t * heads, got.lse.begin() + (t + 1) * heads,
                             want.lse.begin() + t * 24))
          << heads;
      EXPECT_TRUE(std::equal(got.latent.begin() + t * heads * 512,
                             got.latent.begin() + (t + 1) * heads * 512,
                             want.latent.begin() + t * 24 * 512))
          << heads;
    }
  }
}

TEST(SparseAttention, OneKeyIsItsOwnAnswer) {
  Problem p = random_problem(1, 2, 1, Fp8Encoding::e4m3fn, 4);
  p.slots = {17};
  std::vector<float> key(kDim);
  read_mla_record(p.encoding, p.scale_read, p.record(17), key.data());
  const Exactly exact = exact_of(p);
  const Simulated simulated = simulated_of(p);
  for (std::int64_t i = 0; i < 2 * kMlaLatent; ++i) {
    EXPECT_EQ(exact.latent[index(i)], key[index(i % kMlaLatent)]);
    EXPECT_EQ(simulated.latent[index(i)], key[index(i % kMlaLatent)]);
  }
}

// ---- Slots --------------------------------------------------------------------------------------

TEST(SparseAttention, S23_InvalidSlotsAreSkippedWhereverTheyStand) {
  Problem p = random_problem(1, 3, 9, Fp8Encoding::e4m3fn, 5);
  p.slots = {-1, 7, 2147483647, 0, -2, 60, 33, -2147483647 - 1, 59}; // 60 slots in the pool
  Problem packed = p;
  packed.k = 4;
  packed.slots = {7, 0, 33, 59};
  EXPECT_EQ(exact_of(p).latent, exact_of(packed).latent);
  EXPECT_EQ(exact_of(p).lse, exact_of(packed).lse);
  EXPECT_TRUE(same(simulated_of(p), simulated_of(packed)));
}

TEST(SparseAttention, S49_S52_ABlockOfSlotsWithoutAKeyChangesNothing) {
  Problem p = random_problem(1, 3, 48, Fp8Encoding::e4m3fn, 6);
  p.slots.assign(48, -1);
  p.slots[20] = 3; // the second of three blocks of 16
  p.slots[21] = 4;
  Problem packed = p;
  packed.k = 2;
  packed.slots = {3, 4};
  EXPECT_TRUE(same(simulated_of(p), simulated_of(packed)));
  EXPECT_EQ(exact_of(p).latent, exact_of(packed).latent);
}

TEST(SparseAttention, S50_ATokenWithoutAKeyGivesZeroAndMinusInfinity) {
  Problem p = random_problem(3, 2, 20, Fp8Encoding::e4m3fn, 7);
  std::fill(p.slots.begin() + 20, p.slots.begin() + 40, -1);
  for (LseBase base : {LseBase::e, LseBase::two}) {
    p.lse_base = base;
    const Exactly exact = exact_of(p), bound = bound_of(p);
    const Simulated simulated = simulated_of(p);
    for (std::int64_t row = 0; row < 6; ++row) {
      const bool empty = row / 2 == 1;
      EXPECT_EQ(exact.lse[index(row)] == -kInf, empty);
      EXPECT_EQ(static_cast<double>(simulated.lse[index(row)]) == -kInf, empty);
      EXPECT_EQ(bound.lse[index(row)] == 0, empty);
      for (std::int64_t d = 0; d < kMlaLatent; ++d) {
        const std::size_t at = index(row * kMlaLatent + d);
        ASSERT_EQ(exact.latent[at] == 0, empty);
        ASSERT_EQ(simulated.latent[at] == 0, empty);
        ASSERT_EQ(bound.latent[at] == 0, empty);
      }
    }
  }
  p.k = 0;
  p.slots.clear();
  EXPECT_EQ(exact_of(p).lse, std::vector<double>(6, -kInf));
  EXPECT_EQ(simulated_of(p).latent, std::vector<float>(6 * 512, 0.0f));
}

TEST(SparseAttention, S51_TheBaseScalesTheLseAndItsBoundAndNothingElse) {
  Problem p = random_problem(2, 3, 30, Fp8Encoding::e4m3fn, 8);
  const Exactly natural = exact_of(p);
  const Simulated simulated = simulated_of(p);
  p.lse_base = LseBase::two;
  const Exactly two = exact_of(p), bound = bound_of(p);
  EXPECT_EQ(two.latent, natural.latent);
  EXPECT_EQ(simulated_of(p).latent, simulated.latent);
  for (std::size_t i = 0; i < two.lse.size(); ++i)
    EXPECT_NEAR(two.lse[i] / natural.lse[i], 1.4426950408889634, 1e-12);
  EXPECT_LE(used(simulated_of(p).lse, two.lse, bound.lse), 1);
  EXPECT_GT(used(simulated.lse, two.lse, bound.lse), 1);
}

/// A producer that computes in double and rounds at the end uses no more than the exact bound; a
/// step of the storage further, or a product in fp32, is more than it allows.
TEST(SparseAttention, TheExactBoundTakesTheLastRoundingAndNoMore) {
  for (LseBase base : {LseBase::e, LseBase::two}) {
    Problem p = random_problem(3, 4, 40, Fp8Encoding::e4m3fn, 21);
    p.lse_base = base;
    const Exactly exact = exact_of(p);
    Exactly bound{std::vector<double>(exact.latent.size()), std::vector<double>(exact.lse.size())};
    ASSERT_TRUE(sparse_attention_exact_bound(p.view(), bound.latent.data(), bound.lse.data()));
    std::vector<float> latent, lse, further_latent, further_lse;
    for (double value : exact.latent) {
      const std::uint16_t bits = float_to_bf16(static_cast<float>(value));
      latent.push_back(bf16_to_float(bits));
      further_latent.push_back(bf16_to_float(static_cast<std::uint16_t>(bits + 2)));
    }
    for (double value : exact.lse) {
      lse.push_back(static_cast<float>(value));
      further_lse.push_back(std::nextafter(std::nextafter(lse.back(), 1e9f), 1e9f));
    }
    EXPECT_LE(used(latent, exact.latent, bound.latent), 1);
    EXPECT_LE(used(lse, exact.lse, bound.lse), 1);
    for (std::size_t i = 0; i < exact.latent.size(); ++i)
      EXPECT_GT(std::fabs(further_latent[i] - exact.latent[i]), bound.latent[i]) << i;
    for (std::size_t i = 0; i < exact.lse.size(); ++i)
      EXPECT_GT(std::fabs(further_lse[i] - exact.lse[i]), bound.lse[i]) << i;
    EXPECT_GT(used(simulated_of(p).latent, exact.latent, bound.latent), 1);
  }
}

TEST(SparseAttention, ASlotThatRecursCountsEachTime) {
  Problem p = random_problem(1, 1, 3, Fp8Encoding::e4m3fn, 9);
  p.softmax_scale = 0; // all weights equal
  p.slots = {11, 11, 30};
  std::vector<float> twice(kDim), once(kDim);
  read_mla_record(p.encoding, p.scale_read, p.record(11), twice.data());
  read_mla_record(p.encoding, p.scale_read, p.record(30), once.data());
  const Exactly exact = exact_of(p);
  EXPECT_DOUBLE_EQ(exact.lse[0], std::log(3));
  for (std::size_t d = 0; d < 512; ++d)
    EXPECT_NEAR(exact.latent[d], (2.0 * twice[d] + once[d]) / 3, 1e-12);
}

TEST(SparseAttention, ScoresFarBelowZeroKeepTheirWeights) {
  Problem p = random_problem(1, 2, 20, Fp8Encoding::e4m3fn, 10);
  for (std::int64_t slot = 0; slot < 60; ++slot) { // a last dim of 1 in every key
    const std::uint16_t one = 0x3F80;
    std::memcpy(p.record(slot) + 528 + 2 * 63, &one, sizeof one);
  }
  const auto shifted = [&](float by) {
    for (std::int64_t h = 0; h < 2; ++h)
      p.query[index(h * kDim + 575)] = float_to_bf16(by);
    return exact_of(p);
  };
  const Exactly near = shifted(0), far = shifted(-0x1p14f); // -1024 after the scale
  EXPECT_LT(far.lse[0], -900);
  for (std::size_t i = 0; i < near.latent.size(); ++i)
    ASSERT_NEAR(near.latent[i], far.latent[i], 1e-9);
  const Exactly bound = bound_of(p);
  const Simulated simulated = simulated_of(p);
  EXPECT_LE(used(simulated.latent, far.latent, bound.latent), 1);
  EXPECT_LE(used(simulated.lse, far.lse, bound.lse), 1);
}

/// Scores so large that fp32 cannot tell which key wins: whichever does, the output is a value.
TEST(SparseAttention, TheBoundStaysWithinTheRangeOfTheValues) {
  Problem p = random_problem(1, 2, 8, Fp8Encoding::e4m3fn, 12);
  p.slots = {0, 7, 14, 21, 28, 35, 42, 49};
  for (std::uint16_t& bits : p.query)
    bits = float_to_bf16(bf16_to_float(bits) * 0x1p40f);
  const Exactly exact = exact_of(p), bound = bound_of(p);
  std::vector<double> low(512, kInf), high(512, -kInf);
  for (const std::int32_t slot : p.slots) {
    std::vector<float> key(kDim);
    read_mla_record(p.encoding, p.scale_read, p.record(slot), key.data());
    for (std::size_t d = 0; d < 512; ++d) {
      low[d] = std::min<double>(low[d], key[d]);
      high[d] = std::max<double>(high[d], key[d]);
    }
  }
  for (std::size_t i = 0; i < bound.latent.size(); ++i) {
    const double range = high[i % 512] - low[i % 512];
    ASSERT_GE(bound.latent[i], range);
    ASSERT_LE(bound.latent[i], 1.1 * (range + 0x1p-6 * std::max(high[i % 512], -low[i % 512])));
  }
  EXPECT_LE(used(simulated_of(p).latent, exact.latent, bound.latent), 1);
  ASSERT_TRUE(std::isfinite(bound.lse[0]));
}

TEST(SparseAttention, AWeightBelowFp32MayBecomeZero) {
  Problem p = random_problem(1, 1, 2, Fp8Encoding::e4m3fn, 11);
  p.slots = {0, 1};
  std::memset(p.record(0), 0, kMlaTile); // the other key alone has values there
  for (const std::int32_t slot : p.slots) {
    const std::uint16_t last_dim = float_to_bf16(slot == 0 ? 1.0f : -1.0f);
    std::memcpy(p.record(slot) + 528 + 2 * 63, &last_dim, sizeof last_dim);
  }
  p.query[index(kDim - 1)] = float_to_bf16(0x1p12f); // scores 512 apart
  const Exactly exact = exact_of(p);
  const Simulated simulated = simulated_of(p);
  EXPECT_NE(exact.latent[0], 0);
  EXPECT_EQ(simulated.latent[0], 0);
  EXPECT_LE(used(simulated.latent, exact.latent, bound_of(p).latent), 1);
}

TEST(SparseAttention, NaNReachesTheTokensThatSelectItAndNoOther) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    Problem p = random_problem(3, 2, 20, encoding, 11);
    for (std::int32_t& slot : p.slots)
      if (slot == 19) slot = -1;
    p.slots[25] = 19;
    p.record(19)[300] = encoding == Fp8Encoding::e4m3fn ? 0xFF : 0x80;
    const Exactly exact = exact_of(p);
    const Simulated simulated = simulated_of(p);
    for (std::size_t i = 0; i < exact.latent.size(); ++i) {
      ASSERT_EQ(std::isnan(exact.latent[i]), i / 1024 == 1);
      ASSERT_EQ(std::isnan(simulated.latent[i]), i / 1024 == 1);
    }
    for (std::size_t i = 0; i < exact.lse.size(); ++i) {
      EXPECT_EQ(std::isnan(exact.lse[i]), i / 2 == 1);
      EXPECT_EQ(std::isnan(simulated.lse[i]), i / 2 == 1);
    }
  }
}

// ---- Determinism --------------------------------------------------------------------------------

TEST(SparseAttention, S17_S56_ATokenDoesNotDependOnTheBatchOrOnTheThreads) {
  const Problem batch = random_problem(7, 3, 37, Fp8Encoding::e4m3fn, 12);
  const Exactly exact = exact_of(batch);
  const Simulated simulated = simulated_of(batch);
  for (std::int64_t t = 0; t < 7; ++t) {
    const Exactly alone = exact_of(batch.token(t));
    EXPECT_TRUE(
        std::equal(alone.latent.begin(), alone.latent.end(), exact.latent.begin() + t * 3 * 512))
        << t;
    const Simulated rounded = simulated_of(batch.token(t));
    EXPECT_TRUE(std::equal(rounded.latent.begin(), rounded.latent.end(),
                           simulated.latent.begin() + t * 3 * 512))
        << t;
    EXPECT_TRUE(std::equal(rounded.lse.begin(), rounded.lse.end(), simulated.lse.begin() + t * 3))
        << t;
  }
  const Exactly bound = bound_of(batch);
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(exact_of(batch).latent, exact.latent);
    EXPECT_EQ(bound_of(batch).latent, bound.latent);
    EXPECT_TRUE(same(simulated_of(batch), simulated));
  }
}

// A dense row holds the very values that a record gives, so nothing may differ.
TEST(SparseAttentionDenseRows, GiveWhatRecordsOfTheSameValuesGive) {
  Problem p = random_problem(3, 5, 40, Fp8Encoding::e4m3fn, 21);
  Problem dense = p;
  constexpr std::int64_t kStride = kMlaDenseRow + 16;
  const std::int64_t slots = p.pages * p.page_size;
  dense.record_stride = kStride;
  dense.cache.assign(index(slots * kStride), 0xFF); // NaN where no row lies
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    std::vector<float> values(kDim);
    read_mla_record(p.encoding, p.scale_read, p.record(slot), values.data());
    for (std::int64_t d = 0; d < kDim; ++d) {
      const std::uint16_t bits = float_to_bf16(values[index(d)]);
      std::memcpy(dense.record(slot) + 2 * d, &bits, sizeof bits);
    }
  }
  dense.mla_record = MlaRecord::bf16_576;
  EXPECT_TRUE(same(simulated_of(dense), simulated_of(p)));
  EXPECT_EQ(exact_of(dense).latent, exact_of(p).latent);
  EXPECT_EQ(bound_of(dense).latent, bound_of(p).latent);
  dense.record_stride = kMlaDenseRow - 2;
  EXPECT_EQ(sparse_attention_exact(dense.view(), nullptr, nullptr).what(),
            "mla_cache record stride: found 1150 bytes, want at least 1152");
}

// ---- Recordings ---------------------------------------------------------------------------------

/// What a producer wrote.
struct Output {
  std::vector<float> latent;
  std::vector<float> lse;
};

std::vector<float> bf16_floats(const std::vector<std::uint16_t>& bits) {
  std::vector<float> floats;
  for (std::uint16_t b : bits)
    floats.push_back(bf16_to_float(b));
  return floats;
}

Problem flashmla_problem(testing::Safetensors& file) {
  const std::int64_t tokens = file.extent("q", 0) * file.extent("q", 1);
  Problem p{tokens,
            file.extent("q", 2),
            file.extent("slots", 2),
            file.extent("mla_cache", 0),
            64,
            kMlaRecord,
            file.values<std::uint16_t>("q"),
            file.values<std::uint8_t>("mla_cache"),
            file.values<std::int32_t>("slots")};
  p.softmax_scale = 0.041666666666666664;
  p.scale_read = MlaScaleRead::bf16;
  return p;
}

/// Step 0 of a layer.
Problem layer_problem(testing::Safetensors& file, double softmax_scale) {
  const std::string step = "steps.0.";
  Problem p{file.extent(step + "mla_query", 0),
            file.extent(step + "mla_query", 1),
            file.extent(step + "topk_slots", 1),
            file.extent(step + "mla_cache_after", 0),
            64,
            kMlaRecord,
            file.values<std::uint16_t>(step + "mla_query"),
            file.values<std::uint8_t>(step + "mla_cache_after"),
            file.values<std::int32_t>(step + "topk_slots")};
  p.softmax_scale = softmax_scale;
  if (file.has(step + "index_q_fp8") &&
      file.read(step + "index_q_fp8").dtype == Dtype::float8_e4m3fnuz)
    p.encoding = Fp8Encoding::e4m3fnuz;
  return p;
}

struct Recorded {
  const char* file;
  double softmax_scale; ///< as the file's metadata says
};

void PrintTo(const Recorded& recorded, std::ostream* out) {
  *out << recorded.file;
}

class SparseAttentionRecorded : public ::testing::TestWithParam<Recorded> {
protected:
  void SetUp() override {
    DSAKIT_NEED_RECORDING(GetParam().file);
    testing::Safetensors file(testing::recording_path(GetParam().file));
    const bool kernel = file.has("q");
    problem_.emplace(kernel ? flashmla_problem(file)
                            : layer_problem(file, GetParam().softmax_scale));
    recorded_.latent =
        bf16_floats(file.values<std::uint16_t>(kernel ? "out" : "steps.0.attn_latent"));
    recorded_.lse = file.values<float>(kernel ? "lse" : "steps.0.attn_lse");
    exact_ = exact_of(*problem_);
    bound_ = bound_of(*problem_);
  }

  /// Share of the bounds, the larger one, that our own kernel with a fault would use.
  double used_by_faulty(const Problem& faulty) const {
    const Simulated got = simulated_of(faulty);
    return std::max(used(got.latent, exact_.latent, bound_.latent),
                    used(got.lse, exact_.lse, bound_.lse));
  }
  void expect_above_the_bound(double share) {
    RecordProperty("used", std::to_string(share));
    EXPECT_GT(share, 1);
  }

  std::optional<Problem> problem_; // Problem has no default constructor
  Output recorded_;
  Exactly exact_;
  Exactly bound_;
};

TEST_P(SparseAttentionRecorded, TheProducerAndOurTierStayWithinTheBounds) {
  const double latent = used(recorded_.latent, exact_.latent, bound_.latent);
  const double lse = used(recorded_.lse, exact_.lse, bound_.lse);
  RecordProperty("used_latent", std::to_string(latent));
  RecordProperty("used_lse", std::to_string(lse));
  EXPECT_LE(latent, 1);
  EXPECT_LE(lse, 1);
  EXPECT_LE(used_by_faulty(*problem_), 1); // without a fault
}

TEST_P(SparseAttentionRecorded, ADroppedHeadBreaksTheBound) {
  double least = kInf;
  for (std::int64_t head = 0; head < problem_->heads; head += problem_->heads / 2) {
    Problem faulty = *problem_;
    for (std::int64_t t = 0; t < faulty.tokens; ++t)
      std::fill_n(faulty.query.begin() + (t * faulty.heads + head) * kDim, kDim, std::uint16_t{0});
    least = std::min(least, used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

TEST_P(SparseAttentionRecorded, ADroppedStepOf32BreaksTheBound) {
  double least = kInf;
  for (std::int64_t step : {0, 7, 15, 16, 17}) {
    Problem faulty = *problem_;
    for (std::size_t i = 0; i < faulty.query.size(); ++i)
      if (static_cast<std::int64_t>(i) % kDim / 32 == step) faulty.query[i] = 0;
    least = std::min(least, used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

/// One token of a recording and what weighs in it. A key that no head gives weight to may be lost
/// or wrong without a trace in any output.
struct Weighed {
  explicit Weighed(const Problem& problem)
      : token(problem.token(longest(problem))), exact(exact_of(token)), bound(bound_of(token)) {
    for (std::int64_t i = 0; i < token.k; ++i) {
      Problem one = token;
      one.k = 1;
      one.slots = {token.slots[index(i)]};
      const Exactly scores = exact_of(one);
      double weight = 0; // in the head that attends to it most
      for (std::size_t h = 0; h < scores.lse.size(); ++h)
        weight = std::max(weight, std::exp(scores.lse[h] - exact.lse[h]));
      weights.push_back(weight);
    }
  }

  /// The token with most keys.
  static std::int64_t longest(const Problem& p) {
    std::vector<std::int64_t> keys;
    for (std::int64_t t = 0; t < p.tokens; ++t)
      keys.push_back(std::count_if(p.slots.begin() + t * p.k, p.slots.begin() + (t + 1) * p.k,
                                   [](std::int32_t slot) { return slot >= 0; }));
    return std::max_element(keys.begin(), keys.end()) - keys.begin();
  }
  double used_by_faulty(const Problem& faulty) const {
    const Simulated got = simulated_of(faulty);
    return std::max(used(got.latent, exact.latent, bound.latent),
                    used(got.lse, exact.lse, bound.lse));
  }

  Problem token;
  Exactly exact;
  Exactly bound;
  std::vector<double> weights; ///< [k]
};

TEST_P(SparseAttentionRecorded, ADroppedKeyOf2PercentOrMoreBreaksTheBound) {
  const Weighed weighed(*problem_);
  std::vector<std::pair<double, std::size_t>> keys; // weight and place
  for (std::size_t i = 0; i < weighed.weights.size(); ++i)
    if (weighed.weights[i] >= 0.02) keys.emplace_back(weighed.weights[i], i);
  std::sort(keys.begin(), keys.end());
  keys.resize(std::min<std::size_t>(keys.size(), 8)); // the lightest
  double least = kInf;
  for (auto [weight, i] : keys) {
    Problem faulty = weighed.token;
    faulty.slots[i] = -1;
    least = std::min(least, weighed.used_by_faulty(faulty));
  }
  EXPECT_LT(least, kInf) << "no key weighs that much";
  expect_above_the_bound(least);
}

TEST_P(SparseAttentionRecorded, TwoSwappedKeyScalesBreakTheBound) {
  const Weighed weighed(*problem_);
  const auto& weights = weighed.weights;
  const std::int32_t heaviest =
      weighed.token
          .slots[index(std::max_element(weights.begin(), weights.end()) - weights.begin())];
  double least = kInf;
  for (std::int64_t tile = 0; tile < 4; ++tile) {
    Problem faulty = weighed.token;
    const auto scale_of = [&](std::int32_t slot) {
      float scale = 0;
      std::memcpy(&scale, faulty.record(slot) + 512 + 4 * tile, sizeof scale);
      return scale;
    };
    const auto ratio = [&](std::int32_t slot) {
      return slot < 0 ? 0 : std::fabs(std::log(scale_of(slot) / scale_of(heaviest)));
    };
    const std::int32_t other = std::ranges::max(faulty.slots, {}, ratio);
    std::uint8_t* scale = faulty.record(heaviest) + 512 + 4 * tile;
    std::swap_ranges(scale, scale + 4, faulty.record(other) + 512 + 4 * tile);
    least = std::min(least, weighed.used_by_faulty(faulty));
  }
  expect_above_the_bound(least);
}

TEST(SparseAttentionRecordedFlashMla, OnlyAScaleReadAsBf16ExplainsIt) {
  DSAKIT_NEED_RECORDING("kernel_mla_decode_h64");
  testing::Safetensors file(testing::recording_path("kernel_mla_decode_h64"));
  Problem p = flashmla_problem(file);
  const auto latent = bf16_floats(file.values<std::uint16_t>("out"));
  const auto lse = file.values<float>("lse");
  const auto share = [&](MlaScaleRead scale_read) {
    p.scale_read = scale_read;
    const Exactly exact = exact_of(p), bound = bound_of(p);
    return std::pair{used(latent, exact.latent, bound.latent), used(lse, exact.lse, bound.lse)};
  };
  const auto [latent_bf16, lse_bf16] = share(MlaScaleRead::bf16);
  EXPECT_LE(latent_bf16, 0.5);
  EXPECT_LE(lse_bf16, 0.1);
  const auto [latent_fp32, lse_fp32] = share(MlaScaleRead::fp32);
  EXPECT_GT(latent_fp32, 3);
  EXPECT_GT(lse_fp32, 10);
}

TEST(SparseAttentionRecordedDenseRows, ArePredictedAndAMissingKeyIsNot) {
  DSAKIT_NEED_RECORDING("kernel_mla_prefill_bf16_h16");
  testing::Safetensors file(testing::recording_path("kernel_mla_prefill_bf16_h16"));
  const Tensor rows = file.read("kv_cache");
  Problem p{file.extent("q", 0),
            file.extent("q", 1),
            file.extent("slots", 1),
            rows.shape[0] / 64,
            64,
            kMlaDenseRow,
            file.values<std::uint16_t>("q"),
            {rows.as<std::uint8_t>(), rows.as<std::uint8_t>() + rows.bytes.size()},
            file.values<std::int32_t>("slots")};
  p.softmax_scale = 0.041666666666666664;
  const auto latent = bf16_floats(file.values<std::uint16_t>("out"));
  p.mla_record = MlaRecord::bf16_576;
  const auto share = [&] { return used(latent, exact_of(p).latent, bound_of(p).latent); };
  EXPECT_LE(share(), 0.7); // spec 12: 0.62
  p.slots[0] = p.slots[0] < 0 ? 0 : -1;
  EXPECT_GT(share(), 1);
}

constexpr double kScale = 0.07216878364870322;
INSTANTIATE_TEST_SUITE_P(
    Files, SparseAttentionRecorded,
    ::testing::Values(Recorded{"kernel_mla_decode_h64", 0.041666666666666664},
                      Recorded{"decode_next_n2", kScale}, Recorded{"decode_fnuz", kScale},
                      Recorded{"decode_mxfp4", kScale},
                      Recorded{"prefill_no_q_lora_rmsnorm_yarn", 0.1352337788608801},
                      Recorded{"prefill_q_lora_layernorm_gate", kScale}),
    [](const auto& info) { return std::string(info.param.file); });

} // namespace sparse_attention_test
} // namespace dsakit::reference
