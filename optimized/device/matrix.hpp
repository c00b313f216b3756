// 16 x 16 tiles on the matrix units: heads on rows, keys on columns, a reduction over 128 e4m3
// codes.
//
// The sum over k may run in any order as long as both operands use the same one. So a lane holds 32
// consecutive codes of its row (two 16-byte loads), and each matrix instruction takes the next few
// bytes of every lane:
//
//           rows of a lane   its 32 codes of a row   accumulator v[i]
//   AMD     l % 16           32 (l / 16) ... + 31    row 4 (l / 16) + i,
//                                                    column l % 16
//   NVIDIA  l / 4, + 8       32 (l % 4) ... + 31     row l / 4 + 8 (i / 2 % 2),
//                                                    column 8 (i / 4) + 2 (l % 4) + i % 2
#pragma once

#include "device/fp8.hpp"
#include "device/math.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kTile = 16; ///< rows and columns of a tile

#if DSAKIT_NVIDIA
inline constexpr int kQuarterStep = 1; ///< between lanes that hold neighbouring quarters of a row
inline constexpr int kRowsPerLane = 2;
inline constexpr int kColumnsPerLane = 4; ///< accumulator columns
inline constexpr int kAccPerLane = 8;
#else
inline constexpr int kQuarterStep = 16;
inline constexpr int kRowsPerLane = 1;
inline constexpr int kColumnsPerLane = 1;
inline constexpr int kAccPerLane = 4;
#endif

/// A lane's part of 16 rows of 128 e4m3 codes: an A operand, or a B operand given by its columns.
struct Fp8Rows {
  std::uint32_t word[kRowsPerLane][8];
};

/// A lane's part of 16 rows of 16 bf16: k = 4 * operand_quarter() ... + 3 of each of its rows.
struct Bf16Rows {
  std::uint32_t word[kRowsPerLane][2];
};

/// A lane's part of a 16 x 16 fp32 accumulator.
struct Accumulator {
  float v[kAccPerLane];
};

/// Row of the tile that the lane's i-th held row is.
DSAKIT_DEVICE int operand_row(int i) {
#if DSAKIT_NVIDIA
  return lane_id() / 4 + 8 * i;
#else
  (void)i;
  return lane_id() % 16;
#endif
}

/// Which quarter of a row's 128 codes the lane holds.
DSAKIT_DEVICE int operand_quarter() {
#if DSAKIT_NVIDIA
  return lane_id() % 4;
#else
  return lane_id() / 16;
#endif
}

/// Row of the tile that v[i] belongs to.
DSAKIT_DEVICE int accumulator_row(int i) {
#if DSAKIT_NVIDIA
  return lane_id() / 4 + 8 * (i / 2 % 2);
#else
  return 4 * (lane_id() / 16) + i;
#endif
}

/// Which of the lane's kColumnsPerLane columns v[i] belongs to, and which of the tile's that is.
DSAKIT_DEVICE constexpr int accumulator_slot(int i) {
#if DSAKIT_NVIDIA
  return i / 4 * 2 + i % 2;
#else
  return i * 0;
#endif
}
DSAKIT_DEVICE int accumulator_column(int slot) {
#if DSAKIT_NVIDIA
  return 8 * (slot / 2) + 2 * (lane_id() % 4) + slot % 2;
#else
  (void)slot;
  return lane_id() % 16;
#endif
}

/// Sum of x over the lanes that hold the same columns, in every one of them.
DSAKIT_DEVICE float sum_over_rows(float x) {
#if DSAKIT_NVIDIA
  x += from_lane_xor<4>(x);
  x += from_lane_xor<8>(x);
#endif
  x += from_lane_xor<16>(x);
#if !DSAKIT_NVIDIA
  x += from_lane_xor<32>(x);
#endif
  return x;
}

/// The largest x (NaN where one is), and the sum, over the lanes that hold the same operand rows:
/// in all of them.
DSAKIT_DEVICE float max_over_quarters(float x) {
  x = larger_or_nan(x, from_lane_xor<kQuarterStep>(x));
  return larger_or_nan(x, from_lane_xor<2 * kQuarterStep>(x));
}
DSAKIT_DEVICE float sum_over_quarters(float x) {
  x += from_lane_xor<kQuarterStep>(x);
  return x + from_lane_xor<2 * kQuarterStep>(x);
}

/// The value that belongs to accumulator_row(i), of one value for each of the lane's operand rows.
template <class T>
DSAKIT_DEVICE T at_accumulator_row(const T (&by_operand_row)[kRowsPerLane], int i) {
#if DSAKIT_NVIDIA
  return by_operand_row[i / 2 % 2]; // the lane's accumulator rows are its operand rows
#else
  return from_lane(accumulator_row(i), by_operand_row[0]); // lane r holds operand row r
#endif
}

/// The same for accumulator_column(slot) and the rows of a B operand, which are columns.
template <class T>
DSAKIT_DEVICE T at_accumulator_column(const T (&by_operand_row)[kRowsPerLane], int slot) {
#if DSAKIT_NVIDIA
  return from_lane(4 * (accumulator_column(slot) % 8), by_operand_row[slot / 2]);
#else
  (void)slot;
  return by_operand_row[0]; // the lane's accumulator column is its operand row
#endif
}

/// True in one of the lanes that hold the same columns.
DSAKIT_DEVICE bool stores_columns() {
#if DSAKIT_NVIDIA
  return lane_id() / 4 == 0;
#else
  return lane_id() / 16 == 0;
#endif
}

/// chunk(row, i): the i-th 16 bytes (0 to 7) of a row of the tile.
template <Fp8Encoding kEncoding, class Chunk>
DSAKIT_DEVICE Fp8Rows load_fp8_rows(Chunk chunk) {
  Fp8Rows rows;
  for (int r = 0; r < kRowsPerLane; ++r)
    for (int half = 0; half < 2; ++half) {
      const Bytes16 bytes = chunk(operand_row(r), 2 * operand_quarter() + half);
      for (int i = 0; i < 4; ++i)
        rows.word[r][4 * half + i] = readable_codes<kEncoding>(bytes.word[i]);
    }
  return rows;
}

/// acc += a b^T over 16 bf16, fp32 sums.
DSAKIT_DEVICE void multiply(Accumulator& acc, const Bf16Rows& a, const Bf16Rows& b) {
#if DSAKIT_NVIDIA
  for (int h = 0; h < 2; ++h)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc.v[4 * h]), "+f"(acc.v[4 * h + 1]), "+f"(acc.v[4 * h + 2]), "+f"(acc.v[4 * h + 3])
        : "r"(a.word[0][0]), "r"(a.word[1][0]), "r"(a.word[0][1]), "r"(a.word[1][1]),
          "r"(b.word[h][0]), "r"(b.word[h][1]));
#else
  amd::Short4 a4;
  amd::Short4 b4;
  __builtin_memcpy(&a4, a.word[0], sizeof a4);
  __builtin_memcpy(&b4, b.word[0], sizeof b4);
  amd::Float4 d = {acc.v[0], acc.v[1], acc.v[2], acc.v[3]};
  d = amd::mfma_f32_16x16x16_bf16(a4, b4, d);
  for (int i = 0; i < 4; ++i)
    acc.v[i] = d[i];
#endif
}

namespace detail {

/// acc += a b^T over the codes of words s and s + 1 of every lane, 32 of each row, as the hardware
/// reads them: one instruction of the FP8 units, on NVIDIA two.
DSAKIT_DEVICE void multiply_fp8_step(Accumulator& acc, const Fp8Rows& a, const Fp8Rows& b, int s) {
#if DSAKIT_NVIDIA
  for (int h = 0; h < 2; ++h)
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc.v[4 * h]), "+f"(acc.v[4 * h + 1]), "+f"(acc.v[4 * h + 2]), "+f"(acc.v[4 * h + 3])
        : "r"(a.word[0][s]), "r"(a.word[1][s]), "r"(a.word[0][s + 1]), "r"(a.word[1][s + 1]),
          "r"(b.word[h][s]), "r"(b.word[h][s + 1]));
#else
  amd::Float4 d = {acc.v[0], acc.v[1], acc.v[2], acc.v[3]};
  const std::uint64_t a8 = a.word[0][s] | static_cast<std::uint64_t>(a.word[0][s + 1]) << 32;
  const std::uint64_t b8 = b.word[0][s] | static_cast<std::uint64_t>(b.word[0][s + 1]) << 32;
  d = amd::mfma_f32_16x16x32_fp8_fp8(a8, b8, d);
  for (int i = 0; i < 4; ++i)
    acc.v[i] = d[i];
#endif
}

/// acc += a b^T over all 128 codes.
DSAKIT_DEVICE void multiply_fp8(Accumulator& acc, const Fp8Rows& a, const Fp8Rows& b) {
  for (int s = 0; s < 8; s += 2)
    multiply_fp8_step(acc, a, b, s);
}

/// acc += a b^T for e4m3 on the bf16 units: exact for every code of either encoding.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void multiply_as_bf16(Accumulator& acc, const Fp8Rows& a, const Fp8Rows& b) {
  const auto widen = [](const Fp8Rows& rows, int word) {
    Bf16Rows wide;
    for (int r = 0; r < kRowsPerLane; ++r)
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t codes = rows.word[r][word] >> 16 * half;
        wide.word[r][half] = fp8_to_bf16<kEncoding>(codes & 0xFFu) |
                             fp8_to_bf16<kEncoding>(codes >> 8 & 0xFFu) << 16;
      }
    return wide;
  };
  for (int word = 0; word < 8; ++word)
    multiply(acc, widen(a, word), widen(b, word));
}

} // namespace detail

/// True in every lane where some lane's codes would be misread: such a tile goes the bf16 way.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE bool any_misread(const Fp8Rows& rows) {
  if (Fp8<kEncoding>::kNative) return false;
  std::uint32_t misread = 0;
  for (int r = 0; r < kRowsPerLane; ++r)
    for (int i = 0; i < 8; ++i)
      misread |= misread_codes<kEncoding>(rows.word[r][i]);
  return any(misread != 0);
}

/// acc += (a b^T) * kDotScale for 16 x 128 codes a and b of kEncoding. `misread`: any_misread of
/// either operand.
template <Fp8Encoding kEncoding>
DSAKIT_DEVICE void multiply(Accumulator& acc, const Fp8Rows& a, const Fp8Rows& b, bool misread) {
  if (!Fp8<kEncoding>::kNative && misread)
    detail::multiply_as_bf16<kEncoding>(acc, a, b);
  else
    detail::multiply_fp8(acc, a, b);
}

/// Both operands are misread by the same power of two.
template <Fp8Encoding kEncoding>
inline constexpr float kDotScale = Fp8<kEncoding>::kMisread * Fp8<kEncoding>::kMisread;

} // namespace dsakit::optimized::DSAKIT_ARCH
