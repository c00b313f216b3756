#include "dsakit/reference/formats.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace formats_test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Fp8Encoding kFn = Fp8Encoding::e4m3fn;
constexpr Fp8Encoding kFnuz = Fp8Encoding::e4m3fnuz;

int largest_code(Fp8Encoding encoding) {
  return encoding == kFn ? 0x7E : 0x7F;
}

std::uint8_t byte(int code) {
  return static_cast<std::uint8_t>(code);
}

TEST(Fp8Decode, FnNormalsAreFp32WithTheExponentRebased) {
  for (int code = 0x08; code <= 0x7E; ++code) {
    const auto bits = static_cast<std::uint32_t>(((code >> 3) + 120) << 23 | (code & 7) << 20);
    EXPECT_EQ(decode_fp8(kFn, byte(code)), std::bit_cast<float>(bits)) << code;
    EXPECT_EQ(decode_fp8(kFn, byte(code | 0x80)), -std::bit_cast<float>(bits)) << code;
  }
}

TEST(Fp8Decode, FnSubnormalsAreMultiplesOf2ToMinus9) {
  for (int code = 0; code < 8; ++code)
    EXPECT_EQ(decode_fp8(kFn, byte(code)), static_cast<float>(code) / 512.0f) << code;
  EXPECT_TRUE(std::signbit(decode_fp8(kFn, 0x80)));
  EXPECT_EQ(decode_fp8(kFn, 0x80), 0.0f);
}

TEST(Fp8Decode, S01_ABytesReadAsFnuzIsHalfOfItsFnValueExceptThreeCodes) {
  for (int code = 0; code < 256; ++code) {
    if (code == 0x80 || code == 0x7F || code == 0xFF) continue;
    EXPECT_EQ(decode_fp8(kFnuz, byte(code)) * 2, decode_fp8(kFn, byte(code))) << code;
  }
  EXPECT_EQ(decode_fp8(kFn, 0x38), 1.0f);
  EXPECT_EQ(decode_fp8(kFnuz, 0x38), 0.5f);
  EXPECT_TRUE(std::isnan(decode_fp8(kFnuz, 0x80)));
  EXPECT_TRUE(std::isnan(decode_fp8(kFn, 0x7F)));
  EXPECT_TRUE(std::isnan(decode_fp8(kFn, 0xFF)));
  EXPECT_EQ(decode_fp8(kFnuz, 0x7F), 240.0f);
  EXPECT_EQ(decode_fp8(kFnuz, 0xFF), -240.0f);
}

TEST(Fp8Encode, EveryFiniteCodeReturnsToItself) {
  for (Fp8Encoding encoding : {kFn, kFnuz})
    for (int code = 0; code < 256; ++code) {
      const float value = decode_fp8(encoding, byte(code));
      if (std::isnan(value)) continue;
      EXPECT_EQ(encode_fp8_saturating(encoding, value), code);
      EXPECT_EQ(encode_fp8_ieee(encoding, value), code);
    }
}

TEST(Fp8Encode, HalfWayGoesToTheEvenCodeAndEitherSideToTheNearer) {
  for (Fp8Encoding encoding : {kFn, kFnuz})
    for (int code = 0; code < largest_code(encoding); ++code)
      for (int sign : {0, 0x80}) {
        const float low = decode_fp8(encoding, byte(code));
        const float high = decode_fp8(encoding, byte(code + 1));
        const float middle = (low + high) / 2; // exact in fp32
        const auto encode = [&](float magnitude) {
          const float value = sign ? -magnitude : magnitude;
          const std::uint8_t saturating = encode_fp8_saturating(encoding, value);
          EXPECT_EQ(encode_fp8_ieee(encoding, value), saturating) << value;
          return saturating;
        };
        // Negative zero has a code of its own in fn only.
        const auto signed_code = [&](int c) { return c == 0 && encoding == kFnuz ? 0 : c | sign; };
        EXPECT_EQ(encode(middle), signed_code(code % 2 == 0 ? code : code + 1)) << middle;
        EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), signed_code(code)) << middle;
        EXPECT_EQ(encode(std::nextafter(middle, kInf)), signed_code(code + 1)) << middle;
      }
}

TEST(Fp8Encode, S03_OverflowSaturatesInOneFunctionAndIsNaNInTheOther) {
  struct Case {
    Fp8Encoding encoding;
    float value;
    int saturating;
    int ieee;
  };
  const Case cases[] = {
      {kFn, 448.0f, 0x7E, 0x7E},   {kFn, 449.0f, 0x7E, 0x7E},   {kFn, 463.9f, 0x7E, 0x7E},
      {kFn, 464.0f, 0x7E, 0x7E},   {kFn, 464.1f, 0x7E, 0x7F},   {kFn, 465.0f, 0x7E, 0x7F},
      {kFn, 466.0f, 0x7E, 0x7F},   {kFn, 1e4f, 0x7E, 0x7F},     {kFn, 3e38f, 0x7E, 0x7F},
      {kFn, kInf, 0x7E, 0x7F},     {kFn, -464.1f, 0xFE, 0xFF},  {kFn, -kInf, 0xFE, 0xFF},
      {kFn, kNaN, 0x7F, 0x7F},     {kFn, -kNaN, 0x7F, 0xFF},    {kFnuz, 240.0f, 0x7F, 0x7F},
      {kFnuz, 247.9f, 0x7F, 0x7F}, {kFnuz, 248.0f, 0x7F, 0x80}, {kFnuz, 248.1f, 0x7F, 0x80},
      {kFnuz, 1e4f, 0x7F, 0x80},   {kFnuz, kInf, 0x7F, 0x80},   {kFnuz, -248.0f, 0xFF, 0x80},
      {kFnuz, -kInf, 0xFF, 0x80},  {kFnuz, kNaN, 0x80, 0x80},   {kFnuz, -kNaN, 0x80, 0x80},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(encode_fp8_saturating(c.encoding, c.value), c.saturating)
        << name(c.encoding) << " " << c.value;
    EXPECT_EQ(encode_fp8_ieee(c.encoding, c.value), c.ieee) << name(c.encoding) << " " << c.value;
  }
  EXPECT_EQ(fp8_max(kFn), 448.0f);
  EXPECT_EQ(fp8_max(kFnuz), 240.0f);
}

TEST(Fp8Encode, NegativeUnderflowIsMinusZeroInFnAndPlainZeroInFnuz) {
  for (float value : {-0.0f, -1e-30f, -0x1p-149f, -0x1p-11f}) {
    EXPECT_EQ(encode_fp8_saturating(kFn, value), 0x80) << value;
    EXPECT_EQ(encode_fp8_ieee(kFn, value), 0x80) << value;
    EXPECT_EQ(encode_fp8_saturating(kFnuz, value), 0x00) << value;
    EXPECT_EQ(encode_fp8_ieee(kFnuz, value), 0x00) << value;
  }
}

TEST(Fp8Encode, AgreesWithRecordedConversionsOnAll65536Bf16Patterns) {
  DSAKIT_NEED_RECORDING("kernel_fp8_cast");
  testing::Safetensors file(testing::recording_path("kernel_fp8_cast"));
  const auto x = file.values<std::uint16_t>("x");
  const auto fn_saturating = file.values<std::uint8_t>("fn_triton_cuda");
  const auto fn_ieee = file.values<std::uint8_t>("fn_torch_cuda");
  const auto fnuz_ieee = file.values<std::uint8_t>("fnuz_torch_cuda");
  ASSERT_EQ(x.size(), 65536u);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = bf16_to_float(x[i]);
    ASSERT_EQ(encode_fp8_saturating(kFn, value), fn_saturating[i]) << i << ": " << value;
    ASSERT_EQ(encode_fp8_ieee(kFn, value), fn_ieee[i]) << i << ": " << value;
    ASSERT_EQ(encode_fp8_ieee(kFnuz, value), fnuz_ieee[i]) << i << ": " << value;
  }
}

TEST(Bf16, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(bits));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value), bits << 16);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    else
      EXPECT_EQ(float_to_bf16(value), bits);
  }
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3F80);            // tie, down to even
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3F82);  // tie, up to even
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f + 0x1p-23f), 0x3F81); // above the tie
  EXPECT_EQ(float_to_bf16(-1.0f - 0x1p-8f - 0x1p-23f), 0xBF81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80); // rounds up to infinity
  const float payload_in_low_bits = std::bit_cast<float>(0x7F800001u);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(payload_in_low_bits))));
}

TEST(Fp16, EveryPatternDecodesAsTheHardwareDecodesIt) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = fp16_to_float(static_cast<std::uint16_t>(bits));
    const float hardware = _cvtsh_ss(static_cast<std::uint16_t>(bits));
    if (std::isnan(hardware))
      EXPECT_TRUE(std::isnan(value)) << bits;
    else
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(hardware))
          << bits;
  }
}

/// The integer form of spec 2.2: with amax = m * 2^n and 1 <= m < 2.
int exponent_by_bits(float amax, float qmax) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(amax);
  int n = 0;
  while (bits >> 23 == 0) { // a subnormal: make it normal
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) * 2);
    --n;
  }
  n += static_cast<int>(bits >> 23) - 127;
  const std::uint32_t mantissa = bits & 0x7FFFFF;
  const std::uint32_t limit = qmax == 240 ? 0x700000 : 0x600000; // 1.875 or 1.75
  const int base = qmax == 448 ? 8 : 7;
  return mantissa <= limit ? n - base : n - base + 1;
}

void expect_exponent(float amax, float qmax) {
  const int e = ue8m0_exponent(amax, qmax);
  ASSERT_EQ(e, exponent_by_bits(amax, qmax)) << amax << " / " << qmax;
  ASSERT_LE(double{amax}, std::ldexp(double{qmax}, e));
  ASSERT_GT(double{amax}, std::ldexp(double{qmax}, e - 1));
}

TEST(Fp16, RoundsAsTheHardwareRoundsIt) {
  const auto expect_same = [](float value) {
    EXPECT_EQ(float_to_fp16(value), _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)) << value;
  };
  for (int bits = 0; bits < 0x10000; ++bits) { // every fp16, and the half-way point after it
    const float value = fp16_to_float(static_cast<std::uint16_t>(bits));
    const float next = fp16_to_float(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(value)) continue;
    for (float x : {value, (value + next) / 2}) {
      expect_same(x);
      expect_same(std::nextafter(x, kInf));
      expect_same(std::nextafter(x, -kInf));
    }
  }
  for (float x : {65519.996f, 65520.0f, 1e30f, kInf, -kInf})
    expect_same(x);
  EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(kNaN))));
}

TEST(Ue8m0Exponent, IsTheIntegerFormForEveryPositiveBf16) {
  for (std::uint16_t bits = 1; bits < 0x7F80; ++bits)
    for (float qmax : {448.0f, 240.0f, 224.0f})
      ASSERT_NO_FATAL_FAILURE(expect_exponent(bf16_to_float(bits), qmax));
}

TEST(Ue8m0Exponent, IsTheIntegerFormForFp32OnAndBesideEveryThreshold) {
  for (int n = -149; n < 128; ++n)
    for (float m : {1.0f, 1.75f, 1.875f})
      for (float qmax : {448.0f, 240.0f, 224.0f}) {
        const float amax = std::ldexp(m, n);
        for (float value : {std::nextafter(amax, 0.0f), amax, std::nextafter(amax, kInf)})
          if (value > 0) {
            ASSERT_NO_FATAL_FAILURE(expect_exponent(value, qmax));
          }
      }
}

TEST(Ue8m0Exponent, IsTheIntegerFormForRandomFp32) {
  std::mt19937 random(2202);
  std::uniform_int_distribution<std::uint32_t> positive_finite(1, 0x7F7FFFFF);
  for (int i = 0; i < 300'000; ++i)
    for (float qmax : {448.0f, 240.0f, 224.0f})
      ASSERT_NO_FATAL_FAILURE(expect_exponent(std::bit_cast<float>(positive_finite(random)), qmax));
}

} // namespace formats_test
} // namespace dsakit::reference
