#include "dsakit/reference/mxfp4_logits.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace mxfp4_logits_test {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kUntouched = 777;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Inputs of both operations: keys lie in order in the pages of one request, page p at p.
struct Problem {
  std::int64_t heads;
  std::vector<std::int32_t> row_lens;
  std::vector<std::uint8_t> q, q_scale, k, k_scale;
  std::vector<std::uint16_t> weights;

  std::int64_t rows() const { return std::ssize(row_lens); }
  std::int64_t keys() const { return std::ssize(k) / 64; }

  double code(const std::vector<std::uint8_t>& packed, std::int64_t row, std::int64_t d) const {
    constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int byte = packed[index(row * 64 + d / 2)];
    const int nibble = d % 2 ? byte >> 4 : byte & 15;
    return nibble & 8 ? -kMagnitudes[index(nibble & 7)] : kMagnitudes[index(nibble)];
  }
  double scale(const std::vector<std::uint8_t>& bytes, std::int64_t row, std::int64_t d) const {
    return std::exp2(bytes[index(row * 4 + d / 32)] - 127);
  }
  /// The definition, in double.
  double logit(std::int64_t row, std::int64_t key) const {
    double sum = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (std::int64_t d = 0; d < 128; ++d)
        dot += code(q, row * heads + h, d) * scale(q_scale, row * heads + h, d) * code(k, key, d) *
               scale(k_scale, key, d);
      sum += std::max(dot, 0.0) * bf16_to_float(weights[index(row * heads + h)]);
    }
    return sum *
           static_cast<float>(std::pow(static_cast<double>(heads), -0.5) * std::pow(128.0, -0.5));
  }
};

/// Exponents between -4 and 4, so that groups differ by much.
Problem random_problem(std::int64_t heads, std::vector<std::int32_t> row_lens, std::int64_t keys,
                       unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem p{heads, std::move(row_lens), {}, {}, {}, {}, {}};
  const auto byte = [&] { return static_cast<std::uint8_t>(random()); };
  const auto exponent = [&] { return static_cast<std::uint8_t>(123 + random() % 9); };
  for (std::int64_t i = 0; i < p.rows() * heads; ++i) {
    std::generate_n(std::back_inserter(p.q), 64, byte);
    std::generate_n(std::back_inserter(p.q_scale), 4, exponent);
    p.weights.push_back(float_to_bf16(normal(random)));
  }
  for (std::int64_t n = 0; n < keys; ++n) {
    std::generate_n(std::back_inserter(p.k), 64, byte);
    std::generate_n(std::back_inserter(p.k_scale), 4, exponent);
  }
  return p;
}

/// The keys in pages of that layout.
std::vector<std::uint8_t> cache_of(const Problem& p, const Mxfp4Pages& pages) {
  const std::int64_t bytes = pages.page_size * 68;
  const std::int64_t count = (p.keys() + pages.page_size - 1) / pages.page_size;
  std::vector<std::uint8_t> cache(index(count * bytes), 0xA5);
  for (std::int64_t n = 0; n < p.keys(); ++n) {
    std::uint8_t* page = cache.data() + n / pages.page_size * bytes;
    for (std::int64_t i = 0; i < 64; ++i)
      page[mxfp4_value_offset(pages, n % pages.page_size, i)] = p.k[index(n * 64 + i)];
    for (std::int64_t g = 0; g < 4; ++g)
      page[mxfp4_scale_offset(pages, n % pages.page_size, g)] = p.k_scale[index(n * 4 + g)];
  }
  return cache;
}

struct Paged {
  Mxfp4Pages pages;
  std::vector<std::uint8_t> cache;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> row_request;

  Paged(const Problem& p, const Mxfp4Pages& layout)
      : pages(layout), cache(cache_of(p, layout)), row_request(index(p.rows()), 0) {
    for (std::int64_t page = 0; page < count(); ++page)
      table.push_back(static_cast<std::int32_t>(page));
  }
  std::int64_t count() const { return std::ssize(cache) / (pages.page_size * 68); }
  IndexLogitsDecodeMxfp4 view(const Problem& p) const {
    return {p.q.data(),
            p.q_scale.data(),
            p.weights.data(),
            {cache.data(), count(), pages.page_size * 68},
            {table.data(), 1, std::ssize(table)},
            p.row_lens.data(),
            row_request.data(),
            p.rows(),
            p.heads,
            p.keys() + 1,
            ActivationDtype::bf16};
  }
};

template <class Tier>
std::vector<typename Tier::Value> decode(const Problem& p, const Paged& paged) {
  std::vector<typename Tier::Value> logits(index(p.rows() * (p.keys() + 1)), kUntouched);
  const Status status = index_logits_decode_mxfp4<Tier>(paged.pages, paged.view(p), logits.data());
  EXPECT_TRUE(status) << status.what();
  return logits;
}

constexpr Mxfp4Pages kFlat = {IndexPageLayout::flat, 64};
constexpr Mxfp4Pages kTiled = {IndexPageLayout::preshuffle64, 64};
constexpr Mxfp4Pages kSmall = {IndexPageLayout::flat, 5};

template <class Tier>
std::vector<typename Tier::Value> decode(const Problem& p) {
  return decode<Tier>(p, Paged(p, kFlat));
}

std::vector<double> bound_of(const Problem& p, Accumulation accumulation) {
  const Paged paged(p, kFlat);
  std::vector<double> bound(index(p.rows() * (p.keys() + 1)), kUntouched);
  const Status status =
      index_logits_decode_mxfp4_bound(paged.pages, paged.view(p), accumulation, bound.data());
  EXPECT_TRUE(status) << status.what();
  return bound;
}

/// Largest share of the bound that `logits` use inside the rows.
template <class Value>
double used(const Problem& p, const std::vector<Value>& logits, const std::vector<double>& exact,
            const std::vector<double>& bound) {
  double share = 0;
  for (std::int64_t row = 0; row < p.rows(); ++row)
    for (std::int64_t key = 0; key < p.row_lens[index(row)]; ++key) {
      const std::size_t i = index(row * (p.keys() + 1) + key);
      share = std::max(share, std::fabs(static_cast<double>(logits[i]) - exact[i]) / bound[i]);
    }
  return share;
}

// ---- Definition ---------------------------------------------------------------------------------

TEST(Mxfp4Logits, ExactIsTheDefinitionInsideARowAndNothingIsWrittenBeyond) {
  for (std::int64_t heads : {1, 16, 32, 64}) {
    const Problem p = random_problem(heads, {70, 0, -1, 131, 1}, 131, 1);
    const auto exact = decode<Exact>(p);
    const auto bound = bound_of(p, Accumulation::exact);
    for (std::int64_t row = 0; row < p.rows(); ++row)
      for (std::int64_t key = 0; key <= p.keys(); ++key) {
        const std::size_t i = index(row * (p.keys() + 1) + key);
        if (key >= p.row_lens[index(row)]) {
          ASSERT_EQ(exact[i], kUntouched);
          ASSERT_EQ(bound[i], 0);
          continue;
        }
        // Both in double, summed in other orders: far inside what one rounding to fp32 allows.
        ASSERT_NEAR(exact[i], p.logit(row, key), 0x1p-10 * bound[i]) << row << " " << key;
      }
  }
}

TEST(Mxfp4Logits, TheWeightScaleIsTheProductOfTheTwoRootsRoundedOnce) {
  EXPECT_EQ(mxfp4_weight_scale(32), 0x1p-6f);        // spec 3.3
  EXPECT_EQ(mxfp4_weight_scale(16), 0x1.6a09e6p-6f); // 2^-5.5
  EXPECT_EQ(mxfp4_weight_scale(64), 0x1.6a09e6p-7f); // 2^-6.5
}

TEST(Mxfp4Logits, ScoresDoNotDependOnTheLayout) {
  const Problem p = random_problem(16, {131, 64, 65}, 131, 2);
  const auto exact = decode<Exact>(p);
  const auto simulated = decode<Simulated>(p);
  for (const Mxfp4Pages& pages : {kTiled, kSmall}) {
    EXPECT_EQ(decode<Exact>(p, Paged(p, pages)), exact);
    EXPECT_EQ(decode<Simulated>(p, Paged(p, pages)), simulated);
  }
}

TEST(Mxfp4Logits, PrefillGivesTheBitsOfDecode) {
  const Problem p = random_problem(32, {131, 64, 65}, 131, 3);
  const std::vector<std::int32_t> ks = {0, 0, 0}, origin = {0, 0, 0};
  for (const std::int32_t* column_origin :
       {origin.data(), static_cast<const std::int32_t*>(nullptr)}) {
    const IndexLogitsPrefillMxfp4 in = {
        p.q.data(), p.q_scale.data(),  p.weights.data(),     p.k.data(), p.k_scale.data(),
        ks.data(),  p.row_lens.data(), column_origin,        p.rows(),   p.heads,
        p.keys(),   p.keys() + 1,      ActivationDtype::bf16};
    std::vector<double> exact(index(p.rows() * (p.keys() + 1)), kUntouched);
    ASSERT_TRUE(index_logits_prefill_mxfp4<Exact>(in, exact.data()));
    EXPECT_EQ(exact, decode<Exact>(p));
    std::vector<float> simulated(exact.size(), kUntouched);
    ASSERT_TRUE(index_logits_prefill_mxfp4<Simulated>(in, simulated.data()));
    EXPECT_EQ(simulated, decode<Simulated>(p));
    std::vector<double> bound(exact.size(), kUntouched);
    ASSERT_TRUE(index_logits_prefill_mxfp4_bound(in, Accumulation::fp32, bound.data()));
    EXPECT_EQ(bound, bound_of(p, Accumulation::fp32));
  }
}

TEST(Mxfp4Logits, WindowsAreClampedAndMovedToTheirColumns) {
  const Problem p = random_problem(2, {9, 9, 9}, 9, 4);
  const std::vector<std::int32_t> ks = {3, -2, 5}, ke = {8, 4, 20}, origin = {3, 0, 2};
  const IndexLogitsPrefillMxfp4 in = {p.q.data(),
                                      p.q_scale.data(),
                                      p.weights.data(),
                                      p.k.data(),
                                      p.k_scale.data(),
                                      ks.data(),
                                      ke.data(),
                                      origin.data(),
                                      3,
                                      2,
                                      9,
                                      10,
                                      ActivationDtype::bf16};
  std::vector<double> logits(30, kUntouched);
  ASSERT_TRUE(index_logits_prefill_mxfp4<Exact>(in, logits.data()));
  const auto whole = decode<Exact>(p);
  for (std::int64_t row = 0; row < 3; ++row)
    for (std::int64_t column = 0; column < 10; ++column) {
      const std::int64_t key = column + origin[index(row)];
      const bool inside = key >= std::max(ks[index(row)], 0) && key < std::min(ke[index(row)], 9);
      EXPECT_EQ(logits[index(row * 10 + column)],
                inside ? whole[index(row * 10 + key)] : kUntouched)
          << row << " " << column;
    }
}

TEST(Mxfp4Logits, TheReluIsOfTheDotAndNegativeWeightsGiveNegativeLogits) {
  Problem p = random_problem(1, {2}, 2, 5);
  std::fill(p.q.begin(), p.q.end(), std::uint8_t{0x22}); // ones
  std::fill_n(p.k.begin(), 64, std::uint8_t{0x22});
  std::fill_n(p.k.begin() + 64, 64, std::uint8_t{0xAA}); // minus ones
  std::fill(p.q_scale.begin(), p.q_scale.end(), std::uint8_t{127});
  std::fill(p.k_scale.begin(), p.k_scale.end(), std::uint8_t{128});
  p.weights[0] = float_to_bf16(-2.0f);
  const auto logits = decode<Exact>(p);
  EXPECT_EQ(logits[0], -2.0 * 256 * mxfp4_weight_scale(1));
  EXPECT_EQ(logits[1], 0);
}

TEST(Mxfp4Logits, AGroupTakesBothItsScalesAndANaNScaleStaysInItsKey) {
  Problem p = random_problem(3, {4}, 4, 6);
  p.k_scale[index(2 * 4 + 3)] = 0xFF;
  const auto exact = decode<Exact>(p);
  const auto simulated = decode<Simulated>(p);
  for (std::size_t key = 0; key < 4; ++key) {
    EXPECT_EQ(std::isnan(exact[key]), key == 2);
    EXPECT_EQ(std::isnan(simulated[key]), key == 2);
  }
}

TEST(Mxfp4Logits, S11_AnInvalidPageGivesMinusInfinityAndNoBound) {
  const Problem p = random_problem(2, {131}, 131, 7);
  for (std::int32_t bad : {-1, 3, 99}) {
    Paged paged(p, kFlat);
    paged.table[1] = bad;
    const auto exact = decode<Exact>(p, paged);
    std::vector<double> bound(exact.size(), kUntouched);
    ASSERT_TRUE(index_logits_decode_mxfp4_bound(paged.pages, paged.view(p), Accumulation::fp32,
                                                bound.data()));
    for (std::size_t key = 0; key < 131; ++key) {
      EXPECT_EQ(exact[key] == -kInf, key / 64 == 1) << key;
      EXPECT_EQ(bound[key] == 0, key / 64 == 1) << key;
    }
  }
}

TEST(Mxfp4Logits, RefusalsNameTheValue) {
  const Problem p = random_problem(2, {10}, 9, 8); // one column to spare
  const Paged paged(p, kFlat);
  std::vector<double> out(10);
  IndexLogitsDecodeMxfp4 in = paged.view(p);
  EXPECT_EQ(
      index_logits_decode_mxfp4_bound(kFlat, in, Accumulation::sm90_wgmma_fp8, out.data()).what(),
      "accumulation: found sm90_wgmma_fp8, want exact or fp32 for MXFP4");
  in.columns = 9;
  EXPECT_EQ(index_logits_decode_mxfp4<Exact>(kFlat, in, out.data()).what(),
            "row_lens[0]: found 10, want at most 9, the columns of logits");
  EXPECT_EQ(index_logits_decode_mxfp4<Exact>({IndexPageLayout::mfma_preshuffle, 64}, in, out.data())
                .code(),
            Code::unsupported);
}

// ---- Bounds -------------------------------------------------------------------------------------

TEST(Mxfp4LogitsBound, SimulatedStaysInsideAndFaultsDoNot) {
  for (std::int64_t heads : {16, 32, 64}) {
    const Problem p = random_problem(heads, {131, 131, 90}, 131, 9);
    const auto exact = decode<Exact>(p);
    const auto bound = bound_of(p, Accumulation::fp32);
    EXPECT_LE(used(p, decode<Simulated>(p), exact, bound), 0.25);
    const auto faulty = [&](auto change) {
      Problem changed = p;
      change(changed);
      return used(p, decode<Simulated>(changed), exact, bound);
    };
    EXPECT_GT(faulty([](Problem& c) { c.weights[0] = 0; }), 1) << "a dropped head";
    EXPECT_GT(faulty([](Problem& c) { ++c.q_scale[5]; }), 1) << "a scale twice as large";
    EXPECT_GT(faulty([](Problem& c) {
                for (auto key = c.k_scale.begin(); key != c.k_scale.end(); key += 4)
                  std::rotate(key, key + 1, key + 4);
              }),
              1)
        << "every key's scales one group further";
    EXPECT_GT(faulty([](Problem& c) {
                for (std::uint8_t& byte : c.k)
                  byte = static_cast<std::uint8_t>(byte << 4 | byte >> 4);
              }),
              1)
        << "nibbles of the keys exchanged";
    EXPECT_GT(faulty([](Problem& c) { std::fill_n(c.q.begin() + 48, 16, std::uint8_t{0}); }), 1)
        << "a dropped group";
  }
}

TEST(Mxfp4LogitsBound, HoldsWhereTheWeightScaleIsAppliedInsideTheFma) {
  for (std::int64_t heads : {16, 64}) {
    const Problem p = random_problem(heads, {131}, 131, 10);
    const auto exact = decode<Exact>(p);
    std::vector<float> upstream(exact.size());
    for (std::int64_t key = 0; key < p.keys(); ++key) {
      float sum = 0;
      for (std::int64_t h = 0; h < heads; ++h) {
        float dot = 0;
        for (std::int64_t d = 0; d < 128; ++d)
          dot += static_cast<float>(p.code(p.q, h, d) * p.scale(p.q_scale, h, d) *
                                    p.code(p.k, key, d) * p.scale(p.k_scale, key, d));
        sum = std::fma(std::max(dot, 0.0f),
                       bf16_to_float(p.weights[index(h)]) * mxfp4_weight_scale(heads), sum);
      }
      upstream[index(key)] = sum;
    }
    EXPECT_LE(used(p, upstream, exact, bound_of(p, Accumulation::fp32)), 0.25);
    EXPECT_GT(used(p, upstream, exact, bound_of(p, Accumulation::exact)), 1);
  }
}

TEST(Mxfp4Logits, BitsDoNotDependOnTheNumberOfThreads) {
  const Problem p = random_problem(16, {400, 7, 333, 64}, 400, 11);
  const auto exact = decode<Exact>(p);
  const auto simulated = decode<Simulated>(p);
  for (std::size_t threads : {1u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(decode<Exact>(p), exact);
    EXPECT_EQ(decode<Simulated>(p), simulated);
  }
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(Mxfp4LogitsRecorded, TheLayersLogitsStayWithinOneRounding) {
  DSAKIT_NEED_RECORDING("decode_mxfp4");
  testing::Safetensors file(testing::recording_path("decode_mxfp4"));
  const auto of = [&](const char* name) { return std::string("steps.0.") + name; };
  const auto q = file.values<std::uint8_t>(of("index_q_packed"));
  const auto q_scale = file.values<std::uint8_t>(of("index_q_scale"));
  const auto weights = file.values<std::uint16_t>(of("index_weights"));
  const auto cache = file.values<std::uint8_t>(of("index_cache_after"));
  const auto table = file.values<std::int32_t>(of("block_table"));
  const auto query_lens = file.values<std::int32_t>(of("query_lens"));
  const auto seq_lens = file.values<std::int32_t>(of("seq_lens"));
  std::vector<std::int32_t> row_lens, row_request;
  for (std::size_t b = 0; b < query_lens.size(); ++b)
    for (std::int32_t i = 0; i < query_lens[b]; ++i) {
      row_lens.push_back(seq_lens[b] - query_lens[b] + i + 1);
      row_request.push_back(static_cast<std::int32_t>(b));
    }
  const std::int64_t columns = file.extent(of("index_logits"), 1);
  const IndexLogitsDecodeMxfp4 in = {
      q.data(),
      q_scale.data(),
      weights.data(),
      {cache.data(), file.extent(of("index_cache_after"), 0), 4352},
      {table.data(), file.extent(of("block_table"), 0), file.extent(of("block_table"), 1)},
      row_lens.data(),
      row_request.data(),
      std::ssize(row_lens),
      file.extent(of("index_weights"), 1),
      columns,
      ActivationDtype::bf16};
  const auto recorded = file.values<float>(of("index_logits"));
  std::vector<double> exact(recorded.size()), bound(recorded.size());
  ASSERT_TRUE(index_logits_decode_mxfp4<Exact>(kFlat, in, exact.data()));
  ASSERT_TRUE(index_logits_decode_mxfp4_bound(kFlat, in, Accumulation::exact, bound.data()));
  double share = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const bool inside =
        static_cast<std::int64_t>(i) % columns < row_lens[i / static_cast<std::size_t>(columns)];
    if (inside)
      share = std::max(share, std::fabs(static_cast<double>(recorded[i]) - exact[i]) / bound[i]);
    else
      ASSERT_EQ(static_cast<double>(recorded[i]), -kInf);
  }
  RecordProperty("used", std::to_string(share));
  EXPECT_LE(share, 1);
  EXPECT_GT(share, 0.1); // the bound is that of one rounding, and not looser
}

} // namespace mxfp4_logits_test
} // namespace dsakit::reference
