#include "dsakit/reference/mxfp4.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace mxfp4_test {

using testing::Guarded;

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::uint8_t kCanary = 0xC9;
constexpr std::size_t kDim = kIndexHeadDim;
constexpr std::size_t kGroup = 32;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::array<double, 8> kMagnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// ---- Formats ------------------------------------------------------------------------------------

TEST(E2m1, EveryCodeHasItsValueAndReturnsToItself) {
  for (std::uint8_t code = 0; code < 16; ++code) {
    const double magnitude = kMagnitudes[code & 7];
    EXPECT_EQ(decode_e2m1(code), code & 8 ? -magnitude : magnitude);
    EXPECT_EQ(std::signbit(decode_e2m1(code)), code >= 8);
    EXPECT_EQ(encode_e2m1(decode_e2m1(code)), code);
  }
}

TEST(E2m1, HalfWayGoesToTheEvenCodeAndEitherSideToTheNearer) {
  for (int code = 0; code < 7; ++code)
    for (int sign : {0, 8}) {
      const auto middle =
          static_cast<float>((kMagnitudes[index(code)] + kMagnitudes[index(code + 1)]) / 2);
      const auto encode = [&](float magnitude) {
        return encode_e2m1(sign ? -magnitude : magnitude);
      };
      EXPECT_EQ(encode(middle), (code % 2 == 0 ? code : code + 1) | sign) << middle;
      EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), code | sign) << middle;
      EXPECT_EQ(encode(std::nextafter(middle, kInf)), (code + 1) | sign) << middle;
    }
}

TEST(E2m1, SaturatesKeepsTheSignOfZeroAndHasNoNaN) {
  EXPECT_EQ(encode_e2m1(7.0f), 7);
  EXPECT_EQ(encode_e2m1(3e38f), 7);
  EXPECT_EQ(encode_e2m1(kInf), 7);
  EXPECT_EQ(encode_e2m1(-kInf), 15);
  EXPECT_EQ(encode_e2m1(-0.0f), 8);
  EXPECT_EQ(encode_e2m1(-1e-30f), 8);
  EXPECT_EQ(encode_e2m1(kNaN), 0);
  EXPECT_EQ(encode_e2m1(-kNaN), 0);
}

TEST(E8m0, IsThePowerOfTwoOfItsByteAndNaNAtTheEnd) {
  for (int byte = 0; byte < 255; ++byte)
    EXPECT_EQ(decode_e8m0(static_cast<std::uint8_t>(byte)), std::exp2(byte - 127)) << byte;
  EXPECT_TRUE(std::isnan(decode_e8m0(0xFF)));
}

// ---- The quantiser ------------------------------------------------------------------------------

constexpr Mxfp4Quant kQuant = {ActivationDtype::bf16, Hadamard::none};
constexpr Mxfp4Quant kRotated = {ActivationDtype::bf16, Hadamard::query_and_key};

struct Quantised {
  std::vector<std::uint8_t> packed; ///< [rows, 64]
  std::vector<std::uint8_t> scale;  ///< [rows, 4]

  bool operator==(const Quantised&) const = default;
  int code(std::size_t element) const {
    return element % 2 ? packed[element / 2] >> 4 : packed[element / 2] & 15;
  }
};

Quantised quantised(const Mxfp4Quant& contract, const std::vector<std::uint16_t>& index_q) {
  const std::size_t rows = index_q.size() / kDim;
  Guarded<std::uint8_t> packed(rows * 64, kPoison, kCanary);
  Guarded<std::uint8_t> scale(rows * 4, kPoison, kCanary);
  EXPECT_TRUE(index_query_quant_mxfp4(contract, index_q.data(), static_cast<std::int64_t>(rows),
                                      packed.data(), scale.data()));
  EXPECT_TRUE(packed.intact() && scale.intact());
  return {{packed.data(), packed.data() + packed.size()},
          {scale.data(), scale.data() + scale.size()}};
}

/// A row of zeros but for the first values.
std::vector<std::uint16_t> row_of(std::initializer_list<float> first) {
  std::vector<std::uint16_t> row(kDim, 0);
  std::transform(first.begin(), first.end(), row.begin(), float_to_bf16);
  return row;
}

std::vector<std::uint16_t> random_rows(std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<std::uint16_t> values;
  for (std::size_t group = 0; group < rows * 4; ++group) {
    const float size = std::ldexp(1.0f, exponent(random));
    for (std::size_t d = 0; d < kGroup; ++d)
      values.push_back(float_to_bf16(size * normal(random)));
  }
  return values;
}

/// The integer form of spec 3.1 from the bits of a bf16 magnitude: amax = m * 2^n with 1 <= m < 2
/// gives n - 2 where m <= 1.5, else n - 1.
int exponent_by_bits(std::uint16_t bits) {
  const int magnitude = bits & 0x7FFF;
  if (magnitude > 0x7F80) return -126; // NaN takes no part
  const int finite = std::min(magnitude, 0x7F7F);
  const int n = (finite >> 7) - 127; // of a subnormal below every bound
  return std::max((finite & 0x7F) <= 0x40 ? n - 2 : n - 1, -126);
}

/// The nearest code of x / 2^exponent in double, by trying all: of two as near the even one.
int code_by_distance(std::uint16_t bits, int exponent) {
  const double x = std::ldexp(static_cast<double>(bf16_to_float(bits)), -exponent);
  if (std::isnan(x)) return 0;
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double here = std::fabs(std::min(std::fabs(x), 6.0) - kMagnitudes[index(code)]);
    const double there = std::fabs(std::min(std::fabs(x), 6.0) - kMagnitudes[index(best)]);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return best | (bits & 0x8000 ? 8 : 0);
}

TEST(Mxfp4Quant, S06_IsTheIntegerFormForAllBf16AsTheLargestOfAGroupAndBesideALargerOne) {
  // Each pattern leads one group; in the others it stands beside 1.5 * 2^j, so that its code
  // goes through every boundary.
  std::vector<std::uint16_t> rows(65536 * kDim, 0);
  for (std::size_t bits = 0; bits < 65536; ++bits) {
    const auto x = static_cast<std::uint16_t>(bits);
    for (std::size_t g = 0; g < 4; ++g) {
      std::uint16_t* group = &rows[bits * kDim + g * kGroup];
      group[7 * g] = x;
      const int field = std::min((x >> 7 & 0xFF) + static_cast<int>(g), 0xFE);
      if (g > 0) group[31 - g] = static_cast<std::uint16_t>(field << 7 | 0x40);
    }
  }
  const Quantised got = quantised(kQuant, rows);
  for (std::size_t i = 0; i < rows.size(); i += kGroup) {
    int exponent = -126;
    for (std::size_t d = 0; d < kGroup; ++d)
      exponent = std::max(exponent, exponent_by_bits(rows[i + d]));
    ASSERT_EQ(got.scale[i / kGroup], exponent + 127) << i / kDim;
    for (std::size_t d = 0; d < kGroup; ++d)
      ASSERT_EQ(got.code(i + d), code_by_distance(rows[i + d], exponent)) << i / kDim << " " << d;
  }
}

TEST(Mxfp4Quant, S02_AZeroGroupHasByte1AndZeroCodes) {
  const Quantised zero = quantised(kQuant, row_of({}));
  EXPECT_EQ(zero.scale, std::vector<std::uint8_t>(4, 1)); // 2^-126
  EXPECT_EQ(zero.packed, std::vector<std::uint8_t>(64, 0));
  EXPECT_EQ(quantised(kQuant, row_of({-0.0f})).packed[0], 8);
}

TEST(Mxfp4Quant, S07_TheEvenElementIsInTheLowNibble) {
  const Quantised got = quantised(kQuant, row_of({6.0f, -0.5f, 3.0f, 1.0f}));
  EXPECT_EQ(got.scale[0], 127);
  EXPECT_EQ(got.packed[0], 0x97);
  EXPECT_EQ(got.packed[1], 0x25);
}

TEST(Mxfp4Quant, S08_EveryGroupHasTheScaleOfItsOwnLargestElement) {
  for (std::size_t place = 0; place < kDim; ++place)
    for (float sign : {1.0f, -1.0f}) {
      std::vector<std::uint16_t> row(kDim, float_to_bf16(1.0f)); // 2^-2
      row[place] = float_to_bf16(sign * 100.0f);                 // 1.5625 * 2^6: 2^5
      const Quantised got = quantised(kQuant, row);
      for (std::size_t g = 0; g < 4; ++g)
        ASSERT_EQ(got.scale[g], g == place / kGroup ? 127 + 5 : 127 - 2) << place;
    }
}

TEST(Mxfp4Quant, Fp16ActivationsAreReadAsFp16) {
  std::vector<std::uint16_t> row(kDim, 0);
  row[5] = 0x7BFF; // 65504 = 1.999 * 2^15
  row[6] = 0xF000; // -8192
  row[40] = 0x7C00;
  const Quantised got = quantised({ActivationDtype::fp16, Hadamard::none}, row);
  EXPECT_EQ(got.scale[0], 127 + 14);
  EXPECT_EQ(got.code(5), 6); // 65504 / 2^14 = 3.998
  EXPECT_EQ(got.code(6), 9);
  EXPECT_EQ(got.scale[1], 127 + 14); // an infinity: that of the largest finite input
  EXPECT_EQ(got.code(40), 7);
}

TEST(Mxfp4Quant, NaNIsCode0AndInfinitySaturatesUnderTheLargestFiniteScale) {
  const Quantised clean = quantised(kQuant, row_of({3.0f, 0.0f, 1.0f}));
  EXPECT_EQ(quantised(kQuant, row_of({3.0f, kNaN, 1.0f})), clean);
  EXPECT_EQ(quantised(kQuant, row_of({3.0f, -kNaN, 1.0f})), clean);
  const Quantised infinite = quantised(kQuant, row_of({-kInf, kInf, 1.0f}));
  EXPECT_EQ(infinite.scale[0], 127 + 126);
  EXPECT_EQ(infinite.packed[0], 0x7F);
  EXPECT_EQ(infinite.packed[1], 0);
}

TEST(Mxfp4Quant, BytesDoNotDependOnTheNumberOfThreads) {
  const auto rows = random_rows(301, 5);
  const Quantised want = quantised(kRotated, rows);
  for (std::size_t threads : {1u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_EQ(quantised(kRotated, rows), want);
  }
}

// ---- Hadamard -----------------------------------------------------------------------------------

/// By Sylvester's recursion H(2n) = [[H, H], [H, -H]], every sum rounded to fp32: the halves first,
/// so that elements half a row apart meet last.
std::vector<float> hadamard(const std::vector<float>& x) {
  if (x.size() == 1) return x;
  const auto half = static_cast<std::ptrdiff_t>(x.size() / 2);
  std::vector<float> low = hadamard({x.begin(), x.begin() + half});
  const std::vector<float> high = hadamard({x.begin() + half, x.end()});
  std::vector<float> out(x.size());
  for (std::size_t i = 0; i < low.size(); ++i) {
    out[i] = low[i] + high[i];
    out[i + low.size()] = low[i] - high[i];
  }
  return out;
}

TEST(Mxfp4Hadamard, TheRotatedRowIsQuantisedBitForBit) {
  auto rows = random_rows(64, 9);
  // Two large elements that cancel in half of the groups: what they leave of the others there is
  // the rounding of the sums before, so that another order of the butterflies shows.
  for (std::size_t row = 0; row < 64; row += 2)
    for (std::size_t d : {std::size_t{0}, row % 4 ? kGroup : 2 * kGroup})
      rows[row * kDim + d] = float_to_bf16(0x1p30f);
  const Quantised got = quantised(kRotated, rows);
  for (std::size_t row = 0; row < 64; ++row) {
    std::vector<float> x;
    for (std::size_t d = 0; d < kDim; ++d)
      x.push_back(bf16_to_float(rows[row * kDim + d]));
    std::vector<float> y = hadamard(x);
    for (float& value : y)
      value *= 0.0883883461356163f; // fl32(128^-0.5)
    for (std::size_t g = 0; g < 4; ++g) {
      float amax = 6 * 0x1p-126f;
      for (std::size_t d = 0; d < kGroup; ++d)
        amax = std::max(amax, std::fabs(y[g * kGroup + d]));
      const int exponent = ue8m0_exponent(amax, 6);
      ASSERT_EQ(got.scale[row * 4 + g], exponent + 127);
      for (std::size_t d = 0; d < kGroup; ++d)
        ASSERT_EQ(got.code(row * kDim + g * kGroup + d),
                  encode_e2m1(std::ldexp(y[g * kGroup + d], -exponent)));
    }
  }
}

TEST(Mxfp4Hadamard, AUnitVectorBecomesARowOfTheMatrix) {
  for (std::size_t j : {0u, 1u, 31u, 64u, 127u}) {
    std::vector<std::uint16_t> row(kDim, 0);
    row[j] = float_to_bf16(1.0f);
    const Quantised got = quantised(kRotated, row);
    EXPECT_EQ(got.scale, std::vector<std::uint8_t>(4, 127 - 6)); // 0.0884 = 1.41 * 2^-4
    for (std::size_t i = 0; i < kDim; ++i)
      ASSERT_EQ(got.code(i), std::popcount(i & j) % 2 ? 15 : 7) << i; // 5.66 rounds to 6
  }
}

TEST(Mxfp4Hadamard, NaNReachesTheWholeRowAndNoFp16InputIsTooLargeForIt) {
  const Quantised nan = quantised(kRotated, row_of({1.0f, kNaN}));
  EXPECT_EQ(nan.scale, std::vector<std::uint8_t>(4, 1));
  EXPECT_EQ(nan.packed, std::vector<std::uint8_t>(64, 0));
  const std::vector<std::uint16_t> largest(kDim, 0x7BFF); // 65504 * sqrt(128) = 1.41 * 2^19
  const Quantised got = quantised({ActivationDtype::fp16, Hadamard::query_and_key}, largest);
  EXPECT_EQ(got.scale[0], 127 + 17);
  EXPECT_EQ(got.code(0), 7); // 5.65
}

// ---- Pages --------------------------------------------------------------------------------------

constexpr Mxfp4Pages kFlat = {IndexPageLayout::flat, 64};
constexpr Mxfp4Pages kTiled = {IndexPageLayout::preshuffle64, 64};

TEST(Mxfp4Pages, LayoutsPlaceATokenWhereSpec32Says) {
  EXPECT_EQ(mxfp4_value_offset(kFlat, 37, 41), 37 * 64 + 41);
  EXPECT_EQ(mxfp4_scale_offset(kFlat, 37, 2), 64 * 64 + 37 * 4 + 2);
  EXPECT_EQ(mxfp4_value_offset(kTiled, 37, 41), 2 * 1024 + 37 * 16 + 9);
  EXPECT_EQ(mxfp4_scale_offset(kTiled, 37, 2), 64 * 64 + 2 * 64 + 5 * 4 + 2);
}

TEST(Mxfp4Pages, EveryByteOfAPageBelongsToOneValueOrOneScale) {
  for (const Mxfp4Pages& pages : {kFlat, kTiled, Mxfp4Pages{IndexPageLayout::flat, 5}}) {
    std::vector<int> owners(index(pages.page_size * 68), 0);
    for (std::int64_t token = 0; token < pages.page_size; ++token) {
      for (std::int64_t i = 0; i < 64; ++i)
        ++owners.at(index(mxfp4_value_offset(pages, token, i)));
      for (std::int64_t g = 0; g < 4; ++g)
        ++owners.at(index(mxfp4_scale_offset(pages, token, g)));
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << name(pages.index_page_layout);
  }
}

TEST(Mxfp4Pages, RefusesWhatItCannotFollowAndNamesTheValue) {
  EXPECT_TRUE(check_mxfp4_pages(kTiled, 4352));
  EXPECT_TRUE(check_mxfp4_pages({IndexPageLayout::flat, 53}, 53 * 68));
  const auto refusal = [](const Mxfp4Pages& pages, std::int64_t stride, Code code) {
    const Status status = check_mxfp4_pages(pages, stride);
    EXPECT_EQ(status.code(), code);
    return status.what();
  };
  EXPECT_EQ(refusal({IndexPageLayout::block_flat, 64}, 64 * 132, Code::unsupported),
            "index_page_layout: found block_flat, want flat or preshuffle64 for MXFP4");
  EXPECT_EQ(refusal({IndexPageLayout::preshuffle64, 128}, 128 * 68, Code::unsupported),
            "page_size: found 128, want 64 for preshuffle64");
  EXPECT_EQ(refusal(kFlat, 4351, Code::bad_input),
            "index_cache page stride: found 4351 bytes, want at least 4352");
  EXPECT_EQ(refusal({IndexPageLayout::flat, 0}, 68, Code::bad_input),
            "page_size: found 0, want at least 1");
}

// ---- Write and gather ---------------------------------------------------------------------------

TEST(Mxfp4CacheWrite, S20_WritesRecordsOfNamedSlotsAndNothingElse) {
  const auto keys = random_rows(6, 6);
  const Quantised records = quantised(kRotated, keys);
  const std::vector<std::int64_t> slots = {70, -1, 3, 191, 3}; // row 5 has no slot; 3 twice
  for (const Mxfp4Pages& pages : {kFlat, kTiled}) {
    constexpr std::int64_t kStride = 4352 + 24;
    Guarded<std::uint8_t> pool(3 * kStride, kPoison, kCanary);
    ASSERT_TRUE(
        index_cache_write_mxfp4(pages, kRotated, keys.data(), 6, slots, {pool.data(), 3, kStride}));
    std::vector<std::uint8_t> want(pool.size(), kPoison);
    for (std::int64_t t : {0, 3, 4}) {
      const std::int64_t slot = slots[index(t)];
      std::uint8_t* page = want.data() + slot / 64 * kStride;
      for (std::int64_t i = 0; i < 64; ++i)
        page[mxfp4_value_offset(pages, slot % 64, i)] = records.packed[index(t * 64 + i)];
      for (std::int64_t g = 0; g < 4; ++g)
        page[mxfp4_scale_offset(pages, slot % 64, g)] = records.scale[index(t * 4 + g)];
    }
    EXPECT_TRUE(std::equal(want.begin(), want.end(), pool.data()));
    EXPECT_TRUE(pool.intact());
  }
}

TEST(Mxfp4CacheWrite, RefusalsNameTheValueAndWriteNothing) {
  const auto keys = random_rows(3, 5);
  std::vector<std::uint8_t> pool(2 * 4352, kPoison);
  const auto refused = [&](std::vector<std::int64_t> slots, std::int64_t rows) {
    const Status status =
        index_cache_write_mxfp4(kFlat, kQuant, keys.data(), rows, slots, {pool.data(), 2, 4352});
    EXPECT_EQ(status.code(), Code::bad_input);
    return status.what();
  };
  EXPECT_EQ(refused({0, 1, 128}, 3), "slot_mapping[2]: found 128, want -1 or a slot below 128");
  EXPECT_EQ(refused({0, -2, 1}, 3), "slot_mapping[1]: found -2, want -1 or a slot below 128");
  EXPECT_EQ(refused({0, 1, 2}, 2),
            "index_k: found 2 rows, want at least 3, one for each of slot_mapping");
  EXPECT_EQ(pool, std::vector<std::uint8_t>(pool.size(), kPoison));
}

TEST(Mxfp4CacheGather, GivesBackWhatWasWrittenZerosOfABadPageAndLeavesOtherRows) {
  const auto keys = random_rows(192, 11);
  const Quantised records = quantised(kQuant, keys);
  std::vector<std::int64_t> slots(192);
  for (std::int64_t t = 0; t < 192; ++t)
    slots[index(t)] = (t * 61 + 5) % 192;
  const std::vector<std::int32_t> table = {2, -1, 0, 1, 3, 9}; // 2 requests of 3 pages
  const std::vector<std::int32_t> cu_seq_lens = {0, 70, 210};
  for (const Mxfp4Pages& pages : {kFlat, kTiled}) {
    std::vector<std::uint8_t> pool(3 * 4352);
    ASSERT_TRUE(
        index_cache_write_mxfp4(pages, kQuant, keys.data(), 192, slots, {pool.data(), 3, 4352}));
    Guarded<std::uint8_t> packed(212 * 64, kPoison, kCanary), scale(212 * 4, kPoison, kCanary);
    ASSERT_TRUE(index_cache_gather_mxfp4(pages, {pool.data(), 3, 4352}, {table.data(), 2, 3},
                                         cu_seq_lens, {}, 212, packed.data(), scale.data()));
    for (std::int64_t row = 0; row < 212; ++row) {
      const std::int64_t request = row >= 70, position = row - (request ? 70 : 0);
      const std::int64_t page = table[index(request * 3 + position / 64)];
      for (std::int64_t i = 0; i < 68; ++i) {
        std::uint8_t want = row >= 210 ? kPoison : 0;
        if (row < 210 && page >= 0 && page < 3) {
          const std::int64_t t =
              std::find(slots.begin(), slots.end(), page * 64 + position % 64) - slots.begin();
          want = i < 64 ? records.packed[index(t * 64 + i)] : records.scale[index(t * 4 + i - 64)];
        }
        ASSERT_EQ(i < 64 ? packed[index(row * 64 + i)] : scale[index(row * 4 + i - 64)], want)
            << name(pages.index_page_layout) << " row " << row << " byte " << i;
      }
    }
    EXPECT_TRUE(packed.intact() && scale.intact());
  }
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(Mxfp4Recorded, TritonQuantiserIsReproducedTiesIncluded) {
  DSAKIT_NEED_RECORDING("kernel_mxfp4_quant");
  testing::Safetensors file(testing::recording_path("kernel_mxfp4_quant"));
  const Quantised got = quantised(kQuant, file.values<std::uint16_t>("x"));
  EXPECT_TRUE(got.packed == file.values<std::uint8_t>("packed"));
  EXPECT_TRUE(got.scale == file.values<std::uint8_t>("scale_e8m0"));
}

TEST(Mxfp4Recorded, TritonFlatPagesAreReproduced) {
  DSAKIT_NEED_RECORDING("kernel_mxfp4_insert_flat");
  testing::Safetensors file(testing::recording_path("kernel_mxfp4_insert_flat"));
  const auto index_k = file.values<std::uint16_t>("index_k");
  const auto want = file.values<std::uint8_t>("index_cache_fp4");
  std::vector<std::uint8_t> pool(want.size(), 0xA5); // as the file's note says
  ASSERT_TRUE(index_cache_write_mxfp4(kFlat, kQuant, index_k.data(), file.extent("index_k", 0),
                                      file.values<std::int64_t>("slot_mapping"),
                                      {pool.data(), file.extent("index_cache_fp4", 0), 4352}));
  EXPECT_TRUE(pool == want);
}

TEST(Mxfp4Recorded, QueriesAndPagesOfTheLayerAreReproduced) {
  DSAKIT_NEED_RECORDING("decode_mxfp4");
  testing::Safetensors file(testing::recording_path("decode_mxfp4"));
  const Quantised got = quantised(kQuant, file.values<std::uint16_t>("steps.0.index_q"));
  EXPECT_TRUE(got.packed == file.values<std::uint8_t>("steps.0.index_q_packed"));
  EXPECT_TRUE(got.scale == file.values<std::uint8_t>("steps.0.index_q_scale"));
  const auto index_k = file.values<std::uint16_t>("steps.0.index_k");
  auto pool = file.values<std::uint8_t>("steps.0.index_cache_before");
  ASSERT_TRUE(
      index_cache_write_mxfp4(kFlat, kQuant, index_k.data(), file.extent("steps.0.index_k", 0),
                              file.values<std::int64_t>("steps.0.slot_mapping"),
                              {pool.data(), file.extent("steps.0.index_cache_before", 0), 4352}));
  EXPECT_TRUE(pool == file.values<std::uint8_t>("steps.0.index_cache_after"));
}

} // namespace mxfp4_test
} // namespace dsakit::reference
