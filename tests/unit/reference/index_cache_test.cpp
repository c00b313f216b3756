#include "dsakit/reference/index_cache.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace index_cache_test {

using testing::Guarded;

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::uint8_t kCanary = 0xC9;
constexpr std::size_t kDim = kIndexHeadDim;

IndexPages pages_of(std::int64_t page_size, IndexPageLayout layout = IndexPageLayout::block_flat,
                    Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  return {encoding, layout, page_size};
}

IndexKeyQuant quant_of(const IndexPages& pages, ScaleKind kind = ScaleKind::ue8m0,
                       ActivationDtype dtype = ActivationDtype::bf16) {
  const bool fn = pages.index_fp8_encoding == Fp8Encoding::e4m3fn;
  return {pages, dtype, kind, 1e-4f, fn ? 448.0f : 224.0f};
}

/// Bytes of a page that is not packed.
std::int64_t page_bytes(std::int64_t page_size) {
  return page_size * 132;
}

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

std::vector<std::uint16_t> random_keys(std::size_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<std::uint16_t> keys(rows * kDim);
  for (std::size_t row = 0; row < rows; ++row) {
    const float size = std::ldexp(1.0f, exponent(random));
    for (std::size_t d = 0; d < kDim; ++d)
      keys[row * kDim + d] = float_to_bf16(size * normal(random));
  }
  return keys;
}

/// Codes and scale of one key, through a pool of one page of one token.
struct Record {
  std::array<std::uint8_t, kDim> codes;
  float scale;
};

Record quantised(const IndexKeyQuant& like, const std::uint16_t* key) {
  const IndexKeyQuant contract = {
      pages_of(1, IndexPageLayout::block_flat, like.pages.value.index_fp8_encoding),
      like.activation_dtype, like.scale_kind, like.index_k_floor, like.qmax};
  std::array<std::uint8_t, 132> page;
  page.fill(kPoison);
  const std::int64_t slot = 0;
  const Status status = index_cache_write(contract, key, 1, {&slot, 1}, {page.data(), 1, 132});
  EXPECT_TRUE(status) << status.what();
  Record record;
  std::memcpy(record.codes.data(), page.data(), kDim);
  std::memcpy(&record.scale, page.data() + kDim, sizeof record.scale);
  return record;
}

Record quantised(const IndexKeyQuant& contract, const std::vector<std::uint16_t>& key) {
  return quantised(contract, key.data());
}

/// A key of zeros but for the first values.
std::vector<std::uint16_t> key_of(std::initializer_list<float> first) {
  std::vector<std::uint16_t> key(kDim, 0);
  std::size_t d = 0;
  for (float value : first)
    key[d++] = float_to_bf16(value);
  return key;
}

// ---- Where bytes lie ----------------------------------------------------------------------------

TEST(IndexPages, S09_LayoutsPlaceTheSecondTokenAt128OrAt16) {
  EXPECT_EQ(index_value_offset(pages_of(64), 1, 0), 128);
  EXPECT_EQ(index_value_offset(pages_of(64, IndexPageLayout::mfma_preshuffle), 1, 0), 16);
  // (token 37, dim 91): tile row 2, tile column 5, row 5 of the tile, column 11.
  EXPECT_EQ(index_value_offset(pages_of(64), 37, 91), 37 * 128 + 91);
  EXPECT_EQ(index_value_offset(pages_of(64, IndexPageLayout::mfma_preshuffle), 37, 91),
            2 * 2048 + 5 * 256 + 5 * 16 + 11);
  EXPECT_EQ(index_scale_offset(pages_of(64), 37), 64 * 128 + 37 * 4);
}

TEST(IndexPages, EveryByteOfAPageBelongsToOneValueOrOneScale) {
  for (IndexPageLayout layout : {IndexPageLayout::block_flat, IndexPageLayout::mfma_preshuffle})
    for (std::int64_t page_size : {16, 48, 64}) {
      const IndexPages pages = pages_of(page_size, layout);
      std::vector<int> owners(index(page_bytes(page_size)), 0);
      for (std::int64_t token = 0; token < page_size; ++token) {
        for (std::int64_t dim = 0; dim < kIndexHeadDim; ++dim)
          ++owners.at(index(index_value_offset(pages, token, dim)));
        for (std::int64_t i = 0; i < 4; ++i)
          ++owners.at(index(index_scale_offset(pages, token) + i));
      }
      EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << name(layout) << " " << page_size;
    }
}

TEST(IndexPages, RefusesWhatItCannotFollowAndNamesTheValue) {
  EXPECT_TRUE(check_index_pages(pages_of(53), page_bytes(53)));
  EXPECT_TRUE(check_index_pages(pages_of(48, IndexPageLayout::mfma_preshuffle), page_bytes(48)));

  const auto mxfp4 = check_index_pages(pages_of(64, IndexPageLayout::flat), 64 * 132);
  EXPECT_EQ(mxfp4.code(), Code::unsupported);
  EXPECT_NE(mxfp4.what().find("found flat"), std::string::npos) << mxfp4.what();
  EXPECT_EQ(check_index_pages(pages_of(64, IndexPageLayout::preshuffle64), 64 * 132).code(),
            Code::unsupported);
  const auto tile = check_index_pages(pages_of(24, IndexPageLayout::mfma_preshuffle), 24 * 132);
  EXPECT_EQ(tile.code(), Code::unsupported);
  EXPECT_NE(tile.what().find("found 24"), std::string::npos) << tile.what();
  const auto stride = check_index_pages(pages_of(64), 64 * 132 - 1);
  EXPECT_EQ(stride.code(), Code::bad_input);
  EXPECT_NE(stride.what().find("found 8447"), std::string::npos) << stride.what();
  EXPECT_EQ(check_index_pages(pages_of(0), 132).code(), Code::bad_input);
}

// ---- The quantiser ------------------------------------------------------------------------------

TEST(IndexKeyQuant, S02_ZeroAndTinyRowsHaveZeroCodesAndAPositiveScale) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    const IndexKeyQuant contract = quant_of(pages_of(1, IndexPageLayout::block_flat, encoding));
    const float floor_scale = encoding == Fp8Encoding::e4m3fn ? 0x1p-22f : 0x1p-21f; // spec 2.4
    for (float value : {0.0f, 1e-30f}) {
      const Record record = quantised(contract, key_of({value}));
      EXPECT_EQ(record.scale, floor_scale);
      for (std::uint8_t code : record.codes)
        EXPECT_EQ(code, 0);
    }
  }
}

TEST(IndexKeyQuant, S02_AZeroRowLeavesItsNeighboursAlone) {
  auto keys = random_keys(8, 2);
  const auto untouched = keys;
  std::fill_n(keys.begin() + 3 * 128, 128, std::uint16_t{0});
  const IndexKeyQuant contract = quant_of(pages_of(1));
  for (std::size_t row = 0; row < 8; ++row) {
    const Record record = quantised(contract, keys.data() + row * kDim);
    EXPECT_TRUE(std::isfinite(record.scale) && record.scale > 0);
    if (row != 3)
      EXPECT_EQ(record.codes, quantised(contract, untouched.data() + row * kDim).codes);
    else
      EXPECT_EQ(record.codes, (std::array<std::uint8_t, kDim>{}));
  }
}

TEST(IndexKeyQuant, TheFloorIsAParameter) {
  IndexKeyQuant contract = quant_of(pages_of(1));
  EXPECT_EQ(quantised(contract, key_of({1e-6f})).scale, 0x1p-22f);
  contract.index_k_floor = 1e-10f;
  EXPECT_EQ(quantised(contract, key_of({1e-6f})).scale, 0x1p-28f); // 1e-6 = 1.05 * 2^-20
  contract.index_k_floor = 448.0f * 4;
  EXPECT_EQ(quantised(contract, key_of({1.0f})).scale, 4.0f);
}

TEST(IndexKeyQuant, S04_TheScaleIsRoundedBeforeTheValuesAreDivided) {
  const Record record = quantised(quant_of(pages_of(1)), key_of({300.0f}));
  EXPECT_EQ(record.scale, 1.0f);
  EXPECT_EQ(decode_fp8(Fp8Encoding::e4m3fn, record.codes[0]), 288.0f);
}

TEST(IndexKeyQuant, S04_EveryValueIsWithinHalfACodeStepOfItsInput) {
  const auto keys = random_keys(50, 4);
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    const float smallest_step = decode_fp8(encoding, 1);
    for (ScaleKind kind : {ScaleKind::ue8m0, ScaleKind::fp32})
      for (std::size_t row = 0; row < 50; ++row) {
        const Record record =
            quantised(quant_of(pages_of(1, IndexPageLayout::block_flat, encoding), kind),
                      keys.data() + row * kDim);
        for (std::size_t d = 0; d < kDim; ++d) {
          const double x = bf16_to_float(keys[row * kDim + d]);
          const double value = double{decode_fp8(encoding, record.codes[d])} * record.scale;
          const double step =
              std::max(std::ldexp(1.0, std::ilogb(x / record.scale) - 3), double{smallest_step});
          // An fp32 quotient is itself rounded, by up to 2^-20 of a step.
          ASSERT_LE(std::fabs(value - x), step / 2 * record.scale * (1 + 0x1p-18))
              << name(kind) << " row " << row << " dim " << d;
        }
      }
  }
}

TEST(IndexKeyQuant, TheLargestElementSetsTheScaleWhereverItIs) {
  for (std::size_t place : {0u, 63u, 64u, 127u})
    for (float sign : {1.0f, -1.0f}) {
      std::vector<std::uint16_t> key(kDim, float_to_bf16(0.125f));
      key[place] = float_to_bf16(sign * 900.0f); // past 2 * qmax: the scale is 4
      const Record record = quantised(quant_of(pages_of(1)), key);
      EXPECT_EQ(record.scale, 4.0f) << place;
    }
  // Exactly qmax does not need the next power of two.
  EXPECT_EQ(quantised(quant_of(pages_of(1)), key_of({448.0f})).scale, 1.0f);
  EXPECT_EQ(quantised(quant_of(pages_of(1)), key_of({450.0f})).scale, 2.0f);
}

TEST(IndexKeyQuant, TheDivisorIsAParameter) {
  for (auto [qmax, scale] : {std::pair{224.0f, 2.0f}, {240.0f, 1.0f}}) {
    IndexKeyQuant contract =
        quant_of(pages_of(1, IndexPageLayout::block_flat, Fp8Encoding::e4m3fnuz));
    contract.qmax = qmax;
    EXPECT_EQ(quantised(contract, key_of({236.0f})).scale, scale);
  }
}

TEST(IndexKeyQuant, Fp32ScaleIsTheUnroundedQuotient) {
  const auto contract = quant_of(pages_of(1), ScaleKind::fp32);
  const Record record = quantised(contract, key_of({300.0f, 37.0f, -5.5f}));
  EXPECT_EQ(record.scale, 300.0f / 448.0f);
  EXPECT_EQ(record.codes[0], 0x7E);
  for (std::size_t d : {1u, 2u}) {
    const float x = d == 1 ? 37.0f : -5.5f;
    EXPECT_EQ(record.codes[d], encode_fp8_saturating(Fp8Encoding::e4m3fn, x / (300.0f / 448.0f)));
  }
  EXPECT_EQ(quantised(contract, key_of({0.0f})).scale, 1e-4f / 448.0f);
}

TEST(IndexKeyQuant, Fp16ActivationsAreReadAsFp16) {
  std::vector<std::uint16_t> key(kDim, 0);
  key[5] = 0x7BFF; // 65504
  key[6] = 0xC500; // -5
  key[7] = 0x0001; // 2^-24
  const Record record =
      quantised(quant_of(pages_of(1), ScaleKind::ue8m0, ActivationDtype::fp16), key);
  EXPECT_EQ(record.scale, 256.0f); // 65504 / 448 = 146.2
  EXPECT_EQ(record.codes[5], encode_fp8_saturating(Fp8Encoding::e4m3fn, 65504.0f / 256));
  EXPECT_EQ(record.codes[6], encode_fp8_saturating(Fp8Encoding::e4m3fn, -5.0f / 256));
  EXPECT_EQ(record.codes[7], 0);
}

TEST(IndexKeyQuant, NaNIsStoredAsNaNAndDoesNotMoveTheScale) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (auto [encoding, code] :
       {std::pair{Fp8Encoding::e4m3fn, 0x7F}, {Fp8Encoding::e4m3fnuz, 0x80}})
    for (ScaleKind kind : {ScaleKind::ue8m0, ScaleKind::fp32}) {
      const auto contract = quant_of(pages_of(1, IndexPageLayout::block_flat, encoding), kind);
      const Record clean = quantised(contract, key_of({3.0f, 0.0f, 1.0f}));
      const Record record = quantised(contract, key_of({3.0f, nan, 1.0f}));
      EXPECT_EQ(record.scale, clean.scale);
      EXPECT_EQ(record.codes[0], clean.codes[0]);
      EXPECT_EQ(record.codes[1], code);
      EXPECT_EQ(record.codes[2], clean.codes[2]);
      EXPECT_EQ(quantised(contract, key_of({nan})).scale, quantised(contract, key_of({})).scale);
    }
}

TEST(IndexKeyQuant, InfinitySaturatesUnderTheScaleOfTheLargestFiniteInput) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float largest = bf16_to_float(0x7F7F);
  for (auto [encoding, code] :
       {std::pair{Fp8Encoding::e4m3fn, 0x7E}, {Fp8Encoding::e4m3fnuz, 0x7F}})
    for (ScaleKind kind : {ScaleKind::ue8m0, ScaleKind::fp32}) {
      const auto contract = quant_of(pages_of(1, IndexPageLayout::block_flat, encoding), kind);
      const Record record = quantised(contract, key_of({inf, -inf, 1.0f}));
      EXPECT_EQ(record.scale, quantised(contract, key_of({largest})).scale);
      EXPECT_EQ(record.codes[0], code);
      EXPECT_EQ(record.codes[1], code | 0x80);
      EXPECT_EQ(record.codes[2], 0);
    }
  EXPECT_EQ(quantised(quant_of(pages_of(1)), key_of({inf})).scale, 0x1p120f);
  std::vector<std::uint16_t> fp16_infinity(kDim, 0x7C00);
  const Record record =
      quantised(quant_of(pages_of(1), ScaleKind::ue8m0, ActivationDtype::fp16), fp16_infinity);
  EXPECT_EQ(record.scale, 256.0f); // that of 65504
  EXPECT_EQ(record.codes[127], 0x7E);
  EXPECT_EQ(
      quantised(quant_of(pages_of(1), ScaleKind::fp32, ActivationDtype::fp16), fp16_infinity).scale,
      65504.0f / 448.0f);
}

// ---- Write --------------------------------------------------------------------------------------

TEST(IndexCacheWrite, RefusalsNameTheValueAndWriteNothing) {
  const auto keys = random_keys(3, 5);
  Guarded<std::uint8_t> pool(4 * 2 * 132, kPoison, kCanary); // 4 pages of 2 tokens
  const IndexKeyQuant contract = quant_of(pages_of(2));
  const auto refused = [&](std::vector<std::int64_t> slots, std::int64_t rows) {
    const Status status =
        index_cache_write(contract, keys.data(), rows, slots, {pool.data(), 4, 2 * 132});
    EXPECT_EQ(status.code(), Code::bad_input);
    return status.what();
  };
  EXPECT_EQ(refused({0, 1, 8}, 3), "slot_mapping[2]: found 8, want -1 or a slot below 8");
  EXPECT_EQ(refused({0, -2, 1}, 3), "slot_mapping[1]: found -2, want -1 or a slot below 8");
  EXPECT_EQ(refused({0, 1, 2}, 2),
            "index_k: found 2 rows, want at least 3, one for each of slot_mapping");
  for (std::size_t i = 0; i < pool.size(); ++i)
    ASSERT_EQ(pool[i], kPoison);
  EXPECT_TRUE(pool.intact());
}

TEST(IndexCacheWrite, NoTokensWriteNothing) {
  Guarded<std::uint8_t> pool(2 * 132, kPoison, kCanary);
  EXPECT_TRUE(index_cache_write(quant_of(pages_of(2)), nullptr, 0, {}, {pool.data(), 1, 2 * 132}));
  for (std::size_t i = 0; i < pool.size(); ++i)
    ASSERT_EQ(pool[i], kPoison);
}

TEST(IndexCacheWrite, S20_SlotMinusOneAndSurplusRowsAreSkipped) {
  const auto keys = random_keys(5, 6);
  const IndexKeyQuant contract = quant_of(pages_of(3));
  Guarded<std::uint8_t> pool(2 * 3 * 132, kPoison, kCanary);
  const std::vector<std::int64_t> slots = {4, -1, 0}; // rows 3 and 4 have no slot
  ASSERT_TRUE(index_cache_write(contract, keys.data(), 5, slots, {pool.data(), 2, 3 * 132}));

  std::vector<std::uint8_t> want(pool.size(), kPoison);
  for (std::size_t t : {0u, 2u}) {
    const Record record = quantised(contract, keys.data() + t * kDim);
    std::uint8_t* page = want.data() + (t == 0 ? 3 * 132 : 0);
    const std::size_t token = t == 0 ? 1 : 0;
    std::memcpy(page + token * kDim, record.codes.data(), kDim);
    std::memcpy(page + 3 * kDim + token * 4, &record.scale, 4);
  }
  EXPECT_EQ(std::memcmp(pool.data(), want.data(), want.size()), 0);
  EXPECT_TRUE(pool.intact());
}

TEST(IndexCacheWrite, OfTwoTokensWithOneSlotTheLaterStays) {
  const auto keys = random_keys(2, 7);
  const IndexKeyQuant contract = quant_of(pages_of(1));
  std::array<std::uint8_t, 132> page;
  const std::vector<std::int64_t> slots = {0, 0};
  ASSERT_TRUE(index_cache_write(contract, keys.data(), 2, slots, {page.data(), 1, 132}));
  const Record later = quantised(contract, keys.data() + kDim);
  EXPECT_EQ(std::memcmp(page.data(), later.codes.data(), kDim), 0);
}

TEST(IndexCacheWrite, S13_S15_BytesBetweenPackedPagesStay) {
  constexpr std::int64_t kPages = 5, kPageSize = 3, kStride = 3 * 132 + 29;
  const auto keys = random_keys(7, 8);
  const std::vector<std::int64_t> slots = {14, 3, 0, 8, 12, 5, 2};
  const IndexKeyQuant contract = quant_of(pages_of(kPageSize));
  Guarded<std::uint8_t> packed(kPages * kStride, kPoison, kCanary);
  std::vector<std::uint8_t> plain(kPages * kPageSize * 132, kPoison);
  ASSERT_TRUE(index_cache_write(contract, keys.data(), 7, slots, {packed.data(), kPages, kStride}));
  ASSERT_TRUE(
      index_cache_write(contract, keys.data(), 7, slots, {plain.data(), kPages, kPageSize * 132}));
  for (std::int64_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(std::memcmp(packed.data() + page * kStride, plain.data() + page * kPageSize * 132,
                          index(kPageSize * 132)),
              0)
        << page;
    for (std::int64_t i = kPageSize * 132; i < kStride; ++i)
      ASSERT_EQ(packed[index(page * kStride + i)], kPoison);
  }
  EXPECT_TRUE(packed.intact());
}

// ---- Gather -------------------------------------------------------------------------------------

/// Output of a gather, poisoned and guarded.
struct Gathered {
  explicit Gathered(std::int64_t rows)
      : k_fp8(index(rows) * kDim, kPoison, kCanary), k_scale(index(rows), 7.0f, 9.0f) {}

  bool intact() const { return k_fp8.intact() && k_scale.intact(); }
  bool untouched(std::int64_t row) { return k_scale[index(row)] == 7.0f && all(row, kPoison); }
  bool zero(std::int64_t row) { return k_scale[index(row)] == 0.0f && all(row, 0); }
  bool all(std::int64_t row, std::uint8_t byte) {
    const std::uint8_t* codes = k_fp8.data() + row * kIndexHeadDim;
    return std::all_of(codes, codes + kDim, [byte](std::uint8_t c) { return c == byte; });
  }

  Guarded<std::uint8_t> k_fp8;
  Guarded<float> k_scale;
};

/// A pool whose token `slot` holds 128 codes `slot` and the scale `slot + 0.5`.
std::vector<std::uint8_t> ramp_pool(const IndexPages& contract, std::int64_t pages) {
  std::vector<std::uint8_t> pool(index(pages * page_bytes(contract.page_size)));
  for (std::int64_t slot = 0; slot < pages * contract.page_size; ++slot) {
    std::uint8_t* page = pool.data() + slot / contract.page_size * page_bytes(contract.page_size);
    const std::int64_t token = slot % contract.page_size;
    const float scale = static_cast<float>(slot) + 0.5f;
    for (std::int64_t d = 0; d < kIndexHeadDim; ++d)
      page[index_value_offset(contract, token, d)] = static_cast<std::uint8_t>(slot);
    std::memcpy(page + index_scale_offset(contract, token), &scale, sizeof scale);
  }
  return pool;
}

TEST(IndexCacheGather, FindsEachTokenOfEachRequestWithOrWithoutRowRequest) {
  const IndexPages contract = pages_of(2);
  const auto pool = ramp_pool(contract, 7);
  const std::vector<std::int32_t> table = {3, 5, 0, 6, 1, 2, 4, 0, 0}; // 3 requests, 3 columns
  const std::vector<std::int32_t> cu_seq_lens = {0, 5, 5, 8};          // the second one is empty
  const std::vector<std::int32_t> row_request = {0, 0, 0, 0, 0, 2, 2, 2};
  const std::vector<int> slots = {6, 7, 10, 11, 0, 8, 9, 0};
  for (bool given : {true, false}) {
    Gathered out(8);
    const Status status = index_cache_gather(
        contract, {pool.data(), 7, 2 * 132}, {table.data(), 3, 3}, cu_seq_lens,
        given ? std::span<const std::int32_t>(row_request) : std::span<const std::int32_t>(), 8,
        out.k_fp8.data(), out.k_scale.data());
    ASSERT_TRUE(status) << status.what();
    for (std::int64_t row = 0; row < 8; ++row) {
      const int slot = slots[index(row)];
      EXPECT_TRUE(out.all(row, static_cast<std::uint8_t>(slot))) << row;
      EXPECT_EQ(out.k_scale[index(row)], static_cast<float>(slot) + 0.5f) << row;
    }
    EXPECT_TRUE(out.intact());
  }
}

TEST(IndexCacheGather, RowsOutsideEveryRequestOrTheirOwnStay) {
  const IndexPages contract = pages_of(2);
  const auto pool = ramp_pool(contract, 3);
  // 2 requests, 2 columns; what follows them would pass for a third request.
  const std::vector<std::int32_t> table = {2, 1, 0, 2, 1, 1};
  const std::vector<std::int32_t> ends = {1, 4, 6, 7};
  const std::span cu_seq_lens(ends.data(), 3);
  const IndexCache<const std::uint8_t> cache = {pool.data(), 3, 2 * 132};
  {
    Gathered out(7); // rows 0 and 6 lie before and after all requests
    ASSERT_TRUE(index_cache_gather(contract, cache, {table.data(), 2, 2}, cu_seq_lens, {}, 7,
                                   out.k_fp8.data(), out.k_scale.data()));
    EXPECT_TRUE(out.untouched(0));
    EXPECT_TRUE(out.all(1, 4));
    EXPECT_TRUE(out.all(5, 1));
    EXPECT_TRUE(out.untouched(6));
    EXPECT_TRUE(out.intact());
  }
  {
    Gathered out(7);
    const std::vector<std::int32_t> row_request = {0, -1, 2, 1, 1, 0, 2};
    ASSERT_TRUE(index_cache_gather(contract, cache, {table.data(), 2, 2}, cu_seq_lens, row_request,
                                   7, out.k_fp8.data(), out.k_scale.data()));
    for (std::int64_t row : {0, 1, 2, 3, 5, 6})
      EXPECT_TRUE(out.untouched(row)) << row;
    EXPECT_TRUE(out.all(4, 0));
    EXPECT_EQ(out.k_scale[4], 0.5f);
  }
}

TEST(IndexCacheGather, S19_S22_ABadPageGivesZeros) {
  const IndexPages contract = pages_of(2);
  const auto pool = ramp_pool(contract, 3);
  const std::vector<std::int32_t> table = {2, 3, -1, 1, 0, 1}; // 2 requests, 3 columns, 3 pages
  const std::vector<std::int32_t> cu_seq_lens = {0, 6, 14};    // the second needs a 4th column
  Gathered out(14);
  ASSERT_TRUE(index_cache_gather(contract, {pool.data(), 3, 2 * 132}, {table.data(), 2, 3},
                                 cu_seq_lens, {}, 14, out.k_fp8.data(), out.k_scale.data()));
  for (std::int64_t row : {2, 3, 4, 5, 12, 13})
    EXPECT_TRUE(out.zero(row)) << row;
  EXPECT_TRUE(out.all(1, 5));
  EXPECT_TRUE(out.all(11, 3));
  EXPECT_EQ(out.k_scale[11], 3.5f);
  EXPECT_TRUE(out.intact());
}

TEST(IndexCacheGather, RefusesARaggedDescriptionAndNamesTheValue) {
  const IndexPages contract = pages_of(2);
  const auto pool = ramp_pool(contract, 3);
  const std::vector<std::int32_t> table = {0, 1, 2, 0};
  Gathered out(4);
  const auto refused = [&](std::vector<std::int32_t> cu_seq_lens,
                           std::vector<std::int32_t> row_request) {
    const Status status =
        index_cache_gather(contract, {pool.data(), 3, 2 * 132}, {table.data(), 2, 2}, cu_seq_lens,
                           row_request, 4, out.k_fp8.data(), out.k_scale.data());
    EXPECT_EQ(status.code(), Code::bad_input);
    return status.what();
  };
  EXPECT_EQ(refused({0, 4}, {}),
            "cu_seq_lens: found 2 entries, want 3, one more than block_table has rows");
  EXPECT_EQ(refused({0, 4, 2}, {}), "cu_seq_lens[2]: found 2 after 4, want no smaller");
  EXPECT_EQ(refused({0, 2, 4}, {0, 0, 1}),
            "row_request: found 3 entries, want none or 4, one a row");
  for (std::int64_t row = 0; row < 4; ++row)
    EXPECT_TRUE(out.untouched(row));
}

// ---- Write, then gather -------------------------------------------------------------------------

/// Writes keys of 3 requests of different lengths through slots and gathers them through the table:
/// all must be what the quantiser makes of each key, whatever the pages are.
void expect_round_trip(const IndexPages& contract) {
  const std::vector<std::int64_t> lengths = {70, 1, 133};
  const std::int64_t page_size = contract.page_size;
  const std::int64_t columns = (133 + page_size - 1) / page_size;
  const std::int64_t pages = 3 * columns;
  const std::int64_t stride = page_bytes(page_size) + 20;

  // Pages in an order that is neither ascending nor descending.
  std::vector<std::int32_t> table(index(pages));
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<std::int32_t>(i);
  std::shuffle(table.begin(), table.end(), std::mt19937(10));

  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> cu_seq_lens = {0};
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    for (std::int64_t p = 0; p < lengths[b]; ++p)
      slots.push_back(table[b * index(columns) + index(p / page_size)] * page_size + p % page_size);
    cu_seq_lens.push_back(static_cast<std::int32_t>(slots.size()));
  }
  const auto rows = std::ssize(slots);
  const auto keys = random_keys(slots.size(), 11);
  const IndexKeyQuant quant = quant_of(contract);

  Guarded<std::uint8_t> pool(index(pages * stride), kPoison, kCanary);
  Status status = index_cache_write(quant, keys.data(), rows, slots, {pool.data(), pages, stride});
  ASSERT_TRUE(status) << status.what();
  Gathered out(rows);
  status = index_cache_gather(contract, {pool.data(), pages, stride}, {table.data(), 3, columns},
                              cu_seq_lens, {}, rows, out.k_fp8.data(), out.k_scale.data());
  ASSERT_TRUE(status) << status.what();
  for (std::int64_t row = 0; row < rows; ++row) {
    const Record record = quantised(quant, keys.data() + row * kIndexHeadDim);
    ASSERT_EQ(std::memcmp(out.k_fp8.data() + row * kIndexHeadDim, record.codes.data(), kDim), 0)
        << "page size " << page_size << ", row " << row;
    ASSERT_EQ(out.k_scale[index(row)], record.scale);
  }
  EXPECT_TRUE(out.intact());
  EXPECT_TRUE(pool.intact());
}

TEST(IndexCache, S10_WhatIsWrittenIsGatheredForAnyPageSize) {
  for (std::int64_t page_size : {1, 2, 16, 53, 61, 64, 256})
    ASSERT_NO_FATAL_FAILURE(expect_round_trip(pages_of(page_size)));
  for (std::int64_t page_size : {16, 48, 64, 128})
    ASSERT_NO_FATAL_FAILURE(
        expect_round_trip(pages_of(page_size, IndexPageLayout::mfma_preshuffle)));
}

TEST(IndexCache, S12_PagesBeyond4GiBAreReached) {
  constexpr std::int64_t kPages = 4, kStride = (std::int64_t{1} << 31) + 132 * 2;
  void* reserved = mmap(nullptr, kPages * kStride, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) GTEST_SKIP() << "NOT CHECKED: cannot reserve 8 GiB of address space";
  auto* pool = static_cast<std::uint8_t*>(reserved);
  const auto keys = random_keys(2, 12);
  const std::vector<std::int64_t> slots = {3, 7}; // token 1 of pages 1 and 3
  const IndexKeyQuant contract = quant_of(pages_of(2));
  ASSERT_TRUE(index_cache_write(contract, keys.data(), 2, slots, {pool, kPages, kStride}));
  for (std::size_t t : {0u, 1u}) {
    const Record record = quantised(contract, keys.data() + t * kDim);
    const std::uint8_t* page = pool + (t == 0 ? 1 : 3) * kStride;
    EXPECT_EQ(std::memcmp(page + kDim, record.codes.data(), kDim), 0);
  }
  const std::vector<std::int32_t> table = {3};
  const std::vector<std::int32_t> cu_seq_lens = {0, 2};
  Gathered out(2);
  ASSERT_TRUE(index_cache_gather(contract.pages, {pool, kPages, kStride}, {table.data(), 1, 1},
                                 cu_seq_lens, {}, 2, out.k_fp8.data(), out.k_scale.data()));
  EXPECT_EQ(out.k_scale[1], quantised(contract, keys.data() + kDim).scale);
  munmap(reserved, kPages * kStride);
}

TEST(IndexCache, BytesDoNotDependOnTheNumberOfThreads) {
  const auto keys = random_keys(1000, 13);
  std::vector<std::int64_t> slots(1000);
  for (std::size_t t = 0; t < slots.size(); ++t)
    slots[t] = static_cast<std::int64_t>(t * 7 % 500); // every slot twice
  const std::vector<std::int32_t> table = {4, 3, 2, 1, 0};
  const std::vector<std::int32_t> cu_seq_lens = {0, 500};
  std::vector<std::uint8_t> first;
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    std::vector<std::uint8_t> bytes(5 * 100 * 132 + 500 * 132);
    std::uint8_t* gathered = bytes.data() + 5 * 100 * 132;
    ASSERT_TRUE(index_cache_write(quant_of(pages_of(100)), keys.data(), 1000, slots,
                                  {bytes.data(), 5, 100 * 132}));
    std::vector<float> scales(500);
    ASSERT_TRUE(index_cache_gather(pages_of(100), {bytes.data(), 5, 100 * 132},
                                   {table.data(), 1, 5}, cu_seq_lens, {}, 500, gathered,
                                   scales.data()));
    std::memcpy(gathered + 500 * kDim, scales.data(), 500 * 4);
    if (threads == 1) first = bytes;
    EXPECT_EQ(bytes, first) << threads;
  }
}

// ---- Recordings ---------------------------------------------------------------------------------

/// Writes the recorded keys into a pool of `fill` and compares with the recorded pool.
void expect_recorded_write(testing::Safetensors& file, const std::string& cache,
                           const IndexPages& pages, std::uint8_t fill, std::int64_t page_offset) {
  const auto want = file.values<std::uint8_t>(cache);
  const auto keys = file.values<std::uint16_t>("index_k");
  const auto slots = file.values<std::int64_t>("slot_mapping");
  const std::int64_t stride = file.extent(cache, 1);
  std::vector<std::uint8_t> pool(want.size(), fill);
  const Status status =
      index_cache_write(quant_of(pages), keys.data(), file.extent("index_k", 0), slots,
                        {pool.data() + page_offset, file.extent(cache, 0), stride});
  ASSERT_TRUE(status) << status.what();
  for (std::size_t i = 0; i < pool.size(); ++i)
    ASSERT_EQ(pool[i], want[i]) << cache << ": page " << i / index(stride) << ", byte "
                                << i % index(stride);
}

/// Gathers from the recorded pool and compares; rows without a page hold `unwritten` upstream.
void expect_recorded_gather(testing::Safetensors& file, const IndexPages& pages,
                            const std::vector<std::int32_t>& row_request, std::uint8_t k_fill,
                            float scale_fill) {
  const auto cache = file.values<std::uint8_t>("index_cache");
  const auto table = file.values<std::int32_t>("gather_block_table");
  const auto cu_seq_lens = file.values<std::int32_t>("gather_cu_seq_lens");
  const auto want_k = file.values<std::uint8_t>("gathered_k");
  const auto want_scale = file.values<float>("gathered_scale");
  const auto rows = std::ssize(want_scale);

  std::vector<std::uint8_t> k_fp8(want_k.size(), k_fill);
  std::vector<float> k_scale(want_scale.size(), scale_fill);
  const Status status = index_cache_gather(
      pages, {cache.data(), file.extent("index_cache", 0), file.extent("index_cache", 1)},
      {table.data(), file.extent("gather_block_table", 0), file.extent("gather_block_table", 1)},
      cu_seq_lens, row_request, rows, k_fp8.data(), k_scale.data());
  ASSERT_TRUE(status) << status.what();
  for (std::size_t row = 0; row < want_scale.size(); ++row) {
    ASSERT_EQ(k_scale[row], want_scale[row]) << row;
    const std::uint8_t* got = k_fp8.data() + row * kDim;
    const std::uint8_t* want = want_k.data() + row * kDim;
    if (want_scale[row] == 0) { // no page: upstream leaves its fill, we write zeros (spec 11)
      for (std::size_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(got[d], 0) << row;
        ASSERT_EQ(want[d], k_fill) << row;
      }
    } else {
      ASSERT_EQ(std::memcmp(got, want, kDim), 0) << row;
    }
  }
}

TEST(IndexCacheRecorded, CudaWriterAndGatherAreReproducedByteForByte) {
  DSAKIT_NEED_RECORDING("kernel_cache_write");
  testing::Safetensors file(testing::recording_path("kernel_cache_write"));
  ASSERT_NO_FATAL_FAILURE(expect_recorded_write(file, "index_cache", pages_of(64), 0, 0));
  expect_recorded_gather(file, pages_of(64), {}, 0, 0);
}

class IndexInsertRecorded : public ::testing::TestWithParam<IndexPageLayout> {
protected:
  std::string recording() const {
    return GetParam() == IndexPageLayout::block_flat ? "kernel_index_insert_normal"
                                                     : "kernel_index_insert_shuffle";
  }
};

TEST_P(IndexInsertRecorded, RocmWriterIsReproducedByteForByte) {
  DSAKIT_NEED_RECORDING(recording());
  testing::Safetensors file(testing::recording_path(recording()));
  expect_recorded_write(file, "index_cache", pages_of(64, GetParam()), 0xA5, 0);
  expect_recorded_write(file, "index_cache_bs16", pages_of(16, GetParam()), 0xA5, 0);
  if (GetParam() == IndexPageLayout::block_flat) // recorded for this layout only
    expect_recorded_write(file, "index_cache_packed", pages_of(64, GetParam()), 0xA5, 64 * 132);
}

TEST_P(IndexInsertRecorded, RocmGatherIsReproducedButForRowsWithoutAPage) {
  DSAKIT_NEED_RECORDING(recording());
  testing::Safetensors file(testing::recording_path(recording()));
  const auto scales = file.values<float>("gathered_scale");
  ASSERT_GT(std::count(scales.begin(), scales.end(), 0.0f), 0);
  expect_recorded_gather(file, pages_of(64, GetParam()),
                         file.values<std::int32_t>("gather_token_to_seq"), 0x5A, 7.0f);
}

INSTANTIATE_TEST_SUITE_P(Layouts, IndexInsertRecorded,
                         ::testing::Values(IndexPageLayout::block_flat,
                                           IndexPageLayout::mfma_preshuffle),
                         [](const auto& info) { return std::string(name(info.param)); });

class LayerCacheRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerCacheRecorded, EveryStepTurnsThePoolBeforeIntoThePoolAfter) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  int steps = 0;
  for (;; ++steps) {
    const std::string step = "steps." + std::to_string(steps) + ".";
    if (!file.has(step + "index_k")) break;
    const bool fnuz = file.read(step + "index_q_fp8").dtype == Dtype::float8_e4m3fnuz;
    const IndexPages pages = pages_of(64, IndexPageLayout::block_flat,
                                      fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn);
    auto pool = file.values<std::uint8_t>(step + "index_cache_before");
    const auto keys = file.values<std::uint16_t>(step + "index_k");
    const auto slots = file.values<std::int64_t>(step + "slot_mapping");
    const Status status =
        index_cache_write(quant_of(pages), keys.data(), file.extent(step + "index_k", 0), slots,
                          {pool.data(), file.extent(step + "index_cache_before", 0), 64 * 132});
    ASSERT_TRUE(status) << status.what();
    EXPECT_TRUE(pool == file.values<std::uint8_t>(step + "index_cache_after")) << step;
    EXPECT_FALSE(pool == file.values<std::uint8_t>(step + "index_cache_before")) << step;
  }
  EXPECT_GT(steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, LayerCacheRecorded,
                         ::testing::Values("decode_next_n2", "decode_fnuz",
                                           "prefill_no_q_lora_rmsnorm_yarn",
                                           "prefill_q_lora_layernorm_gate"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace index_cache_test
} // namespace dsakit::reference
