// topk_slots: kernel against reference, exactly, on every device.
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/topk_slots.hpp"
#include "dsakit/reference/topk.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace topk_slots_test {

using testing::OnDevice;

constexpr std::int32_t kPoison = 0x7FFFFFFF;
constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kSmallest = std::numeric_limits<std::int32_t>::min();

struct Problem {
  std::int64_t k;
  std::int64_t table_columns;
  std::int64_t page_size;
  std::int64_t block_stride;
  std::vector<std::int32_t> indices = {};     // [rows, k]
  std::vector<std::int32_t> row_request = {}; // [rows]
  std::vector<std::int32_t> table = {};       // [requests, table_columns]
  reference::DcpRank dcp = {};

  std::int64_t rows() const { return static_cast<std::int64_t>(row_request.size()); }
  std::int64_t requests() const {
    return table_columns == 0 ? 0 : static_cast<std::int64_t>(table.size()) / table_columns;
  }
};

/// Positions all over the table and beside it.
Problem random_problem(std::int64_t page_size, std::int64_t block_stride) {
  std::mt19937 random(static_cast<unsigned>(page_size));
  Problem p{37, 6, page_size, block_stride, {}, {2, 0, 1, 2, 3}, {}};
  p.table = testing::random_block_table(4, p.table_columns, random);
  const std::int64_t capacity = p.table_columns * page_size;
  for (std::int64_t i = 0; i < p.rows() * p.k; ++i)
    p.indices.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(capacity)));
  return p;
}

class TopkSlots : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  struct Compact {
    std::vector<std::int32_t> slots, counts;
  };

  /// The kernel's table has rows of a wider one, whose tail holds pages that exist. `compact` takes
  /// the slots at the front and their counts.
  std::vector<std::int32_t> kernel_slots(const Problem& p, Compact* compact = nullptr) {
    const std::int64_t table_stride = p.table_columns + 5;
    std::vector<std::int32_t> wide(static_cast<std::size_t>(p.requests() * table_stride), 1);
    for (std::int64_t b = 0; b < p.requests(); ++b)
      std::copy_n(p.table.begin() + b * p.table_columns, p.table_columns,
                  wide.begin() + b * table_stride);
    OnDevice<std::int32_t> indices(*device_, p.indices);
    OnDevice<std::int32_t> table(*device_, wide);
    OnDevice<std::int32_t> row_request(*device_, p.row_request);
    OnDevice<std::int32_t> slots(*device_, std::vector<std::int32_t>(p.indices.size(), kPoison));
    OnDevice<std::int32_t> front(*device_, std::vector<std::int32_t>(p.indices.size(), kPoison));
    OnDevice<std::int32_t> counts(*device_,
                                  std::vector<std::int32_t>(p.row_request.size(), kPoison));
    optimized::TopkSlotsParams params{};
    params.topk_indices = indices.data();
    params.block_table = table.data();
    params.row_request = row_request.data();
    params.slots = slots.data();
    params.rows = p.rows();
    params.table_stride = table_stride;
    params.k = static_cast<std::int32_t>(p.k);
    params.requests = static_cast<std::int32_t>(p.requests());
    params.table_columns = static_cast<std::int32_t>(p.table_columns);
    params.page_size = static_cast<std::int32_t>(p.page_size);
    params.block_stride = static_cast<std::int32_t>(p.block_stride);
    params.dcp_world = static_cast<std::int32_t>(p.dcp.world);
    params.dcp_interleave = static_cast<std::int32_t>(p.dcp.interleave);
    params.dcp_rank = static_cast<std::int32_t>(p.dcp.rank);
    if (compact) {
      params.compact_slots = front.data();
      params.counts = counts.data();
    }
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    if (compact) *compact = {front.values(), counts.values()};
    return slots.values();
  }

  void expect_same_slots(const Problem& p) {
    std::vector<std::int32_t> want(p.indices.size(), kPoison);
    ASSERT_TRUE(reference::topk_slots(
        p.indices.data(), p.rows(), p.k, {p.table.data(), p.requests(), p.table_columns},
        p.row_request.data(), p.page_size, p.block_stride, want.data(), p.dcp));
    testing::expect_same("slots", kernel_slots(p), want, static_cast<std::size_t>(p.k));

    std::vector<std::int32_t> front(want.size(), kPoison), counts(p.row_request.size(), kPoison);
    reference::compact_slots(want.data(), p.rows(), p.k, front.data(), counts.data());
    Compact compact;
    testing::expect_same("slots beside compact ones", kernel_slots(p, &compact), want,
                         static_cast<std::size_t>(p.k));
    testing::expect_same("compact_slots", compact.slots, front, static_cast<std::size_t>(p.k));
    testing::expect_same("counts", compact.counts, counts, 1);
  }
};

// S10: any page size, and pages of a packed cache that lie further apart than their tokens.
TEST_P(TopkSlots, S10_EveryPageSize) {
  for (std::int64_t page_size : {1, 2, 16, 53, 61, 64, 256})
    for (std::int64_t extra : {0, 1, 67}) {
      SCOPED_TRACE("page " + std::to_string(page_size) + " + " + std::to_string(extra));
      expect_same_slots(random_problem(page_size, page_size + extra));
    }
}

// The example of spec 5.1.
TEST_P(TopkSlots, PackedPagesOfSpecFiveOne) {
  const Problem p{4, 2, 16, 64, {0, 15, 16, -1}, {0}, {3, 7}};
  EXPECT_EQ(kernel_slots(p), (std::vector<std::int32_t>{192, 207, 448, -1}));
  expect_same_slots(p);
}

// S23, S21, S22: every invalid position, page and request gives -1, wherever it stands.
TEST_P(TopkSlots, S21_S22_S23_InvalidEntriesGiveMinusOne) {
  Problem p = random_problem(16, 16);
  const std::int32_t bad[] = {-1, -2, kSmallest, kLargest, 6 * 16, 6 * 16 + 15, 1 << 30};
  for (std::size_t i = 0; i < p.indices.size(); i += 3)
    p.indices[i] = bad[i / 3 % std::size(bad)];
  p.row_request[1] = -1;
  p.row_request[3] = 4; // as many as there are
  p.table[2] = -1;
  p.table[p.table.size() - 1] = kSmallest;
  expect_same_slots(p);
}

// S59: the slots of each rank, any world, interleaves that divide nothing; every column is
// converted, and compaction keeps the order.
TEST_P(TopkSlots, S59_EachRankGetsItsOwn) {
  for (std::int64_t world : {1, 2, 3, 8, 64})
    for (std::int64_t interleave : {1, 4, 5, 16, 64, 100})
      for (std::int64_t rank : {std::int64_t{0}, world / 2, world - 1}) {
        SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                     ", interleave " + std::to_string(interleave));
        Problem p = random_problem(16, 17);
        for (std::int32_t& position : p.indices)
          position = static_cast<std::int32_t>(position * world + position % world);
        for (std::size_t i = 0; i < p.indices.size(); i += 7)
          p.indices[i] = -1;
        p.dcp = {world, interleave, rank};
        expect_same_slots(p);
      }
  const Problem far{3,   3,         1 << 20,     1 << 20, {kLargest, kLargest - 5, kSmallest},
                    {0}, {0, 1, 2}, {1000, 3, 2}};
  expect_same_slots(far);
}

// Compaction of rows of any width around the lanes of a workgroup, empty and full ones.
TEST_P(TopkSlots, CompactionOfEveryWidth) {
  for (std::int64_t k : {1, 2, 255, 256, 257, 511, 513, 2048, 2051}) {
    SCOPED_TRACE("k " + std::to_string(k));
    Problem p{k, 6, 64, 64, {}, {0, 0, 0, 0}, {4, 2, 0, 1, 5, 3}};
    for (std::int64_t row = 0; row < p.rows(); ++row)
      for (std::int64_t i = 0; i < k; ++i) {
        const bool valid = row == 1 || (row == 2 && i % 3 == 1) || (row == 3 && i == k - 1);
        p.indices.push_back(valid ? static_cast<std::int32_t>(i * 7 % 384) : -1);
      }
    expect_same_slots(p);
  }
}

// The counts alone, and the compact slots alone.
TEST_P(TopkSlots, EachOutputMayBeLeftOut) {
  const Problem p{3, 1, 4, 4, {-1, 2, 1}, {0}, {5}};
  OnDevice<std::int32_t> indices(*device_, p.indices), table(*device_, p.table),
      row_request(*device_, p.row_request), out(*device_, std::vector<std::int32_t>(3, kPoison));
  optimized::TopkSlotsParams params{};
  params.topk_indices = indices.data();
  params.block_table = table.data();
  params.row_request = row_request.data();
  params.rows = 1;
  params.table_stride = 1;
  params.k = 3;
  params.requests = 1;
  params.table_columns = 1;
  params.page_size = 4;
  params.block_stride = 4;
  params.counts = out.data();
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_EQ(out.values(), (std::vector<std::int32_t>{2, kPoison, kPoison}));
  params.counts = nullptr;
  params.compact_slots = out.data();
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_EQ(out.values(), (std::vector<std::int32_t>{22, 21, -1}));
}

// Slots are int32: the last that fits is right, and the first beyond is invalid, not negative.
TEST_P(TopkSlots, S12_SlotsAtTheEndOfInt32) {
  const Problem fits{3, 1, 4, 4, {3, 0, 2}, {0}, {kLargest / 4}};
  EXPECT_EQ(kernel_slots(fits), (std::vector<std::int32_t>{kLargest, kLargest - 3, kLargest - 1}));
  expect_same_slots(fits);
  const Problem beyond{3, 1, 4, 4, {3, 0, 2}, {0}, {kLargest / 4 + 1}};
  EXPECT_EQ(kernel_slots(beyond), (std::vector<std::int32_t>{-1, -1, -1}));
  const Problem far{2, 1, 64, 1 << 30, {3, 63}, {0}, {kLargest}};
  EXPECT_EQ(kernel_slots(far), (std::vector<std::int32_t>{-1, -1}));
}

TEST_P(TopkSlots, NoRowsWriteNothing) {
  expect_same_slots({5, 3, 16, 16, {}, {}, {0, 1, 2}});
}

TEST_P(TopkSlots, RefusesWhatItCannotConvert) {
  optimized::TopkSlotsParams params{};
  params.k = 4;
  params.page_size = 16;
  params.block_stride = 16;
  const auto refusal = [&](auto change) {
    optimized::TopkSlotsParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.k = 0; }).find("k is 0, want at least 1"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.block_stride = 15; }).find("block_stride is 15 slots"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.rows = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.dcp_world = 0; }).find("dcp_world is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.dcp_interleave = 0; }).find("dcp_interleave 0"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.dcp_rank = 1; }).find("dcp_rank is 1, want 0 to 0"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, TopkSlots, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace topk_slots_test
} // namespace dsakit
