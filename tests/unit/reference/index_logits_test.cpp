#include "dsakit/reference/index_logits.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace index_logits_test {

using testing::Guarded;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kDim = kIndexHeadDim;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

IndexPages pages_of(std::int64_t page_size, IndexPageLayout layout = IndexPageLayout::block_flat,
                    Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  return {encoding, layout, page_size};
}

/// Inputs of index_logits_decode that own their memory.
struct Problem {
  IndexPages contract;
  std::int64_t heads;
  std::int64_t columns; ///< of logits
  std::vector<std::int32_t> row_lens;
  std::vector<std::int32_t> row_request;
  std::vector<std::int32_t> table; ///< [requests, table_columns]
  std::int64_t requests;
  std::int64_t table_columns;
  std::int64_t pages;
  std::int64_t page_stride;
  std::vector<std::uint8_t> cache;
  std::vector<std::uint8_t> q;
  std::vector<float> weights;

  std::int64_t rows() const { return std::ssize(row_lens); }

  IndexLogitsDecode view() const {
    return {q.data(),
            weights.data(),
            {cache.data(), pages, page_stride},
            {table.data(), requests, table_columns},
            row_lens.data(),
            row_request.data(),
            rows(),
            heads,
            columns};
  }

  std::int64_t code_at(std::int64_t page, std::int64_t token, std::int64_t dim) const {
    return page * page_stride + index_value_offset(contract, token, dim);
  }
  std::int64_t scale_at(std::int64_t page, std::int64_t token) const {
    return page * page_stride + index_scale_offset(contract, token);
  }
  std::uint8_t* code(std::int64_t page, std::int64_t token, std::int64_t dim) {
    return cache.data() + code_at(page, token, dim);
  }
  std::uint8_t* scale(std::int64_t page, std::int64_t token) {
    return cache.data() + scale_at(page, token);
  }
  /// Page and token of a row's key.
  std::pair<std::int64_t, std::int64_t> place(std::int64_t row, std::int64_t key) const {
    const std::int64_t page_size = contract.page_size;
    const std::int64_t line = row_request[index(row)];
    return {table[index(line * table_columns + key / page_size)], key % page_size};
  }
  void set_key(std::int64_t row, std::int64_t key, std::initializer_list<float> first,
               float key_scale) {
    const auto [page, token] = place(row, key);
    std::int64_t d = 0;
    for (float value : first)
      *code(page, token, d++) = encode_fp8_saturating(contract.index_fp8_encoding, value);
    std::memcpy(scale(page, token), &key_scale, sizeof key_scale);
  }
  void set_query(std::int64_t row, std::int64_t head, std::initializer_list<float> first) {
    std::uint8_t* codes = q.data() + (row * heads + head) * kDim;
    for (float value : first)
      *codes++ = encode_fp8_saturating(contract.index_fp8_encoding, value);
  }
};

/// Zero queries, weights and keys; every request has pages of its own, in descending order.
Problem zero_problem(const IndexPages& contract, std::int64_t heads, std::int64_t columns,
                     std::vector<std::int32_t> row_lens, std::vector<std::int32_t> row_request,
                     std::int64_t requests) {
  const std::int64_t table_columns = (columns + contract.page_size - 1) / contract.page_size;
  const std::int64_t pages = requests * table_columns;
  const std::int64_t stride = contract.page_size * 132 + 12;
  const std::int64_t rows = std::ssize(row_lens);
  Problem p{contract,
            heads,
            columns,
            std::move(row_lens),
            std::move(row_request),
            {},
            requests,
            table_columns,
            pages,
            stride,
            std::vector<std::uint8_t>(index(pages * stride)),
            std::vector<std::uint8_t>(index(rows * heads * kDim)),
            std::vector<float>(index(rows * heads))};
  for (std::int64_t i = 0; i < pages; ++i)
    p.table.push_back(static_cast<std::int32_t>(pages - 1 - i));
  return p;
}

/// Random finite codes, weights of both signs, power-of-two scales; the keys depend on the request
/// and the position only, not on the pages they are stored in.
Problem random_problem(const IndexPages& contract, std::int64_t heads, std::int64_t columns,
                       std::vector<std::int32_t> row_lens, std::vector<std::int32_t> row_request,
                       std::int64_t requests, unsigned seed) {
  Problem p =
      zero_problem(contract, heads, columns, std::move(row_lens), std::move(row_request), requests);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-9, 3);
  const auto fp8 = [&] {
    return encode_fp8_saturating(contract.index_fp8_encoding, 60 * normal(random));
  };
  for (std::uint8_t& code : p.q)
    code = fp8();
  for (float& weight : p.weights)
    weight = normal(random);
  for (std::int64_t b = 0; b < requests; ++b)
    for (std::int64_t key = 0; key < columns; ++key) {
      const std::int64_t page = p.table[index(b * p.table_columns + key / contract.page_size)];
      for (std::int64_t d = 0; d < kDim; ++d)
        *p.code(page, key % contract.page_size, d) = fp8();
      const float scale = std::ldexp(1.0f, exponent(random));
      std::memcpy(p.scale(page, key % contract.page_size), &scale, sizeof scale);
    }
  return p;
}

template <class Tier>
std::vector<typename Tier::Value> logits_of(const Problem& p, typename Tier::Value poison = 777) {
  Guarded<typename Tier::Value> logits(index(p.rows() * p.columns), poison, -555);
  const Status status = index_logits_decode<Tier>(p.contract, p.view(), logits.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(logits.intact());
  return {logits.data(), logits.data() + logits.size()};
}

std::vector<double> bound_of(const Problem& p, Accumulation accumulation) {
  Guarded<double> bound(index(p.rows() * p.columns), 777, -555);
  const Status status = index_logits_decode_bound(p.contract, p.view(), accumulation, bound.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(bound.intact());
  return {bound.data(), bound.data() + bound.size()};
}

/// Largest |got - exact| / bound over the keys that rows see.
template <class Value>
double used(const Problem& p, const std::vector<Value>& got, const std::vector<double>& exact,
            const std::vector<double>& bound) {
  double worst = 0;
  for (std::int64_t row = 0; row < p.rows(); ++row)
    for (std::int64_t key = 0; key < p.row_lens[index(row)]; ++key) {
      const std::size_t i = index(row * p.columns + key);
      const double fraction = std::fabs(static_cast<double>(got[i]) - exact[i]) / bound[i];
      if (!(fraction <= worst)) // NaN too
        worst = fraction;
    }
  return worst;
}

constexpr Accumulation kAllAccumulations[] = {Accumulation::exact, Accumulation::fp32,
                                              Accumulation::sm90_wgmma_fp8};

// ---- Refusals -----------------------------------------------------------------------------------

TEST(IndexLogits, RefusalsNameTheValueAndWriteNothing) {
  Problem p = random_problem(pages_of(4), 3, 10, {10, 7}, {1, 0}, 2, 1);
  const auto refused = [&](Code code) {
    std::vector<double> logits(index(p.rows() * p.columns), 777);
    const auto untouched = logits;
    const Status status = index_logits_decode<Exact>(p.contract, p.view(), logits.data());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(logits, untouched);
    const Status bound =
        index_logits_decode_bound(p.contract, p.view(), Accumulation::fp32, logits.data());
    EXPECT_EQ(bound.code(), code);
    EXPECT_EQ(logits, untouched);
    return status.what();
  };
  p.row_lens[1] = 11;
  EXPECT_EQ(refused(Code::bad_input),
            "row_lens[1]: found 11, want at most 10, the columns of logits");
  p.row_lens[1] = 7;
  p.row_request[0] = 2;
  EXPECT_EQ(refused(Code::bad_input), "row_request[0]: found 2, want a request below 2");
  p.row_request[0] = -1;
  EXPECT_EQ(refused(Code::bad_input), "row_request[0]: found -1, want a request below 2");
  p.row_request[0] = 1;
  p.contract.index_page_layout = IndexPageLayout::flat;
  EXPECT_EQ(refused(Code::unsupported),
            "index_page_layout: found flat, want block_flat or mfma_preshuffle for FP8");
}

// ---- Empty and one ------------------------------------------------------------------------------

TEST(IndexLogits, S37_RowsWithoutKeysWriteNothing) {
  for (const auto& lens : {std::vector<std::int32_t>{}, {0, 0, 0}, {0, 0, 5}, {5, 0, 0}, {-3, 2}}) {
    std::vector<std::int32_t> row_request(lens.size(), 0);
    for (std::size_t row = 0; row < lens.size(); ++row)
      if (lens[row] <= 0) row_request[row] = -1; // padding rows name no request
    const Problem p = random_problem(pages_of(4), 3, 6, lens, row_request, 1, 2);
    const auto exact = logits_of<Exact>(p);
    const auto simulated = logits_of<Simulated>(p);
    const auto bound = bound_of(p, Accumulation::fp32);
    for (std::int64_t row = 0; row < p.rows(); ++row)
      for (std::int64_t key = 0; key < p.columns; ++key) {
        const std::size_t i = index(row * p.columns + key);
        const bool seen = key < lens[index(row)];
        EXPECT_EQ(exact[i] != 777, seen);
        EXPECT_EQ(simulated[i] != 777, seen);
        EXPECT_EQ(bound[i] > 0, seen);
      }
  }
}

TEST(IndexLogits, S14_ColumnsBeyondTheRowStay) {
  for (std::int32_t length : {1, 63, 64, 65, 99, 100}) {
    const Problem p = random_problem(pages_of(64), 5, 100, {length, 100}, {1, 0}, 2, 3);
    const auto exact = logits_of<Exact>(p);
    const auto simulated = logits_of<Simulated>(p);
    for (std::int32_t key = 0; key < 100; ++key) {
      EXPECT_EQ(exact[index(key)] == 777, key >= length) << length << " " << key;
      EXPECT_EQ(simulated[index(key)] == 777, key >= length) << length << " " << key;
    }
  }
}

// ---- The formula --------------------------------------------------------------------------------

TEST(IndexLogits, S27_ReluActsOnEachDotBeforeTheHeadSumAndTheMaskAfterIt) {
  Problem p = zero_problem(pages_of(2), 2, 3, {2}, {0}, 1);
  p.weights = {1, -1};
  p.set_query(0, 0, {1, 0});
  p.set_query(0, 1, {0, 1});
  p.set_key(0, 0, {-3, 1}, 1.0f); // dots -3, 1
  p.set_key(0, 1, {2, 2}, 1.0f);
  p.set_key(0, 2, {5, 0}, 1.0f); // beyond the row
  EXPECT_EQ(logits_of<Exact>(p), (std::vector<double>{-1, 0, 777}));
  EXPECT_EQ(logits_of<Simulated>(p), (std::vector<float>{-1, 0, 777}));
}

TEST(IndexLogits, S30_WeightsAreNotRoundedToBf16) {
  Problem p = zero_problem(pages_of(2), 2, 2, {2}, {0}, 1);
  p.weights = {1 + 0x1p-8f, 1};
  p.set_query(0, 0, {1, 0, 0});
  p.set_query(0, 1, {0, 1, 1});
  p.set_key(0, 0, {1, 0, 0}, 1.0f);
  p.set_key(0, 1, {0, 1, 0x1p-9f}, 1.0f); // dot 1.00195, between 1 and 1 + 2^-8
  EXPECT_EQ(logits_of<Exact>(p), (std::vector<double>{1 + 0x1p-8, 1 + 0x1p-9}));
  EXPECT_EQ(logits_of<Simulated>(p), (std::vector<float>{1 + 0x1p-8f, 1 + 0x1p-9f}));
}

TEST(IndexLogits, SimulatedRoundsTheDotInAscendingDAndTheSumInAscendingH) {
  {
    Problem p = zero_problem(pages_of(1), 1, 1, {1}, {0}, 1);
    p.weights = {1};
    p.set_query(0, 0, {256, 0x1p-9f, -256, 0x1p-9f});
    p.set_key(0, 0, {256, 1, 256, 1}, 1.0f);
    // 2^16 + 2^-9 rounds to 2^16, so only the last term survives.
    EXPECT_EQ(logits_of<Simulated>(p)[0], 0x1p-9f);
    EXPECT_EQ(logits_of<Exact>(p)[0], 0x1p-8);
  }
  {
    Problem p = zero_problem(pages_of(1), 4, 1, {1}, {0}, 1);
    p.weights = {0x1p24f, 1, -0x1p24f, 1};
    for (std::int64_t h = 0; h < 4; ++h)
      p.set_query(0, h, {1});
    p.set_key(0, 0, {1}, 1.0f);
    EXPECT_EQ(logits_of<Simulated>(p)[0], 1.0f); // 2^24 + 1 rounds to 2^24
    EXPECT_EQ(logits_of<Exact>(p)[0], 2.0);
  }
  {
    Problem p = zero_problem(pages_of(1), 2, 1, {1}, {0}, 1);
    const float third = 1.0f / 3;
    p.weights = {third, third * third};
    p.set_query(0, 0, {3.25f});
    p.set_query(0, 1, {7.5f});
    p.set_key(0, 0, {1.125f}, third);
    const float first = 3.25f * 1.125f * third; // each product in fp32, by the language's rules
    const float second = 7.5f * 1.125f * (third * third);
    EXPECT_EQ(logits_of<Simulated>(p)[0], (first + second) * third);
  }
}

TEST(IndexLogits, AgreesWithThePlainFormulaForAnyHeadsLayoutAndEncoding) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (auto [layout, page_size] :
         {std::pair{IndexPageLayout::block_flat, 5}, {IndexPageLayout::mfma_preshuffle, 32}})
      for (std::int64_t heads : {1, 3, 12, 16, 24, 64}) {
        const Problem p = random_problem(pages_of(page_size, layout, encoding), heads, 150,
                                         {149, 1, 64, 150, 65}, {2, 0, 1, 1, 2}, 3, 4);
        const auto exact = logits_of<Exact>(p);
        const auto simulated = logits_of<Simulated>(p);
        const auto bound = bound_of(p, Accumulation::fp32);
        for (std::int64_t row = 0; row < p.rows(); ++row)
          for (std::int64_t key = 0; key < p.row_lens[index(row)]; ++key) {
            const auto [page, token] = p.place(row, key);
            long double sum = 0, terms = 0;
            float sum_fp32 = 0;
            for (std::int64_t h = 0; h < heads; ++h) {
              long double dot = 0, absolute = 0;
              float dot_fp32 = 0;
              for (std::int64_t d = 0; d < kDim; ++d) {
                const long double product =
                    static_cast<long double>(
                        decode_fp8(encoding, p.q[index((row * heads + h) * kDim + d)])) *
                    decode_fp8(encoding, p.cache[index(p.code_at(page, token, d))]);
                dot += product;
                dot_fp32 += static_cast<float>(product);
                absolute += std::fabs(product);
              }
              const float weight = p.weights[index(row * heads + h)];
              sum += std::max(dot, 0.0L) * weight;
              sum_fp32 += std::max(dot_fp32, 0.0f) * weight;
              terms += absolute * std::fabs(weight);
            }
            float scale = 0;
            std::memcpy(&scale, &p.cache[index(p.scale_at(page, token))], sizeof scale);
            const std::size_t i = index(row * p.columns + key);
            const auto S2 = static_cast<double>(terms * scale);
            ASSERT_EQ(simulated[i], sum_fp32 * scale);
            ASSERT_NEAR(exact[i], static_cast<double>(sum * scale), 0x1p-46 * S2);
            ASSERT_NEAR(bound[i], 0x1p-18 * S2 + 1e-30, 0x1p-50 * S2);
          }
        EXPECT_LE(used(p, simulated, exact, bound), 1);
      }
}

TEST(IndexLogits, NaNInAQueryOrAKeyReachesTheRowOrTheKeyAndNoOther) {
  for (auto [encoding, nan] :
       {std::pair{Fp8Encoding::e4m3fn, 0x7F}, {Fp8Encoding::e4m3fnuz, 0x80}}) {
    Problem p = random_problem(pages_of(4, IndexPageLayout::block_flat, encoding), 3, 9, {9, 8, 7},
                               {0, 1, 2}, 3, 5);
    p.q[(1 * 3 + 2) * 128 + 77] = static_cast<std::uint8_t>(nan);
    const auto [page, token] = p.place(2, 6);
    *p.code(page, token, 0) = static_cast<std::uint8_t>(nan);
    const auto exact = logits_of<Exact>(p);
    const auto simulated = logits_of<Simulated>(p);
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t key = 0; key < p.row_lens[index(row)]; ++key) {
        const bool want_nan = row == 1 || (row == 2 && key == 6);
        EXPECT_EQ(std::isnan(exact[index(row * 9 + key)]), want_nan) << row << " " << key;
        EXPECT_EQ(std::isnan(simulated[index(row * 9 + key)]), want_nan) << row << " " << key;
      }
  }
}

TEST(IndexLogits, S01_TheEncodingIsThatOfTheTensor) {
  Problem p = zero_problem(pages_of(1), 1, 1, {1}, {0}, 1);
  p.weights = {1};
  std::fill(p.q.begin(), p.q.end(), std::uint8_t{0x38});
  for (std::int64_t d = 0; d < kDim; ++d)
    *p.code(0, 0, d) = 0x38;
  const float one = 1;
  std::memcpy(p.scale(0, 0), &one, sizeof one);
  EXPECT_EQ(logits_of<Exact>(p)[0], 128);
  p.contract.index_fp8_encoding = Fp8Encoding::e4m3fnuz;
  EXPECT_EQ(logits_of<Exact>(p)[0], 32);
}

// ---- Pages --------------------------------------------------------------------------------------

TEST(IndexLogits, S19_S22_AKeyOnABadPageIsMinusInfinityAndItsBoundZero) {
  Problem p = random_problem(pages_of(4), 3, 22, {22, 22}, {1, 0}, 2, 6);
  p.table_columns = 5; // keys 20 and 21 are beyond the table
  p.table = {0, 1, 2, 3, 4, 5, -1, 7, static_cast<std::int32_t>(p.pages), 9};
  const auto exact = logits_of<Exact>(p);
  const auto simulated = logits_of<Simulated>(p);
  for (Accumulation accumulation : kAllAccumulations) {
    const auto bound = bound_of(p, accumulation);
    for (std::int64_t row : {0, 1})
      for (std::int64_t key = 0; key < 22; ++key) {
        const std::size_t i = index(row * 22 + key);
        const bool bad = key >= 20 || (row == 0 && (key / 4 == 1 || key / 4 == 3));
        EXPECT_EQ(exact[i] == -kInf, bad) << row << " " << key;
        EXPECT_EQ(static_cast<double>(simulated[i]) == -kInf, bad) << row << " " << key;
        // That of wgmma is 0 for a key of zeros, too: nothing is added up.
        if (bad || accumulation != Accumulation::sm90_wgmma_fp8) {
          EXPECT_EQ(bound[i] == 0, bad) << row << " " << key;
        }
      }
  }
}

TEST(IndexLogits, S21_TableEntriesAfterTheLastPageOfARowAreNotRead) {
  Problem p = random_problem(pages_of(4), 3, 20, {8, 5}, {0, 1}, 2, 7);
  const auto want = logits_of<Exact>(p);
  for (std::int64_t b : {0, 1})
    for (std::int64_t column = 2; column < p.table_columns; ++column)
      p.table[index(b * p.table_columns + column)] = 777; // far outside the pool
  EXPECT_EQ(logits_of<Exact>(p), want);
}

TEST(IndexLogits, S09_S10_S15_ScoresDoNotDependOnHowKeysArePaged) {
  const auto problem = [](const IndexPages& pages) {
    return random_problem(pages, 6, 140, {140, 33, 129}, {0, 2, 1}, 3, 8);
  };
  const Problem plain = problem(pages_of(64));
  const auto exact = logits_of<Exact>(plain);
  const auto simulated = logits_of<Simulated>(plain);
  const auto expect_same = [&](const IndexPages& pages) {
    const Problem p = problem(pages);
    EXPECT_EQ(logits_of<Exact>(p), exact) << pages.page_size;
    EXPECT_EQ(logits_of<Simulated>(p), simulated) << pages.page_size;
  };
  for (std::int64_t page_size : {1, 2, 16, 53, 61, 256})
    expect_same(pages_of(page_size));
  for (std::int64_t page_size : {16, 48, 64})
    expect_same(pages_of(page_size, IndexPageLayout::mfma_preshuffle));
}

// ---- Determinism --------------------------------------------------------------------------------

TEST(IndexLogits, ARowDoesNotDependOnItsLengthOrOnOtherRows) {
  const Problem batch = random_problem(pages_of(16), 7, 140, {140, 77, 0, 78}, {1, 0, -1, 0}, 2, 9);
  const auto exact = logits_of<Exact>(batch);
  const auto simulated = logits_of<Simulated>(batch);
  const auto bound = bound_of(batch, Accumulation::sm90_wgmma_fp8);
  Problem alone = batch;
  alone.row_lens = {77};
  alone.row_request = {0};
  const std::int64_t query = 7 * kDim;
  alone.q.assign(batch.q.begin() + query, batch.q.begin() + 2 * query);
  alone.weights.assign(batch.weights.begin() + 7, batch.weights.begin() + 14);
  const auto same_row = [](const auto& one, const auto& all) {
    return std::equal(one.begin(), one.begin() + 77, all.begin() + 140);
  };
  for (std::int32_t length : {77, 78, 140}) { // the keys after the row only add columns
    alone.row_lens[0] = length;
    EXPECT_TRUE(same_row(logits_of<Exact>(alone), exact)) << length;
    EXPECT_TRUE(same_row(logits_of<Simulated>(alone), simulated)) << length;
    EXPECT_TRUE(same_row(bound_of(alone, Accumulation::sm90_wgmma_fp8), bound)) << length;
  }
}

TEST(IndexLogits, BitsDoNotDependOnTheNumberOfThreads) {
  const Problem p =
      random_problem(pages_of(64), 24, 700, {700, 65, 333, 1, 699}, {2, 0, 1, 0, 1}, 3, 10);
  std::vector<double> exact, bound;
  std::vector<float> simulated;
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    if (threads == 1) {
      exact = logits_of<Exact>(p);
      simulated = logits_of<Simulated>(p);
      bound = bound_of(p, Accumulation::sm90_wgmma_fp8);
    }
    EXPECT_EQ(logits_of<Exact>(p), exact) << threads;
    EXPECT_EQ(logits_of<Simulated>(p), simulated) << threads;
    EXPECT_EQ(bound_of(p, Accumulation::sm90_wgmma_fp8), bound) << threads;
  }
}

// ---- Bounds -------------------------------------------------------------------------------------

TEST(IndexLogitsBound, FollowsTheFormulaOnASmallCase) {
  Problem p = zero_problem(pages_of(1), 2, 1, {1}, {0}, 1);
  p.weights = {-2, 4};
  // Head 0: partial sums 10, 4, 4, 1 after steps of 32; largest product of each step 8, 6, 0, 3.
  std::uint8_t* q0 = p.q.data();
  const auto fn = [](float x) { return encode_fp8_saturating(Fp8Encoding::e4m3fn, x); };
  q0[0] = fn(8), q0[31] = fn(2), q0[32] = fn(-6), q0[127] = fn(-3);
  // Head 1: steps 5 - 9, 0, 0, 1: partial sums -4, -4, -4, -3; products 9, 0, 0, 1.
  std::uint8_t* q1 = q0 + 128;
  q1[1] = fn(5), q1[2] = fn(-9), q1[96] = fn(1);
  for (std::int64_t d = 0; d < kDim; ++d)
    *p.code(0, 0, d) = fn(1);
  const float scale = 0.5f;
  std::memcpy(p.scale(0, 0), &scale, sizeof scale);

  const double S2 = 0.5 * (2 * (8 + 2 + 6 + 3) + 4 * (5 + 9 + 1));
  const double steps = 0.5 * (2 * (10 + 10 + 4 + 4) + 4 * (9 + 4 + 4 + 4));
  const double logit = 0.5 * (-2 * 1 + 4 * 0);
  EXPECT_EQ(logits_of<Exact>(p)[0], logit);
  EXPECT_DOUBLE_EQ(bound_of(p, Accumulation::fp32)[0], 0x1p-18 * S2 + 1e-30);
  EXPECT_DOUBLE_EQ(bound_of(p, Accumulation::sm90_wgmma_fp8)[0], 0x1p-13 * steps);
  EXPECT_DOUBLE_EQ(bound_of(p, Accumulation::exact)[0],
                   0x1p-24 * std::fabs(logit) + 0x1p-45 * S2 + 0x1p-149);
}

TEST(IndexLogitsBound, ExactCoversTheLogitRoundedOnceToFp32AndLittleMore) {
  const Problem p = random_problem(pages_of(16), 12, 90, {90, 44}, {1, 0}, 2, 11);
  const auto exact = logits_of<Exact>(p);
  const auto bound = bound_of(p, Accumulation::exact);
  const std::vector<float> rounded(exact.begin(), exact.end());
  EXPECT_LE(used(p, rounded, exact, bound), 1);
  std::vector<float> two_ulp = rounded;
  for (float& x : two_ulp)
    x = std::nextafter(std::nextafter(x, 1e30f), 1e30f);
  EXPECT_GT(used(p, two_ulp, exact, bound), 1);
}

// ---- Recordings ---------------------------------------------------------------------------------

struct Recorded {
  const char* file;
  const char* tensor;
  Accumulation accumulation; ///< spec 12
  bool cancelling = false;   ///< every dot is far smaller than its terms
};

void PrintTo(const Recorded& recorded, std::ostream* out) {
  *out << recorded.file << " " << recorded.tensor;
}

Problem recorded_kernel_problem(testing::Safetensors& file, const std::string& logits) {
  Problem p{pages_of(64),
            file.extent("q_fp8", 2),
            file.extent(logits, 1),
            file.values<std::int32_t>("row_lens"),
            {},
            file.values<std::int32_t>("block_table"),
            file.extent("block_table", 0),
            file.extent("block_table", 1),
            file.extent("index_cache", 0),
            file.extent("index_cache", 1),
            file.values<std::uint8_t>("index_cache"),
            file.values<std::uint8_t>("q_fp8"),
            file.values<float>("weights")};
  const std::int64_t next_n = file.extent("q_fp8", 1);
  for (std::int64_t row = 0; row < p.rows(); ++row)
    p.row_request.push_back(static_cast<std::int32_t>(row / next_n));
  return p;
}

Problem recorded_layer_problem(testing::Safetensors& file) {
  const std::string step = "steps.0.";
  const Tensor q = file.read(step + "index_q_fp8");
  const Fp8Encoding encoding =
      q.dtype == Dtype::float8_e4m3fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn;
  Problem p{pages_of(64, IndexPageLayout::block_flat, encoding),
            q.shape.at(1),
            file.extent(step + "index_logits", 1),
            {},
            {},
            file.values<std::int32_t>(step + "block_table"),
            file.extent(step + "block_table", 0),
            file.extent(step + "block_table", 1),
            file.extent(step + "index_cache_after", 0),
            file.extent(step + "index_cache_after", 1),
            file.values<std::uint8_t>(step + "index_cache_after"),
            file.values<std::uint8_t>(step + "index_q_fp8"),
            file.values<float>(step + "index_weights_folded")};
  const auto query_lens = file.values<std::int32_t>(step + "query_lens");
  const auto seq_lens = file.values<std::int32_t>(step + "seq_lens");
  for (std::size_t b = 0; b < query_lens.size(); ++b)
    for (std::int32_t i = 0; i < query_lens[b]; ++i) {
      p.row_lens.push_back(seq_lens[b] - query_lens[b] + i + 1);
      p.row_request.push_back(static_cast<std::int32_t>(b));
    }
  return p;
}

class IndexLogitsRecorded : public ::testing::TestWithParam<Recorded> {
protected:
  void SetUp() override {
    DSAKIT_NEED_RECORDING(GetParam().file);
    testing::Safetensors file(testing::recording_path(GetParam().file));
    problem_.emplace(file.has("q_fp8") ? recorded_kernel_problem(file, GetParam().tensor)
                                       : recorded_layer_problem(file));
    recorded_ = file.values<float>(GetParam().tensor);
    ASSERT_EQ(recorded_.size(), index(problem().rows() * problem().columns));
    exact_ = logits_of<Exact>(problem());
    bound_ = bound_of(problem(), GetParam().accumulation);
  }

  const Problem& problem() const { return *problem_; }
  /// Share of the bound that our own kernel with a fault would use.
  double used_by_faulty(const Problem& faulty) const {
    return used(problem(), logits_of<Simulated>(faulty), exact_, bound_);
  }

  std::optional<Problem> problem_; // Problem has no default constructor
  std::vector<float> recorded_;
  std::vector<double> exact_;
  std::vector<double> bound_;
};

/// Producers whose accumulation loses more than fp32 does.
class IndexLogitsRecordedWgmma : public IndexLogitsRecorded {};
/// Where every dot cancels, a head or a scale weighs less than what the sum may lose.
class IndexLogitsRecordedOrdinary : public IndexLogitsRecorded {};

TEST_P(IndexLogitsRecorded, TheProducerStaysWithinTheBoundOfItsAccumulation) {
  const double share = used(problem(), recorded_, exact_, bound_);
  RecordProperty("used", std::to_string(share));
  EXPECT_LE(share, 1);
  for (std::int64_t row = 0; row < problem().rows(); ++row)
    for (std::int64_t key = problem().row_lens[index(row)]; key < problem().columns; ++key)
      ASSERT_EQ(static_cast<double>(recorded_[index(row * problem().columns + key)]), -kInf)
          << "the recording is not what its note says";
}

TEST_P(IndexLogitsRecorded, SimulatedStaysFarInsideTheFp32Bound) {
  const auto bound = bound_of(problem(), Accumulation::fp32);
  const double share = used(problem(), logits_of<Simulated>(problem()), exact_, bound);
  RecordProperty("used", std::to_string(share));
  EXPECT_LE(share, 0.1);
}

TEST_P(IndexLogitsRecordedWgmma, TheProducerBreaksTheFp32Bound) {
  const auto bound = bound_of(problem(), Accumulation::fp32);
  const double share = used(problem(), recorded_, exact_, bound);
  RecordProperty("used", std::to_string(share));
  EXPECT_GT(share, 1);
}

TEST_P(IndexLogitsRecordedOrdinary, ADroppedHeadBreaksTheBound) {
  double least = kInf;
  for (std::int64_t head : {std::int64_t{0}, problem().heads / 2, problem().heads - 1}) {
    Problem faulty = problem();
    for (std::int64_t row = 0; row < faulty.rows(); ++row)
      faulty.weights[index(row * faulty.heads + head)] = 0;
    least = std::min(least, used_by_faulty(faulty));
  }
  RecordProperty("used", std::to_string(least));
  EXPECT_GT(least, 1);
}

TEST_P(IndexLogitsRecorded, ADroppedStepOf32BreaksTheBound) {
  double least = kInf;
  for (std::int64_t step = 0; step < kDim; step += 32) {
    Problem faulty = problem();
    for (std::int64_t i = 0; i < std::ssize(faulty.q); ++i)
      if (i % kDim / 32 == step / 32) faulty.q[index(i)] = 0;
    least = std::min(least, used_by_faulty(faulty));
  }
  RecordProperty("used", std::to_string(least));
  EXPECT_GT(least, 1);
}

TEST_P(IndexLogitsRecordedOrdinary, TwoSwappedKeyScalesBreakTheBound) {
  // The first two neighbours of the longest row whose scales differ.
  const auto longest = std::max_element(problem().row_lens.begin(), problem().row_lens.end());
  const std::int64_t row = longest - problem().row_lens.begin();
  Problem faulty = problem();
  std::int64_t key = 0;
  for (; key + 1 < *longest; ++key) {
    const auto [page, token] = faulty.place(row, key);
    const auto [next_page, next_token] = faulty.place(row, key + 1);
    std::uint8_t* scale = faulty.scale(page, token);
    std::uint8_t* next = faulty.scale(next_page, next_token);
    if (std::memcmp(scale, next, 4) != 0) {
      std::swap_ranges(scale, scale + 4, next);
      break;
    }
  }
  ASSERT_LT(key + 1, *longest) << "all scales are equal";
  const double share = used_by_faulty(faulty);
  RecordProperty("used", std::to_string(share));
  EXPECT_GT(share, 1);
}

constexpr Recorded kRecorded[] = {
    {"kernel_logits_paged_h32_n1", "logits", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_h64_n2", "logits", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h32_n1", "logits_vllm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h32_n1", "logits_aiter", Accumulation::fp32},
    {"kernel_logits_paged_rocm_h32_n2", "logits_vllm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h32_n2", "logits_aiter", Accumulation::fp32},
    {"kernel_logits_paged_rocm_h64_n1", "logits_vllm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h64_n1", "logits_aiter", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h64_n2", "logits_vllm", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_rocm_h64_n2", "logits_aiter", Accumulation::sm90_wgmma_fp8},
    {"kernel_logits_paged_cancel_h32_n1", "logits_vllm", Accumulation::sm90_wgmma_fp8, true},
    {"kernel_logits_paged_cancel_h32_n1", "logits_aiter", Accumulation::fp32, true},
    {"kernel_logits_paged_cancel_h64_n1", "logits_vllm", Accumulation::sm90_wgmma_fp8, true},
    {"kernel_logits_paged_cancel_h64_n1", "logits_aiter", Accumulation::sm90_wgmma_fp8, true},
    {"decode_next_n2", "steps.0.index_logits", Accumulation::exact},
    {"decode_fnuz", "steps.0.index_logits", Accumulation::exact},
};

template <class Predicate>
std::vector<Recorded> recorded_where(const Predicate& predicate) {
  std::vector<Recorded> chosen;
  std::copy_if(std::begin(kRecorded), std::end(kRecorded), std::back_inserter(chosen), predicate);
  return chosen;
}

std::string case_name(const ::testing::TestParamInfo<Recorded>& info) {
  std::string name = std::string(info.param.file) + "_" + info.param.tensor;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, IndexLogitsRecorded, ::testing::ValuesIn(kRecorded), case_name);
INSTANTIATE_TEST_SUITE_P(Files, IndexLogitsRecordedWgmma,
                         ::testing::ValuesIn(recorded_where([](const Recorded& r) {
                           return r.accumulation == Accumulation::sm90_wgmma_fp8;
                         })),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Files, IndexLogitsRecordedOrdinary,
                         ::testing::ValuesIn(recorded_where([](const Recorded& r) {
                           return !r.cancelling;
                         })),
                         case_name);

} // namespace index_logits_test
} // namespace dsakit::reference
