// Every element of every lane and register of the matrix instructions that kernels use, against
// AMD's matrix instruction calculator (cdna3/lane_maps.csv names its source): the models of host
// lanes, and the maps that the device layer gives kernels. The calculator knows no CDNA4; there the
// same two instructions are used.
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/matrix.hpp"
#include "runtime/host_executor.hpp"

namespace dsakit::optimized::host {
namespace {

namespace amd = gfx942::amd;

struct Element {
  int row, column;
};
using LaneMap = std::vector<std::vector<Element>>; // [lane][element of its registers]

LaneMap lane_map(const std::string& instruction, const std::string& matrix) {
  std::ifstream file(DSAKIT_CDNA3 "/lane_maps.csv");
  LaneMap map;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string field;
    if (!std::getline(fields, field, ',') || field != instruction) continue;
    if (!std::getline(fields, field, ',') || field != matrix) continue;
    std::getline(fields, field, ',');
    EXPECT_EQ(std::stoul(field), map.size()) << line;
    map.emplace_back();
    while (std::getline(fields, field, ',')) {
      const std::size_t colon = field.find(':');
      map.back().push_back({std::stoi(field.substr(0, colon)), std::stoi(field.substr(colon + 1))});
    }
  }
  EXPECT_EQ(map.size(), 64u) << instruction << " " << matrix;
  return map;
}

void on_wave(const std::function<void(int)>& lane) {
  const std::function<void()> body = [&] { lane(static_cast<int>(thread_index().x)); };
  const Status status = run_grid({}, Launch{"kernel", {1, 1, 1}, {64, 1, 1}, nullptr, 0, body});
  ASSERT_TRUE(status) << status.what();
}

/// An instruction with operands of one 64-bit word a lane.
using Multiply = std::function<amd::Float4(std::uint64_t, std::uint64_t)>;

/// One element of A is 1, at each place in turn; B holds a power of two for each
/// (k, column). D must be that row of B, where the table says.
void expect_map(const std::string& instruction, int element_bits, const Multiply& multiply,
                const std::function<std::uint64_t(int)>& encoded_power) {
  const LaneMap a_map = lane_map(instruction, "A");
  const LaneMap b_map = lane_map(instruction, "B");
  const LaneMap d_map = lane_map(instruction, "D");
  // Eight powers, of which no two neighbours in k or column share one, nor all of two columns.
  const auto power = [](int k, int column) {
    return (3 * k + column + k / 8 + column / 8) % 8 - 4;
  };
  std::vector<std::uint64_t> b(64);
  for (std::size_t lane = 0; lane < 64; ++lane)
    for (std::size_t e = 0; e < b_map[lane].size(); ++e)
      b[lane] |= encoded_power(power(b_map[lane][e].row, b_map[lane][e].column))
                 << element_bits * static_cast<int>(e);
  for (std::size_t a_lane = 0; a_lane < 64; ++a_lane)
    for (std::size_t e = 0; e < a_map[a_lane].size(); ++e) {
      const auto [row, k] = a_map[a_lane][e];
      const std::uint64_t one = encoded_power(0) << element_bits * static_cast<int>(e);
      int wrong = 0;
      on_wave([&, row = row, k = k](int lane) {
        const auto l = static_cast<std::size_t>(lane);
        const amd::Float4 d = multiply(l == a_lane ? one : 0, b[l]);
        for (int r = 0; r < 4; ++r) {
          const Element place = d_map[l][static_cast<std::size_t>(r)];
          const float want = place.row == row ? std::ldexp(1.0f, power(k, place.column)) : 0.0f;
          wrong += d[r] != want;
        }
      });
      ASSERT_EQ(wrong, 0) << instruction << ": A[" << row << "][" << k << "]";
    }
}

TEST(LaneMaps, Mfma16x16x32Fp8IsTheCalculators) {
  // FNUZ: 2^p is 0x40 + 8 p.
  expect_map(
      "v_mfma_f32_16x16x32_fp8_fp8", 8,
      [](std::uint64_t a, std::uint64_t b) {
        return amd::mfma_f32_16x16x32_fp8_fp8(a, b, amd::Float4{});
      },
      [](int p) { return 0x40 + 8 * static_cast<std::uint64_t>(p); });
}

TEST(LaneMaps, Mfma16x16x16Bf16IsTheCalculators) {
  expect_map(
      "v_mfma_f32_16x16x16_bf16", 16,
      [](std::uint64_t a, std::uint64_t b) {
        amd::Short4 a4;
        amd::Short4 b4;
        std::memcpy(&a4, &a, sizeof a4);
        std::memcpy(&b4, &b, sizeof b4);
        return amd::mfma_f32_16x16x16_bf16(a4, b4, amd::Float4{});
      },
      [](int p) { return static_cast<std::uint64_t>(127 + p) << 7; });
}

TEST(LaneMaps, TheDeviceLayerHasTheCalculatorsAccumulators) {
  for (const char* instruction : {"v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x16_bf16"}) {
    const LaneMap map = lane_map(instruction, "D");
    on_wave([&](int lane) {
      for (int r = 0; r < gfx942::kAccPerLane; ++r) {
        const Element want = map[static_cast<std::size_t>(lane)][static_cast<std::size_t>(r)];
        EXPECT_EQ(gfx942::accumulator_row(r), want.row) << lane;
        EXPECT_EQ(gfx942::accumulator_column(gfx942::accumulator_slot(r)), want.column) << lane;
      }
    });
  }
}

// An operand's lanes hold the row that the table names, and the quarter of the instruction's k. Of
// the bf16 instruction, whose k kernels do not permute, the very k.
TEST(LaneMaps, TheDeviceLayerHasTheCalculatorsOperands) {
  for (const char* instruction : {"v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x16_bf16"})
    for (const bool is_a : {true, false}) {
      const LaneMap map = lane_map(instruction, is_a ? "A" : "B");
      on_wave([&](int lane) {
        const std::vector<Element>& elements = map[static_cast<std::size_t>(lane)];
        const auto count = static_cast<int>(elements.size());
        for (int e = 0; e < count; ++e) {
          const Element element = elements[static_cast<std::size_t>(e)];
          EXPECT_EQ(is_a ? element.row : element.column, gfx942::operand_row(0)) << lane;
          EXPECT_EQ(is_a ? element.column : element.row, count * gfx942::operand_quarter() + e)
              << lane;
        }
      });
    }
}

} // namespace
} // namespace dsakit::optimized::host
