#include "dsakit/reference/mla_cache.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"
#include "support/same_bits.hpp"

namespace dsakit::reference {
namespace mla_cache_test {

using testing::Guarded;

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::uint8_t kCanary = 0xC9;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kFltMin = 1.17549435e-38f;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

MlaQuant quant_of(Fp8Encoding encoding, ActivationDtype dtype = ActivationDtype::bf16) {
  return {encoding, dtype, encoding == Fp8Encoding::e4m3fn ? 448.0f : 224.0f};
}

/// Inputs of some tokens.
struct Tokens {
  std::vector<std::uint16_t> kv_c; ///< [rows, 512]
  std::vector<std::uint16_t> k_pe; ///< [rows, 64]

  std::int64_t rows() const { return std::ssize(k_pe) / kMlaPe; }
};

Tokens zero_tokens(std::int64_t rows) {
  return {std::vector<std::uint16_t>(index(rows * kMlaLatent)),
          std::vector<std::uint16_t>(index(rows * kMlaPe))};
}

Tokens random_tokens(std::int64_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 12);
  Tokens tokens = zero_tokens(rows);
  for (std::size_t i = 0; i < tokens.kv_c.size(); i += kMlaTile) {
    const float size = std::ldexp(1.0f, exponent(random));
    for (std::size_t d = i; d < i + kMlaTile; ++d)
      tokens.kv_c[d] = float_to_bf16(size * normal(random));
  }
  for (std::uint16_t& bits : tokens.k_pe)
    bits = static_cast<std::uint16_t>(random());
  return tokens;
}

/// A record's parts.
struct Record {
  std::array<std::uint8_t, kMlaLatent> codes;
  std::array<float, 4> scales;
  std::array<std::uint16_t, kMlaPe> pe;
};
static_assert(sizeof(Record) == kMlaRecord); // so that it can be copied from and to the cache

Record record_at(const std::uint8_t* bytes) {
  Record record;
  std::memcpy(&record, bytes, sizeof record);
  return record;
}

/// The record of row `row`, through a pool of one page of one token.
Record written(const MlaQuant& contract, const Tokens& tokens, std::int64_t row = 0) {
  Guarded<std::uint8_t> pool(kMlaRecord, kPoison, kCanary);
  const std::int64_t slot = 0;
  const Status status = mla_cache_write(contract, tokens.kv_c.data() + row * kMlaLatent,
                                        tokens.k_pe.data() + row * kMlaPe, 1, {&slot, 1},
                                        {pool.data(), 1, 1, kMlaRecord, kMlaRecord});
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(pool.intact());
  return record_at(pool.data());
}

bool same(const Record& a, const Record& b) {
  return testing::same_bits(a, b);
}

// ---- The quantiser ------------------------------------------------------------------------------

TEST(MlaQuantiser, S02_AZeroTileHasZeroCodesAndTheSmallestNormalScale) {
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
    Tokens tokens = random_tokens(1, 1);
    std::fill_n(tokens.kv_c.begin() + 2 * kMlaTile, kMlaTile, std::uint16_t{0});
    const Record record = written(quant_of(encoding), tokens);
    EXPECT_EQ(record.scales[2], kFltMin);
    EXPECT_TRUE(std::all_of(record.codes.begin() + 256, record.codes.begin() + 384,
                            [](int c) { return c == 0; }));
    std::array<float, kMlaLatent + kMlaPe> values;
    read_mla_record(encoding, MlaScaleRead::fp32, reinterpret_cast<const std::uint8_t*>(&record),
                    values.data());
    EXPECT_TRUE(
        std::all_of(values.begin() + 256, values.begin() + 384, [](float v) { return v == 0; }));
    for (int tile : {0, 1, 3})
      EXPECT_GT(record.scales[index(tile)], kFltMin);
  }
}

TEST(MlaQuantiser, TheScaleIsTheUnroundedQuotientAndDividesExactly) {
  Tokens tokens = zero_tokens(1);
  tokens.kv_c[0] = float_to_bf16(300);
  tokens.kv_c[1] = float_to_bf16(-37);
  const Record record = written(quant_of(Fp8Encoding::e4m3fn), tokens);
  EXPECT_EQ(record.scales[0], 300.0f / 448.0f);
  EXPECT_EQ(record.codes[0], 0x7E);
  EXPECT_EQ(record.codes[1],
            encode_fp8_saturating(Fp8Encoding::e4m3fn, -37.0f / (300.0f / 448.0f)));
}

TEST(MlaQuantiser, S04_EveryValueIsWithinHalfACodeStepOfItsInput) {
  const Tokens tokens = random_tokens(20, 2);
  for (Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (std::int64_t row = 0; row < 20; ++row) {
      const Record record = written(quant_of(encoding), tokens, row);
      for (std::int64_t d = 0; d < kMlaLatent; ++d) {
        const double scale = record.scales[index(d / kMlaTile)];
        const double x = bf16_to_float(tokens.kv_c[index(row * kMlaLatent + d)]);
        const double value = double{decode_fp8(encoding, record.codes[index(d)])} * scale;
        const double step =
            std::max(std::ldexp(1.0, std::ilogb(x / scale) - 3), double{decode_fp8(encoding, 1)});
        // An fp32 quotient is itself rounded, by up to 2^-20 of a step.
        ASSERT_LE(std::fabs(value - x), step / 2 * scale * (1 + 0x1p-18)) << row << " " << d;
      }
    }
}

TEST(MlaQuantiser, S08_AScaleCoversItsTileAndNothingElse) {
  for (std::int64_t place : {0, 127, 128, 255, 256, 383, 384, 511})
    for (float sign : {1.0f, -1.0f}) {
      Tokens tokens = zero_tokens(1);
      std::fill(tokens.kv_c.begin(), tokens.kv_c.end(), float_to_bf16(0.125f));
      std::fill(tokens.k_pe.begin(), tokens.k_pe.end(), float_to_bf16(1000)); // no scale covers it
      tokens.kv_c[index(place)] = float_to_bf16(sign * 7);
      const Record record = written(quant_of(Fp8Encoding::e4m3fn), tokens);
      for (std::int64_t tile = 0; tile < 4; ++tile)
        EXPECT_EQ(record.scales[index(tile)], (tile == place / kMlaTile ? 7.0f : 0.125f) / 448.0f)
            << place;
    }
}

TEST(MlaQuantiser, KPeIsCopiedBitForBit) {
  Tokens tokens = random_tokens(3, 3);
  tokens.k_pe[kMlaPe + 5] = 0x7F81; // a signalling NaN
  tokens.k_pe[kMlaPe + 6] = 0x8000;
  const Record record = written(quant_of(Fp8Encoding::e4m3fn), tokens, 1);
  EXPECT_TRUE(std::equal(record.pe.begin(), record.pe.end(), tokens.k_pe.begin() + kMlaPe));
}

TEST(MlaQuantiser, NaNIsStoredAsNaNAndInfinitySaturatesUnderAFiniteScale) {
  for (auto [encoding, nan, largest, qmax] : {std::tuple{Fp8Encoding::e4m3fn, 0x7F, 0x7E, 448.0f},
                                              {Fp8Encoding::e4m3fnuz, 0x80, 0x7F, 224.0f}}) {
    Tokens tokens = zero_tokens(1);
    tokens.kv_c[130] = float_to_bf16(3);
    tokens.kv_c[131] = float_to_bf16(kNaN);
    tokens.kv_c[400] = float_to_bf16(-kInf);
    tokens.kv_c[401] = float_to_bf16(1);
    const Record record = written(quant_of(encoding), tokens);
    EXPECT_EQ(record.scales[1], 3 / qmax);
    EXPECT_EQ(record.codes[131], nan);
    EXPECT_EQ(record.scales[3], bf16_to_float(0x7F7F) / qmax);
    EXPECT_EQ(record.codes[400], largest | 0x80);
    EXPECT_EQ(record.codes[401], 0);
  }
}

TEST(MlaQuantiser, Fp16LatentsAreReadAsFp16) {
  Tokens tokens = zero_tokens(1);
  tokens.kv_c[5] = 0x7BFF;   // 65504
  tokens.kv_c[6] = 0xC500;   // -5
  tokens.kv_c[200] = 0x7C00; // infinity
  const Record record = written(quant_of(Fp8Encoding::e4m3fn, ActivationDtype::fp16), tokens);
  EXPECT_EQ(record.scales[0], 65504.0f / 448);
  EXPECT_EQ(record.codes[6], encode_fp8_saturating(Fp8Encoding::e4m3fn, -5.0f / (65504.0f / 448)));
  EXPECT_EQ(record.scales[1], 65504.0f / 448);
  EXPECT_EQ(record.codes[200], 0x7E);
}

// ---- Write --------------------------------------------------------------------------------------

TEST(MlaCacheWrite, RefusalsNameTheValueAndWriteNothing) {
  const Tokens tokens = random_tokens(3, 4);
  Guarded<std::uint8_t> pool(4 * 2 * kMlaRecord, kPoison, kCanary); // 4 pages of 2 tokens
  MlaCache<std::uint8_t> cache{pool.data(), 4, 2, 2 * kMlaRecord, kMlaRecord};
  const auto refused = [&](std::vector<std::int64_t> slots, std::int64_t rows) {
    const Status status = mla_cache_write(quant_of(Fp8Encoding::e4m3fn), tokens.kv_c.data(),
                                          tokens.k_pe.data(), rows, slots, cache);
    EXPECT_EQ(status.code(), Code::bad_input);
    return status.what();
  };
  EXPECT_EQ(refused({0, 1, 8}, 3), "slot_mapping[2]: found 8, want -1 or a slot below 8");
  EXPECT_EQ(refused({0, -2, 1}, 3), "slot_mapping[1]: found -2, want -1 or a slot below 8");
  EXPECT_EQ(refused({0, 1, 2}, 2),
            "kv_c and k_pe: found 2 rows, want at least 3, one for each of slot_mapping");
  cache.record_stride = 655;
  EXPECT_EQ(refused({0}, 1), "mla_cache record stride: found 655 bytes, want at least 656");
  cache.record_stride = 656;
  cache.page_stride = 1311;
  EXPECT_EQ(refused({0}, 1), "mla_cache page stride: found 1311 bytes, want at least 1312");
  cache.page_size = 0;
  EXPECT_EQ(refused({0}, 1), "page_size: found 0, want at least 1");
  for (std::size_t i = 0; i < pool.size(); ++i)
    ASSERT_EQ(pool[i], kPoison);
  EXPECT_TRUE(pool.intact());
}

TEST(MlaCacheWrite, S13_S16_S20_EachRecordLiesAtItsSlotAndNothingElseIsWritten) {
  constexpr std::int64_t kPages = 3, kPageSize = 5;
  const Tokens tokens = random_tokens(7, 5);
  const std::vector<std::int64_t> slots = {14, -1, 3, 0, 7}; // the last two rows have no slot
  for (auto [record_stride, page_gap] : {std::pair{656, 0}, {656, 48}, {672, 0}, {720, 29}}) {
    const std::int64_t page_stride = kPageSize * record_stride + page_gap;
    Guarded<std::uint8_t> pool(index(kPages * page_stride), kPoison, kCanary);
    const Status status =
        mla_cache_write(quant_of(Fp8Encoding::e4m3fn), tokens.kv_c.data(), tokens.k_pe.data(), 7,
                        slots, {pool.data(), kPages, kPageSize, page_stride, record_stride});
    ASSERT_TRUE(status) << status.what();
    std::vector<std::uint8_t> want(pool.size(), kPoison);
    for (std::int64_t t : {0, 2, 3, 4}) {
      const Record record = written(quant_of(Fp8Encoding::e4m3fn), tokens, t);
      const std::int64_t slot = slots[index(t)];
      std::memcpy(want.data() + slot / kPageSize * page_stride + slot % kPageSize * record_stride,
                  &record, sizeof record);
    }
    EXPECT_EQ(std::memcmp(pool.data(), want.data(), want.size()), 0) << record_stride;
    EXPECT_TRUE(pool.intact());
  }
}

TEST(MlaCacheWrite, OfTwoTokensWithOneSlotTheLaterStays) {
  const Tokens tokens = random_tokens(2, 6);
  std::vector<std::uint8_t> pool(kMlaRecord);
  const std::vector<std::int64_t> slots = {0, 0};
  ASSERT_TRUE(mla_cache_write(quant_of(Fp8Encoding::e4m3fn), tokens.kv_c.data(), tokens.k_pe.data(),
                              2, slots, {pool.data(), 1, 1, kMlaRecord, kMlaRecord}));
  EXPECT_TRUE(same(record_at(pool.data()), written(quant_of(Fp8Encoding::e4m3fn), tokens, 1)));
}

TEST(MlaCacheWrite, BytesDoNotDependOnTheNumberOfThreads) {
  const Tokens tokens = random_tokens(131, 7);
  std::vector<std::int64_t> slots;
  for (std::int64_t t = 0; t < 131; ++t)
    slots.push_back(t * 7 % 140);
  std::vector<std::uint8_t> want;
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    std::vector<std::uint8_t> pool(140 * kMlaRecord);
    ASSERT_TRUE(mla_cache_write(quant_of(Fp8Encoding::e4m3fn), tokens.kv_c.data(),
                                tokens.k_pe.data(), 131, slots,
                                {pool.data(), 14, 10, 10 * kMlaRecord, kMlaRecord}));
    if (want.empty()) want = pool;
    EXPECT_TRUE(pool == want) << threads;
  }
}

// ---- Read ---------------------------------------------------------------------------------------

TEST(MlaRecordRead, RoundsTheProductToBf16UnderTheScaleOfTheTile) {
  Record record{};
  record.scales = {0.3f, 1 + 0x1p-8f + 0x1p-20f, 0.5f, 3.0f};
  record.codes[127] = encode_fp8_saturating(Fp8Encoding::e4m3fn, 1.75f);
  record.codes[128] = encode_fp8_saturating(Fp8Encoding::e4m3fn, -1);
  record.codes[511] = encode_fp8_saturating(Fp8Encoding::e4m3fn, 13);
  record.pe[0] = 0x8000;
  record.pe[63] = float_to_bf16(-7);
  const auto read = [&](Fp8Encoding encoding, MlaScaleRead scale_read) {
    Guarded<float> values(kMlaLatent + kMlaPe, 777, -555);
    read_mla_record(encoding, scale_read, reinterpret_cast<const std::uint8_t*>(&record),
                    values.data());
    EXPECT_TRUE(values.intact());
    return std::vector<float>(values.data(), values.data() + values.size());
  };
  const auto values = read(Fp8Encoding::e4m3fn, MlaScaleRead::fp32);
  EXPECT_EQ(values[127], bf16_to_float(float_to_bf16(1.75f * 0.3f)));
  EXPECT_EQ(values[128], -(1 + 0x1p-7f)); // above the tie, up
  EXPECT_EQ(values[511], 39);
  EXPECT_EQ(values[512], 0);
  EXPECT_TRUE(std::signbit(values[512]));
  EXPECT_EQ(values[575], -7);
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), 576 - 4);
  // The scale of the first tile rounds up to 0.30078125 before the product.
  EXPECT_EQ(read(Fp8Encoding::e4m3fn, MlaScaleRead::bf16)[127],
            bf16_to_float(float_to_bf16(1.75f * bf16_to_float(float_to_bf16(0.3f)))));
  EXPECT_NE(read(Fp8Encoding::e4m3fn, MlaScaleRead::bf16)[127], values[127]);
  EXPECT_EQ(read(Fp8Encoding::e4m3fnuz, MlaScaleRead::fp32)[511], 19.5f); // S01: half
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(MlaCacheRecorded, VllmBytesAreReproduced) {
  DSAKIT_NEED_RECORDING("kernel_cache_write");
  testing::Safetensors file(testing::recording_path("kernel_cache_write"));
  const auto kv_c = file.values<std::uint16_t>("kv_c");
  const auto k_pe = file.values<std::uint16_t>("k_pe");
  const auto want = file.values<std::uint8_t>("mla_cache");
  std::vector<std::uint8_t> pool(want.size());
  const Status status =
      mla_cache_write(quant_of(Fp8Encoding::e4m3fn), kv_c.data(), k_pe.data(),
                      file.extent("kv_c", 0), file.values<std::int64_t>("slot_mapping"),
                      {pool.data(), file.extent("mla_cache", 0), 64, 64 * kMlaRecord, kMlaRecord});
  ASSERT_TRUE(status) << status.what();
  EXPECT_TRUE(pool == want);
}

class LayerMlaCacheRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerMlaCacheRecorded, EveryStepTurnsThePoolBeforeIntoThePoolAfter) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  const bool fnuz = file.has("steps.0.index_q_fp8") &&
                    file.read("steps.0.index_q_fp8").dtype == Dtype::float8_e4m3fnuz;
  int steps = 0;
  for (;; ++steps) {
    const std::string step = "steps." + std::to_string(steps) + ".";
    if (!file.has(step + "kv_c")) break;
    auto pool = file.values<std::uint8_t>(step + "mla_cache_before");
    const auto kv_c = file.values<std::uint16_t>(step + "kv_c");
    const auto k_pe = file.values<std::uint16_t>(step + "k_pe");
    const Status status = mla_cache_write(
        quant_of(fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn), kv_c.data(), k_pe.data(),
        file.extent(step + "kv_c", 0), file.values<std::int64_t>(step + "slot_mapping"),
        {pool.data(), file.extent(step + "mla_cache_before", 0), 64, 64 * kMlaRecord, kMlaRecord});
    ASSERT_TRUE(status) << status.what();
    EXPECT_TRUE(pool == file.values<std::uint8_t>(step + "mla_cache_after")) << step;
    EXPECT_FALSE(pool == file.values<std::uint8_t>(step + "mla_cache_before")) << step;
  }
  EXPECT_GT(steps, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, LayerMlaCacheRecorded,
                         ::testing::Values("decode_next_n2", "decode_fnuz", "decode_mxfp4",
                                           "prefill_no_q_lora_rmsnorm_yarn",
                                           "prefill_q_lora_layernorm_gate"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace mla_cache_test
} // namespace dsakit::reference
