// The model of v_mfma_scale_f32_16x16x128_f8f6f4 with e2m1 operands, against where the published
// sources have its elements and scales (device/host/mfma.hpp names them; AMD's matrix instruction
// calculator knows no CDNA4): A[i][k] is nibble k % 32 of lane i + 16 (k / 32), B[k][j] of lane
// j + 16 (k / 32), each lane's scale is that of its 32 elements, D[i][j] is register i % 4 of lane
// 16 (i / 4) + j.
#include "device/host/mfma.hpp"

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace dsakit::optimized::host {
namespace {

constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// Operands by their elements, as the instruction takes them.
struct Tile {
  unsigned a[16][128] = {}; // codes
  unsigned b[128][16] = {};
  unsigned scale_a[16][4]; // e8m0 bytes
  unsigned scale_b[16][4];
  float c[16][16] = {};

  Tile() {
    for (int i = 0; i < 16; ++i)
      for (int g = 0; g < 4; ++g)
        scale_a[i][g] = scale_b[i][g] = 127;
  }

  std::vector<float> multiply() const {
    auto exchange = std::make_unique<Exchange>();
    for (std::size_t lane = 0; lane < 64; ++lane) {
      const std::size_t i = lane % 16;
      const std::size_t group = lane / 16;
      // What the instruction does not read is not zero.
      exchange->word[4][lane] = 0xABCDEF00u | scale_a[i][group] |
                                static_cast<std::uint64_t>(0x12345600u | scale_b[i][group]) << 32;
      for (std::size_t half = 0; half < 2; ++half) {
        std::uint64_t& a_word = exchange->word[2 * half][lane];
        std::uint64_t& b_word = exchange->word[2 * half + 1][lane];
        a_word = b_word = 0;
        for (std::size_t e = 0; e < 16; ++e) {
          const std::size_t k = 32 * group + 16 * half + e;
          a_word |= static_cast<std::uint64_t>(a[i][k]) << 4 * e;
          b_word |= static_cast<std::uint64_t>(b[k][i]) << 4 * e;
        }
      }
      for (std::size_t r = 0; r < 4; ++r)
        exchange->acc[r][lane] = c[4 * group + r][i];
    }
    mfma_scale_16x16x128_fp4(*exchange);
    std::vector<float> d;
    for (std::size_t i = 0; i < 16; ++i)
      for (std::size_t j = 0; j < 16; ++j)
        d.push_back(exchange->acc[i % 4][16 * (i / 4) + j]);
    return d;
  }
};

// One element of A is 1, at each place in turn: D's row is that row of B with its scales, on top of
// C. B and the scales are random, so that no two places look alike.
TEST(MfmaScale16x16x128Fp4, EveryElementMeetsItsOwn) {
  std::mt19937 random(3);
  Tile tile;
  for (int j = 0; j < 16; ++j) {
    for (int k = 0; k < 128; ++k)
      tile.b[k][j] = static_cast<unsigned>(random() % 16);
    for (int g = 0; g < 4; ++g) {
      tile.scale_a[j][g] = static_cast<unsigned>(110 + random() % 30);
      tile.scale_b[j][g] = static_cast<unsigned>(110 + random() % 30);
    }
    for (int i = 0; i < 16; ++i)
      tile.c[i][j] = static_cast<float>(16 * i + j);
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 128; ++k) {
      tile.a[row][k] = 2; // 1
      const std::vector<float> d = tile.multiply();
      tile.a[row][k] = 0;
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
          const int exponent =
              static_cast<int>(tile.scale_a[i][k / 32] + tile.scale_b[j][k / 32]) - 254;
          const float product = i == row ? std::ldexp(kValues[tile.b[k][j]], exponent) : 0.0f;
          ASSERT_EQ(d[static_cast<std::size_t>(16 * i + j)], tile.c[i][j] + product)
              << "A[" << row << "][" << k << "], D[" << i << "][" << j << "]";
        }
    }
}

TEST(MfmaScale16x16x128Fp4, EveryPairOfCodes) {
  Tile tile;
  for (unsigned i = 0; i < 16; ++i) {
    tile.a[i][77] = i;
    tile.b[77][i] = i;
  }
  const std::vector<float> d = tile.multiply();
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j)
      EXPECT_EQ(d[16 * i + j], kValues[i] * kValues[j]);
}

// The sum of 32 products is exact, and scaled with one rounding: to a subnormal, to infinity.
TEST(MfmaScale16x16x128Fp4, ScalesRoundOnceAndOnlyOutsideTheRange) {
  Tile tile;
  for (int k = 32; k < 64; ++k) {
    tile.a[0][k] = tile.b[k][0] = 7; // 6 * 6
    tile.a[1][k] = tile.b[k][1] = 7;
  }
  tile.a[1][63] = 1; // 31 * 36 + 3 = 1119
  const unsigned bytes[][2] = {{0, 0},     {0, 95},    {60, 41},  {254, 0},
                               {254, 116}, {254, 117}, {254, 254}};
  for (const auto& [a, b] : bytes) {
    tile.scale_a[1][1] = a;
    tile.scale_b[0][1] = b;
    const double want = std::ldexp(1119.0, static_cast<int>(a + b) - 254);
    EXPECT_EQ(tile.multiply()[16], static_cast<float>(want)) << a << " " << b;
  }
}

TEST(MfmaScale16x16x128Fp4, NanScalesStayInTheirRowAndColumn) {
  Tile tile;
  tile.scale_a[5][3] = 0xFF;
  tile.scale_b[11][0] = 0xFF;
  const std::vector<float> d = tile.multiply();
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j)
      EXPECT_EQ(std::isnan(d[16 * i + j]), i == 5 || j == 11) << i << " " << j;
}

} // namespace
} // namespace dsakit::optimized::host
