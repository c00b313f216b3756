// MXFP4 on the tiles of device/matrix.hpp: rows of 128 e2m1 codes, an e8m0 scale for each 32.
//
//   dot = sum_g 2^(ea_g - 127) * 2^(eb_g - 127) * (sum of group g's 32 products)
//
// gfx950 does that in one instruction. Elsewhere a group is one step of the FP8 units: each e2m1
// value is an e4m3 value in both encodings, products are multiples of 1/4, and 32 of them reach at
// most 32 * 36, so that 13 bits hold their sum and it is exact. The power of two then rounds only
// where it leaves fp32's range (below 2^-149 a group counts as 0, from 2^128 on as infinite), and
// the groups' sum rounds three times. A scale byte 0xFF gives NaN.
//
//             rows and columns as device/matrix.hpp has them; a lane's codes of each
//   gfx950    the 16 bytes of group l / 16, and that group's scale
//   gfx942    bytes 4 (l / 16) ... + 3 of each group, and the scales of all four
//   NVIDIA    bytes 4 (l % 4) ... + 3 of each group, and the scales of all four
#pragma once

#include "device/index_page.hpp"
#include "device/matrix.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

/// What a lane loads of a row at a time.
struct Mxfp4Piece {
  std::uint32_t word[DSAKIT_MXFP4_HARDWARE ? 4 : 1];
};

/// First byte of the lane's i-th piece in a row of 64.
DSAKIT_DEVICE int piece_offset(int i) {
  return DSAKIT_MXFP4_HARDWARE ? 16 * operand_quarter() : 16 * i + 4 * operand_quarter();
}

/// A piece at a multiple of 4.
DSAKIT_DEVICE Mxfp4Piece load_piece(const std::uint8_t* p) {
#if DSAKIT_MXFP4_HARDWARE
  const Bytes16 bytes = load16_aligned4(p);
  return {{bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]}};
#else
  return {{*reinterpret_cast<const std::uint32_t*>(p)}};
#endif
}

/// A lane's part of 16 rows: an A operand, or a B operand given by its columns.
struct Mxfp4Rows {
#if DSAKIT_MXFP4_HARDWARE
  std::uint32_t word[4]; // the 32 codes of group operand_quarter()
  std::uint32_t scale;   // its e8m0
#else
  Fp8Rows codes;                      // as e4m3: of group g words 2 g and 2 g + 1
  std::uint32_t scales[kRowsPerLane]; // of group g byte g
#endif
};

namespace detail {

/// Four e2m1 codes, each in the low half of a byte, as e4m3 of the hardware's encoding; exact, -0
/// becomes 0.
DSAKIT_DEVICE std::uint32_t e2m1_to_fp8(std::uint32_t codes) {
  const std::uint32_t magnitude = codes & 0x07070707u;
  const std::uint32_t not_zero = (magnitude + 0x07070707u) & 0x08080808u;
  const std::uint32_t from_1 = (magnitude + 0x06060606u) & 0x08080808u;
  // Exponent and significand two bits up, plus the difference of the biases, 6 or 7 (bit 3 of a
  // byte times 6 or 7); but 0.5 is subnormal in e2m1 and not in e4m3.
  const std::uint32_t bias = (not_zero << 3) - (not_zero << (DSAKIT_FP8_FNUZ_HARDWARE ? 0 : 1));
  const std::uint32_t value = bias + (magnitude << 2) - ((not_zero ^ from_1) >> 1);
  return value | (codes & not_zero) << 4;
}

/// Eight packed codes as e4m3, the even ones first: any order of k will do, if both operands have
/// it.
DSAKIT_DEVICE void unpack_e2m1(std::uint32_t packed, std::uint32_t& even, std::uint32_t& odd) {
  even = e2m1_to_fp8(packed);
  odd = e2m1_to_fp8(packed >> 4);
}

/// Some byte is 0xFF.
DSAKIT_DEVICE bool holds_nan_scale(std::uint32_t scales) {
  return (((scales & 0x7F7F7F7Fu) + 0x01010101u) & scales & 0x80808080u) != 0;
}

} // namespace detail

/// source(row) says where a row of the tile is: piece(offset) loads the piece at a byte of it,
/// scale(group) the e8m0 of a group.
template <class Source>
DSAKIT_DEVICE Mxfp4Rows load_mxfp4_rows(Source source) {
  Mxfp4Rows rows;
#if DSAKIT_MXFP4_HARDWARE
  const auto row = source(operand_row(0));
  const Mxfp4Piece codes = row.piece(piece_offset(0));
  for (int i = 0; i < 4; ++i)
    rows.word[i] = codes.word[i];
  rows.scale = row.scale(operand_quarter());
#else
  for (int r = 0; r < kRowsPerLane; ++r) {
    const auto row = source(operand_row(r));
    rows.scales[r] = 0;
    for (int g = 0; g < kMxfp4Groups; ++g) {
      const Mxfp4Piece codes = row.piece(piece_offset(g));
      detail::unpack_e2m1(codes.word[0], rows.codes.word[r][2 * g], rows.codes.word[r][2 * g + 1]);
      rows.scales[r] |= row.scale(g) << 8 * g;
    }
  }
#endif
  return rows;
}

/// A row in LDS, in the form and order in which lanes take it; padded by 16 bytes, so that the 16
/// rows of a tile start in different banks.
struct Mxfp4StagedRow {
  static constexpr int kChunks = DSAKIT_MXFP4_HARDWARE ? 4 : 8;
  Bytes16 chunk[kChunks + 1];
};

/// Puts the 16 bytes of a group into a row.
DSAKIT_DEVICE void stage_group(Mxfp4StagedRow& row, int group, const Bytes16& codes) {
#if DSAKIT_MXFP4_HARDWARE
  row.chunk[group] = codes;
#else
  for (int quarter = 0; quarter < 4; ++quarter) {
    std::uint32_t* words = &row.chunk[2 * quarter + group / 2].word[2 * (group % 2)];
    detail::unpack_e2m1(codes.word[quarter], words[0], words[1]);
  }
#endif
}

/// rows: the 16 of the tile; scales: of group g of each byte g.
DSAKIT_DEVICE Mxfp4Rows load_staged_rows(const Mxfp4StagedRow* rows, const std::uint32_t* scales) {
  Mxfp4Rows loaded;
#if DSAKIT_MXFP4_HARDWARE
  const Bytes16 codes = rows[operand_row(0)].chunk[operand_quarter()];
  for (int i = 0; i < 4; ++i)
    loaded.word[i] = codes.word[i];
  loaded.scale = scales[operand_row(0)] >> 8 * operand_quarter() & 0xFFu;
#else
  for (int r = 0; r < kRowsPerLane; ++r) {
    for (int half = 0; half < 2; ++half) {
      const Bytes16 codes = rows[operand_row(r)].chunk[2 * operand_quarter() + half];
      for (int i = 0; i < 4; ++i)
        loaded.codes.word[r][4 * half + i] = codes.word[i];
    }
    loaded.scales[r] = scales[operand_row(r)];
  }
#endif
  return loaded;
}

/// acc += a b^T, scales applied.
DSAKIT_DEVICE void multiply(Accumulator& acc, const Mxfp4Rows& a, const Mxfp4Rows& b) {
#if DSAKIT_MXFP4_HARDWARE
  amd::Float4 d = {acc.v[0], acc.v[1], acc.v[2], acc.v[3]};
  d = amd::mfma_scale_f32_16x16x128_fp4(a.word, b.word, d, a.scale, b.scale);
  for (int i = 0; i < 4; ++i)
    acc.v[i] = d[i];
#else
  std::uint32_t row_scales[kAccPerLane];
  std::uint32_t column_scales[kColumnsPerLane];
  for (int i = 0; i < kAccPerLane; ++i)
    row_scales[i] = at_accumulator_row(a.scales, i);
  for (int slot = 0; slot < kColumnsPerLane; ++slot)
    column_scales[slot] = at_accumulator_column(b.scales, slot);
  for (int g = 0; g < kMxfp4Groups; ++g) {
    Accumulator sum = {};
    detail::multiply_fp8_step(sum, a.codes, b.codes, 2 * g);
    for (int i = 0; i < kAccPerLane; ++i) {
      const std::uint32_t row_scale = row_scales[i] >> 8 * g & 0xFFu;
      const std::uint32_t column_scale = column_scales[accumulator_slot(i)] >> 8 * g & 0xFFu;
      acc.v[i] += times_power_of_two(sum.v[i], static_cast<int>(row_scale + column_scale) - 254);
    }
  }
  for (int i = 0; i < kAccPerLane; ++i)
    if (detail::holds_nan_scale(row_scales[i]) ||
        detail::holds_nan_scale(column_scales[accumulator_slot(i)]))
      acc.v[i] = __builtin_nanf("");
#endif
}

} // namespace dsakit::optimized::DSAKIT_ARCH
