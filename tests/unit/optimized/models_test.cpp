// The models of AMD's instructions, against their published definitions rather than our kernels:
// lane maps as AMD's matrix instruction calculator gives them
// (ROCm/amd_matrix_instruction_calculator, CDNA3), DPP and conversions as the MI300 ISA document
// does.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "device/lane.hpp"
#include "runtime/host_executor.hpp"

namespace dsakit::optimized::host {
namespace {

namespace amd = gfx942::amd;

void on_wave(const std::function<void(int)>& lane) {
  const std::function<void()> body = [&] { lane(static_cast<int>(thread_index().x)); };
  const Status status = run_grid({}, Launch{"kernel", {1, 1, 1}, {64, 1, 1}, nullptr, 0, body});
  ASSERT_TRUE(status) << status.what();
}

/// One row of the calculator's table: where element (row or column, k) of an operand lives.
struct OperandPlace {
  int row, k, lane, byte;
};
// v_mfma_f32_16x16x32_fp8_fp8, A[i][k] and B[k][j] alike: v0 holds bytes 0 to 3, v1 bytes 4 to 7.
constexpr OperandPlace kFp8Places[] = {{0, 0, 0, 0},   {0, 7, 0, 7},   {0, 8, 16, 0},
                                       {5, 15, 21, 7}, {9, 16, 41, 0}, {15, 23, 47, 7},
                                       {3, 24, 51, 0}, {15, 31, 63, 7}};
// D[i][j]: lane, register.
struct ResultPlace {
  int row, column, lane, reg;
};
constexpr ResultPlace kResultPlaces[] = {{0, 0, 0, 0},   {3, 0, 0, 3},   {4, 0, 16, 0},
                                         {7, 9, 25, 3},  {8, 15, 47, 0}, {11, 2, 34, 3},
                                         {12, 1, 49, 0}, {15, 15, 63, 3}};

TEST(Mfma16x16x32Fp8, OperandsAndResultLieWhereTheIsaSays) {
  constexpr std::uint64_t kOne = 0x40; // FNUZ 1.0
  for (const OperandPlace& place : kFp8Places)
    for (const ResultPlace& result : kResultPlaces) {
      // A has one 1 at (result.row, place.k), B one at (place.k, result.column); so has D.
      const int a_lane = place.lane - place.row + result.row;
      const int b_lane = place.lane - place.row + result.column;
      on_wave([&](int lane) {
        const std::uint64_t a = lane == a_lane ? kOne << 8 * place.byte : 0;
        const std::uint64_t b = lane == b_lane ? kOne << 8 * place.byte : 0;
        const amd::Float4 d = amd::mfma_f32_16x16x32_fp8_fp8(a, b, amd::Float4{});
        for (int r = 0; r < 4; ++r)
          EXPECT_EQ(d[r], lane == result.lane && r == result.reg ? 1.0f : 0.0f)
              << "k " << place.k << " row " << result.row << " column " << result.column;
      });
    }
}

TEST(Mfma16x16x16Bf16, OperandsAndResultLieWhereTheIsaSays) {
  // A[i][k]: lane i + 16 (k / 4), half-word k % 4.
  constexpr OperandPlace places[] = {{0, 3, 0, 3}, {2, 4, 18, 0}, {7, 11, 39, 3}, {15, 12, 63, 0}};
  for (const OperandPlace& place : places)
    for (const ResultPlace& result : kResultPlaces) {
      const int a_lane = place.lane - place.row + result.row;
      const int b_lane = place.lane - place.row + result.column;
      on_wave([&](int lane) {
        amd::Short4 a = {};
        amd::Short4 b = {};
        if (lane == a_lane) a[place.byte] = 0x3F80;
        if (lane == b_lane) b[place.byte] = 0x4000;
        const amd::Float4 d = amd::mfma_f32_16x16x16_bf16(a, b, amd::Float4{1, 1, 1, 1});
        for (int r = 0; r < 4; ++r)
          EXPECT_EQ(d[r], lane == result.lane && r == result.reg ? 3.0f : 1.0f);
      });
    }
}

TEST(CrossLane, BpermuteBallotReadfirstlaneAndRowRor) {
  on_wave([](int lane) {
    EXPECT_EQ(amd::lane_id(), lane);
    EXPECT_EQ(amd::ds_bpermute((lane ^ 37) * 4, 1000 - lane), 1000 - (lane ^ 37));
    EXPECT_EQ(amd::ds_bpermute(4 * 64 + 8, lane), 2); // the address wraps at 64 lanes
    EXPECT_EQ(amd::ballot(lane % 3 == 1), 0x2492492492492492u);
    EXPECT_EQ(amd::readfirstlane(lane - 7), -7);
    // Rotation to the right by 1: lane 0 of each row of 16 gets the row's last.
    EXPECT_EQ(amd::dpp_row_ror<1>(lane), lane % 16 == 0 ? lane + 15 : lane - 1);
    EXPECT_EQ(amd::dpp_row_ror<8>(lane), lane ^ 8);
    EXPECT_EQ(amd::dpp_quad_xor<1>(lane), lane ^ 1);
    EXPECT_EQ(amd::dpp_quad_xor<2>(lane), lane ^ 2);
    EXPECT_EQ(amd::dpp_quad_xor<3>(lane), lane ^ 3);
  });
}

// The reductions that kernels use on top: every lane of a row of 16 has the row's result.
TEST(CrossLane, SumAndMaximumOfEachRowOf16) {
  on_wave([](int lane) {
    const int row = lane / 16;
    const auto x = static_cast<float>((1 + row) << lane % 16);
    EXPECT_EQ(gfx942::sum_of_16(x), static_cast<float>(65535 * (1 + row)));
    EXPECT_EQ(gfx942::max_of_16(static_cast<std::uint32_t>((lane * 7) % 16 + 100 * row)),
              static_cast<std::uint32_t>(15 + 100 * row));
  });
}

// v_ldexp_f32: one rounding, subnormals kept, any exponent.
TEST(Ldexp, RoundsOnceToAnyFloat) {
  EXPECT_EQ(amd::ldexp_f32(1.5f, 3), 12.0f);
  EXPECT_EQ(amd::ldexp_f32(1.5f, -149), 0x1p-148f); // a tie, to even
  EXPECT_EQ(amd::ldexp_f32(1.25f, -149), 0x1p-149f);
  EXPECT_EQ(amd::ldexp_f32(0x1p-149f, 276), 0x1p127f);
  EXPECT_EQ(amd::ldexp_f32(-1.0f, 128), -HUGE_VALF);
  EXPECT_EQ(amd::ldexp_f32(1.0f, -2000000000), 0.0f);
  EXPECT_EQ(amd::ldexp_f32(1.0f, 2000000000), HUGE_VALF);
}

// ds_add_rtn_u32: each lane gets what the counter was before it, and no add is lost.
TEST(LdsAtomics, AddReturnsWhatWasThereBefore) {
  std::uint32_t counter = 7;
  std::vector<std::uint32_t> before(64);
  on_wave([&](int lane) {
    before[static_cast<std::size_t>(lane)] =
        amd::ds_add_rtn_u32(&counter, static_cast<std::uint32_t>(lane + 1));
  });
  EXPECT_EQ(counter, 7u + 64 * 65 / 2);
  // In whatever order lanes came: each found the last one's sum.
  std::vector<std::uint32_t> found = before;
  std::vector<std::uint32_t> left = {7};
  for (std::uint32_t lane = 0; lane < 64; ++lane)
    left.push_back(before[lane] + lane + 1);
  found.push_back(counter);
  std::sort(found.begin(), found.end());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(found, left);
}

/// Every finite code's value, from the formats' definition.
double value_of(unsigned code, bool fnuz) {
  const int exponent = static_cast<int>(code >> 3 & 15);
  const double mantissa = code & 7;
  const int bias = fnuz ? 8 : 7;
  const double magnitude =
      exponent ? std::ldexp(1 + mantissa / 8, exponent - bias) : std::ldexp(mantissa / 8, 1 - bias);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(ConvertFp8, NearestWithTiesToEvenForEveryBf16) {
  for (bool fnuz : {false, true}) {
    const Fp8Encoding encoding = fnuz ? Fp8Encoding::e4m3fnuz : Fp8Encoding::e4m3fn;
    const unsigned largest = fnuz ? 0x7F : 0x7E;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = gfx942::from_bits(bits << 16);
      const std::uint8_t got = convert_fp8(x, encoding);
      const double step = std::ldexp(1.0, fnuz ? 4 : 5); // of the largest binade
      const double limit = value_of(largest, fnuz) + step / 2;
      const double magnitude = std::fabs(static_cast<double>(x));
      // Half a step past the largest is a tie: FN's 0x7E is even and keeps it, FNUZ's 0x7F is not.
      if (std::isnan(x) || magnitude > limit || (fnuz && magnitude == limit)) {
        EXPECT_EQ(got, fnuz ? 0x80 : (std::signbit(x) ? 0xFF : 0x7F)) << x;
        continue;
      }
      unsigned best = 0;
      for (unsigned code = 1; code <= largest; ++code) {
        const double d = std::fabs(magnitude - value_of(code, fnuz));
        const double d_best = std::fabs(magnitude - value_of(best, fnuz));
        if (d < d_best || (d == d_best && code % 2 == 0)) best = code;
      }
      const bool negative = std::signbit(x) && !(fnuz && best == 0);
      ASSERT_EQ(got, best | (negative ? 0x80u : 0u)) << x;
    }
  }
}

} // namespace
} // namespace dsakit::optimized::host
