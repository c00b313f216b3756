// Tiles whose products say where each element lies: a wrong fragment map shows as the wrong number.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "selftest/expected.hpp"

namespace dsakit::optimized {
namespace {

constexpr unsigned kTile = 16;
constexpr unsigned kTileValues = kTile * kTile;

/// A [16, depth] and B [16, depth], products of which are exact in fp32.
struct Tile {
  unsigned depth;
  std::vector<double> a, b;
  std::vector<std::uint8_t> scale_a, scale_b; // MXFP4: e8m0 of each 32 elements; else empty

  explicit Tile(unsigned k) : depth(k), a(kTile * k), b(kTile * k) {}
  double& at_a(unsigned row, unsigned k) { return a[row * depth + k]; }
  double& at_b(unsigned column, unsigned k) { return b[column * depth + k]; }
  double dot(unsigned row, unsigned column) const {
    double sum = 0;
    for (unsigned k = 0; k < depth; ++k)
      sum += a[row * depth + k] * scale(scale_a, row, k) * b[column * depth + k] *
             scale(scale_b, column, k);
    return sum;
  }
  static double scale(const std::vector<std::uint8_t>& scales, unsigned row, unsigned k) {
    if (scales.empty()) return 1;
    const std::uint8_t byte = scales[4 * row + k / 32];
    return byte == 0xFF ? std::nan("") : std::ldexp(1.0, byte - 127);
  }
};

/// D[i][j] = 16 i + j: every element names its place.
Tile result_map(unsigned depth) {
  Tile tile(depth);
  for (unsigned i = 0; i < kTile; ++i) {
    tile.at_a(i, 0) = i;
    tile.at_b(i, 0) = 16;
    tile.at_a(i, 1) = 1;
    tile.at_b(i, 1) = i;
  }
  return tile;
}

/// D[i][j] = bit j of the k that A's (i, first + i) meets in B: what B holds there is its own k.
Tile operand_map(unsigned depth, unsigned first, bool swapped) {
  Tile tile(depth);
  for (unsigned i = 0; i < kTile; ++i) {
    (swapped ? tile.at_b(i, first + i) : tile.at_a(i, first + i)) = 1;
    for (unsigned k = 0; k < depth; ++k)
      (swapped ? tile.at_a(i, k) : tile.at_b(i, k)) = k >> i & 1;
  }
  return tile;
}

/// Row and column of register i of a lane: AMD's and NVIDIA's documents, not our device layer.
std::array<unsigned, 2> accumulator_place(Arch arch, unsigned lane, unsigned i) {
  if (arch == Arch::sm_90)
    return {lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (lane % 4) + i % 2};
  return {4 * (lane / 16) + i, lane % 16};
}

std::string amd_place(std::size_t i) {
  return "tile " + std::to_string(i / kTileValues) + ", lane " +
         std::to_string(i % kTileValues / 4) + ", register " + std::to_string(i % 4);
}
std::string nvidia_place(std::size_t i) {
  return "tile " + std::to_string(i / kTileValues) + ", lane " +
         std::to_string(i % kTileValues / 8) + ", register " + std::to_string(i % 8);
}

/// `encode` packs one element; `scale` is what the products come out multiplied with.
template <class Encode>
SelftestCase matrix_case(Arch arch, const std::string& type, const std::vector<Tile>& tiles,
                         double scale, unsigned element_bits, Encode encode) {
  SelftestCase c{"matrix_" + type, static_cast<std::int32_t>(tiles.size()), 0, {}, {}};
  const unsigned per_word = 32 / element_bits;
  for (const Tile& tile : tiles) {
    for (const std::vector<double>* operand : {&tile.a, &tile.b})
      for (std::size_t i = 0; i < operand->size(); i += per_word) {
        std::uint32_t word = 0;
        for (unsigned part = 0; part < per_word; ++part)
          word |= encode((*operand)[i + part]) << element_bits * part;
        c.input.push_back(word);
      }
    for (const std::vector<std::uint8_t>* scales : {&tile.scale_a, &tile.scale_b})
      for (std::size_t i = 0; i < scales->size(); i += 4) {
        std::uint32_t word = 0;
        for (unsigned part = 0; part < 4; ++part)
          word |= static_cast<std::uint32_t>((*scales)[i + part]) << 8 * part;
        c.input.push_back(word);
      }
  }

  const auto place = arch == Arch::sm_90 ? nvidia_place : amd_place;
  const unsigned registers = arch == Arch::sm_90 ? 8 : 4;
  SelftestSection product{"multiply " + type, place, true, {}};
  SelftestSection element{"accumulator_row, accumulator_column " + type, place, false, {}};
  SelftestSection at_row{"at_accumulator_row " + type, place, true, {}};
  SelftestSection at_column{"at_accumulator_column " + type, place, true, {}};
  for (const Tile& tile : tiles)
    for (unsigned i = 0; i < kTileValues; ++i) {
      const auto [row, column] = accumulator_place(arch, i / registers, i % registers);
      const auto value = static_cast<float>(tile.dot(row, column) * scale);
      product.values.push_back(std::bit_cast<std::uint32_t>(value));
      element.values.push_back(row * kTile + column);
      at_row.values.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(row)));
      at_column.values.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(column)));
    }
  c.sections = {product, element, at_row, at_column};
  return c;
}

SelftestCase fp8_case(Arch arch, bool fnuz) {
  constexpr unsigned depth = 128;
  const SelftestFp8 fp8 = selftest_fp8(arch, fnuz);
  std::vector<Tile> tiles = {result_map(depth)};
  for (unsigned first = 0; first < depth; first += kTile)
    for (const bool swapped : {false, true})
      tiles.push_back(operand_map(depth, first, swapped));
  // Every code as an element of either operand; a NaN's row, or column, is NaN.
  for (unsigned first = 0; first < 256; first += kTile)
    for (const bool swapped : {false, true}) {
      Tile tile(depth);
      for (unsigned i = 0; i < kTile; ++i) {
        (swapped ? tile.at_b(i, 77) : tile.at_a(i, 77)) = 1;
        (swapped ? tile.at_a(i, 77) : tile.at_b(i, 77)) = fp8.value(first + i);
      }
      tiles.push_back(tile);
    }
  return matrix_case(arch, fnuz ? "e4m3fnuz" : "e4m3fn", tiles, fp8.misread() * fp8.misread(), 8,
                     [&](double x) { return fp8.nearest(x); });
}

SelftestCase bf16_case(Arch arch) {
  constexpr unsigned depth = 16;
  std::vector<Tile> tiles = {result_map(depth)};
  for (const bool swapped : {false, true})
    tiles.push_back(operand_map(depth, 0, swapped));
  // The ends of the normal range, infinity and NaN.
  Tile tile(depth);
  for (unsigned i = 0; i < kTile; ++i) {
    tile.at_a(i, 5) = i % 2 ? -1 : 1;
    tile.at_b(i, 5) = std::ldexp(1.9921875, static_cast<int>(i) * 17 - 126);
  }
  tile.at_b(3, 5) = HUGE_VAL;
  tile.at_b(7, 5) = std::nan("");
  tiles.push_back(tile);
  return matrix_case(arch, "bf16", tiles, 1, 16, [](double x) {
    return std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16; // x is a bf16
  });
}

SelftestCase mxfp4_case(Arch arch) {
  constexpr unsigned depth = 128;
  constexpr double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
  // D[i][j] = 16 i + j, the bits of i in group 0 and those of j in group 1.
  Tile map(depth);
  for (unsigned i = 0; i < kTile; ++i)
    for (unsigned part = 0; part < 5; ++part) { // 1, 2, 4, and 8 as two times 4
      const unsigned bit = std::min(part, 3u);
      map.at_a(i, part) = i >> bit & 1;
      map.at_b(i, part) = std::min(1u << bit, 4u);
      map.at_a(i, 32 + part) = std::min(1u << bit, 4u);
      map.at_b(i, 32 + part) = i >> bit & 1;
    }
  map.scale_a.assign(kTile * 4, 127);
  map.scale_b = map.scale_a;
  for (unsigned j = 0; j < kTile; ++j)
    map.scale_b[4 * j] = 127 + 4;
  std::vector<Tile> tiles = {map};
  for (unsigned first = 0; first < depth; first += kTile)
    for (const bool swapped : {false, true})
      tiles.push_back(operand_map(depth, first, swapped));
  // Every code as an element of either operand.
  for (const bool swapped : {false, true}) {
    Tile tile(depth);
    for (unsigned i = 0; i < kTile; ++i) {
      (swapped ? tile.at_b(i, 77) : tile.at_a(i, 77)) = 1;
      (swapped ? tile.at_a(i, 77) : tile.at_b(i, 77)) = values[i];
    }
    tiles.push_back(tile);
  }
  // D[i][j] = 2^(i - 8 + 15 (j - 7)), or exchanged, from one group's scales; the other groups have
  // large scales and codes that are 0.
  for (unsigned group = 0; group < 4; ++group)
    for (const bool swapped : {false, true}) {
      Tile tile(depth);
      tile.scale_a.assign(kTile * 4, 127 + 90);
      tile.scale_b = tile.scale_a;
      for (unsigned i = 0; i < kTile; ++i) {
        tile.at_a(i, 32 * group + 11) = 1;
        tile.at_b(i, 32 * group + 11) = 1;
        (swapped ? tile.scale_b : tile.scale_a)[4 * i + group] = static_cast<std::uint8_t>(119 + i);
        (swapped ? tile.scale_a : tile.scale_b)[4 * i + group] =
            static_cast<std::uint8_t>(127 + 15 * i - 105);
      }
      tiles.push_back(tile);
    }
  // A NaN scale: its row, or column, whatever its codes.
  Tile nan = map;
  nan.scale_a[4 * 3 + 2] = 0xFF;
  nan.scale_b[4 * 7] = 0xFF;
  tiles.push_back(nan);
  for (Tile& tile : tiles)
    if (tile.scale_a.empty())
      tile.scale_a = tile.scale_b = std::vector<std::uint8_t>(kTile * 4, 127);

  return matrix_case(arch, "mxfp4", tiles, 1, 4, [&](double x) {
    const auto code = std::find_if(std::begin(values), std::end(values), [x](double value) {
      return value == x && std::signbit(value) == std::signbit(x);
    });
    return static_cast<std::uint32_t>(code - std::begin(values));
  });
}

} // namespace

std::vector<SelftestCase> selftest_matrix_cases(Arch arch) {
  return {fp8_case(arch, false), fp8_case(arch, true), bf16_case(arch), mxfp4_case(arch)};
}

} // namespace dsakit::optimized
