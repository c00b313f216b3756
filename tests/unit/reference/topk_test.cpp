#include "dsakit/reference/topk.hpp"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/guarded.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace topk_test {

using testing::Guarded;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kPoison = 0x7FFFFFFF;
constexpr std::int32_t kCanary = -777;

using Ids = std::vector<std::int32_t>;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Rows of equally many logits.
struct Rows {
  std::vector<float> logits;
  std::int64_t columns;
  Ids ends;
  Ids starts = {}; ///< empty: 0

  std::int64_t rows() const { return std::ssize(ends); }
};

Ids selected(const Rows& in, std::int64_t k, TopkOrder order = TopkOrder::rank) {
  Guarded<std::int32_t> ids(index(in.rows() * k), kPoison, kCanary);
  const Status status =
      topk(in.logits.data(), in.rows(), in.columns, in.starts.empty() ? nullptr : in.starts.data(),
           in.ends.data(), k, order, ids.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(ids.intact());
  return {ids.data(), ids.data() + ids.size()};
}

Ids selected(const std::vector<float>& row, std::int64_t k, TopkOrder order = TopkOrder::rank) {
  return selected({row, std::ssize(row), {static_cast<std::int32_t>(row.size())}}, k, order);
}

/// The rank of a score as an integer, larger is better: NaN 0, then -inf to +inf with one zero.
std::int64_t rank_key(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(score + 0.0f));
  return bits < 0x80000000 ? (std::int64_t{1} << 33) + bits
                           : (std::int64_t{1} << 32) + 0xFFFFFFFF - bits;
}

/// By a sort of everything: what topk must give for a row longer than k.
Ids best_by_sorting(const std::vector<float>& row, std::int64_t k) {
  std::vector<std::pair<std::int64_t, std::int32_t>> keys; // ascending: the best first
  for (std::int32_t i = 0; i < std::ssize(row); ++i)
    keys.emplace_back(-rank_key(row[index(i)]), i);
  std::sort(keys.begin(), keys.end());
  Ids ids;
  for (std::int64_t i = 0; i < k; ++i)
    ids.push_back(keys[index(i)].second);
  return ids;
}

/// Why `ids` is no right selection of the row with ties free; empty when it is (S43).
std::string why_invalid(const std::vector<float>& row, const Ids& ids) {
  const std::set<std::int32_t> members(ids.begin(), ids.end());
  if (members.size() != ids.size()) return "an id repeats";
  if (*members.begin() < 0 || *members.rbegin() >= std::ssize(row)) return "an id is out of range";
  std::int64_t worst_in = std::numeric_limits<std::int64_t>::max(), best_out = -1;
  for (std::int32_t i = 0; i < std::ssize(row); ++i)
    if (members.contains(i))
      worst_in = std::min(worst_in, rank_key(row[index(i)]));
    else
      best_out = std::max(best_out, rank_key(row[index(i)]));
  return worst_in >= best_out ? "" : "a better score was left out";
}

std::vector<float> random_row(std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(index(columns));
  for (float& x : row)
    x = normal(random);
  return row;
}

// ---- topk: refusals, short rows -----------------------------------------------------------------

TEST(TopK, RefusalsNameTheColumnsAndWriteNothing) {
  const std::vector<float> logits(3 * 10, 1.0f);
  Ids ids(3 * 2, kPoison);
  const auto refused = [&](const Ids& starts, const Ids& ends) {
    const Status status =
        topk(logits.data(), 3, 10, starts.data(), ends.data(), 2, TopkOrder::rank, ids.data());
    EXPECT_EQ(status.code(), Code::bad_input);
    EXPECT_EQ(ids, Ids(3 * 2, kPoison));
    return status.what();
  };
  EXPECT_EQ(refused({0, 0, 0}, {10, 11, 3}),
            "columns of row 1: found [0, 11), want within [0, 10)");
  EXPECT_EQ(refused({0, 0, -1}, {10, 10, 3}),
            "columns of row 2: found [-1, 3), want within [0, 10)");
}

TEST(TopK, S40_S41_ShortRowsAreTakenWholeAndEveryCellIsWritten) {
  for (std::int64_t k : {1, 8, 2048})
    for (std::int64_t length :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, k - 1, k, k + 1, std::int64_t{-5}}) {
      if (length > k + 1) continue;
      Rows in{random_row(3 * (k + 2), 1),
              k + 2,
              {static_cast<std::int32_t>(k + 2), static_cast<std::int32_t>(length), 1}};
      for (TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
        const Ids ids = selected(in, k, order);
        EXPECT_EQ(std::count(ids.begin(), ids.end(), kPoison), 0);
        for (std::int64_t i = 0; i < k && length <= k; ++i)
          ASSERT_EQ(ids[index(k + i)], i < length ? i : -1) << length << " of " << k;
        EXPECT_EQ(ids[index(2 * k)], 0);
      }
    }
}

TEST(TopK, LogitsOfShortRowsAreNotRead) {
  Ids ids(2 * 4, kPoison);
  const Ids ends = {4, 2};
  ASSERT_TRUE(topk(nullptr, 2, 9, nullptr, ends.data(), 4, TopkOrder::rank, ids.data()));
  EXPECT_EQ(ids, (Ids{0, 1, 2, 3, 0, 1, -1, -1}));
}

TEST(TopK, NothingOutsideTheWindowIsReadAndPositionsCountFromItsStart) {
  Rows in{std::vector<float>(3 * 20, kInf), 20, {9, 20, 7}, {4, 13, 7}}; // +inf would win
  const std::vector<float> scores = {3, 1, 4, 1, 5, 9, 2};
  for (std::int64_t i = 0; i < 5; ++i)
    in.logits[index(4 + i)] = scores[index(i)];
  for (std::int64_t i = 0; i < 7; ++i)
    in.logits[index(20 + 13 + i)] = scores[index(i)];
  EXPECT_EQ(selected(in, 3), (Ids{4, 2, 0, 5, 4, 2, -1, -1, -1}));
}

// ---- topk: seams, widths, distributions ---------------------------------------------------------

TEST(TopK, S33_S47_AnyWidthAndEverySeamEqualsASortOfTheWholeRow) {
  for (std::int64_t k : {1, 7, 8, 64, 512, 1024, 2048, 2051})
    for (std::int64_t length :
         {k + 1, k + 63, k + 64, std::int64_t{1025}, std::int64_t{2049}, std::int64_t{4097}}) {
      if (length <= k) continue;
      const auto row = random_row(length, static_cast<unsigned>(k + length));
      ASSERT_EQ(selected(row, k), best_by_sorting(row, k)) << k << " of " << length;
    }
}

TEST(TopK, S42_TiesAndNarrowDistributionsAreExact) {
  std::vector<float> two_level(8320, 0.0f); // 100 distinct winners, 8220 zeros
  for (std::size_t i = 0; i < 100; ++i)
    two_level[(i * 83 + 7) % two_level.size()] = 1.0f + static_cast<float>(i);
  std::vector<float> one_bin;
  for (int i = 0; i < 5000; ++i)
    one_bin.push_back(1 + static_cast<float>(i * 2477 % 5000) * 0x1p-20f);
  std::vector<float> huge = random_row(4096, 2);
  for (float& x : huge)
    x *= 1e37f;
  std::vector<float> masked = random_row(4096, 3); // fewer than k above -inf
  for (std::size_t i = 0; i < masked.size(); ++i)
    if (i % 3) masked[i] = -kInf;
  for (const auto& row : {std::vector<float>(5000, 0.5f), two_level, one_bin, huge, masked}) {
    const Ids ids = selected(row, 2048);
    EXPECT_EQ(ids, best_by_sorting(row, 2048));
    EXPECT_EQ(why_invalid(row, ids), "");
  }
  const Ids constant = selected(std::vector<float>(5000, 0.5f), 2048);
  for (std::int32_t i = 0; i < 2048; ++i)
    ASSERT_EQ(constant[index(i)], i);
}

TEST(TopK, AMillionColumns) {
  std::vector<float> row = random_row(1'000'000, 4);
  for (float& x : row)
    x = std::max(x, 0.0f); // half of them tie
  EXPECT_EQ(selected(row, 4096), best_by_sorting(row, 4096));
}

// ---- topk: order --------------------------------------------------------------------------------

TEST(TopK, S45_NaNOfEitherSignIsLastAndIdsStayInRange) {
  const std::vector<float> row = {1, kNaN, 2, -kNaN, kInf, -kInf};
  EXPECT_EQ(selected(row, 3), (Ids{4, 2, 0}));
  EXPECT_EQ(selected(row, 5), (Ids{4, 2, 0, 5, 1}));
  EXPECT_EQ(selected(std::vector<float>(9, kNaN), 4), (Ids{0, 1, 2, 3}));
}

TEST(TopK, S27_MinusInfinityInsideTheWindowLosesToEveryNumber) {
  EXPECT_EQ(selected(std::vector<float>{-kInf, -1, -kInf, 0, -3e38f}, 4), (Ids{3, 1, 4, 0}));
}

TEST(TopK, MinusZeroTiesWithPlusZero) {
  EXPECT_EQ(selected(std::vector<float>{-1, -0.0f, 0.0f, -0.0f, 0.0f, 1}, 4), (Ids{5, 1, 2, 3}));
}

TEST(TopK, EqualScoresKeepTheLowestPositions) {
  EXPECT_EQ(selected(std::vector<float>{2, 5, 2, 2, 5, 2}, 4), (Ids{1, 4, 0, 2}));
}

TEST(TopK, AscendingOrdersTheSameSet) {
  const auto row = random_row(300, 5);
  Ids ids = selected(row, 65);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(selected(row, 65, TopkOrder::ascending), ids);
}

TEST(TopK, S44_TheSameTiesGiveTheSameIdsOnEveryRunAndAnyNumberOfThreads) {
  Rows in{{}, 4096, {}};
  for (unsigned r = 0; r < 5; ++r) {
    auto row = random_row(4096, 6 + r);
    for (std::size_t i = 0; i < 1000; ++i)
      row[i * 4 + r % 4] = 0.25f; // across the boundary
    in.logits.insert(in.logits.end(), row.begin(), row.end());
    in.ends.push_back(4096 - static_cast<std::int32_t>(r));
  }
  const Ids want = selected(in, 2000);
  for (std::size_t threads : {1u, 2u, 5u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    for (int run = 0; run < 5; ++run)
      ASSERT_EQ(selected(in, 2000), want);
  }
}

TEST(TopKChecker, S43_RejectsDuplicatesForeignIdsAndWorseMembers) {
  const std::vector<float> row = {0, 1, 7, 9, 2, 9};
  EXPECT_EQ(why_invalid(row, {5, 3, 2}), "");
  EXPECT_EQ(why_invalid(row, {5, 5, 2}), "an id repeats");
  EXPECT_EQ(why_invalid(row, {5, 3, 6}), "an id is out of range");
  EXPECT_EQ(why_invalid(row, {5, 3, -1}), "an id is out of range");
  EXPECT_EQ(why_invalid(row, {5, 3, 4}), "a better score was left out");
  EXPECT_EQ(why_invalid(std::vector<float>{3, 1, 1, 1}, {0, 2}), ""); // ties are free
}

// ---- topk_slots ---------------------------------------------------------------------------------

struct SlotRows {
  Ids positions; ///< [rows, k]
  std::int64_t k;
  Ids table; ///< [requests, columns]
  std::int64_t requests;
  Ids row_request;
  std::int64_t page_size;
  std::int64_t block_stride;

  Status run(std::int32_t* slots) const {
    return topk_slots(positions.data(), std::ssize(row_request), k,
                      {table.data(), requests, std::ssize(table) / requests}, row_request.data(),
                      page_size, block_stride, slots);
  }
};

Ids slots_of(const SlotRows& in) {
  Guarded<std::int32_t> slots(in.positions.size(), kPoison, kCanary);
  const Status status = in.run(slots.data());
  EXPECT_TRUE(status) << status.what();
  EXPECT_TRUE(slots.intact());
  return {slots.data(), slots.data() + slots.size()};
}

// The positions that a rank holds, counted out one by one.
TEST(TopkOfRank, S59_ColumnsBecomePositionsOfTheRequest) {
  std::mt19937 random(5);
  for (const DcpRank& dcp : {DcpRank{2, 1, 1}, DcpRank{3, 4, 0}, DcpRank{8, 64, 7}}) {
    std::vector<std::int32_t> held;
    for (std::int32_t position = 0; held.size() < 40; ++position)
      if (position / dcp.interleave % dcp.world == dcp.rank) held.push_back(position);
    std::vector<float> logits;
    for (int i = 0; i < 2 * 40; ++i)
      logits.push_back(static_cast<float>(random() % 9));
    const std::vector<std::int32_t> ends = {40, 6};
    std::vector<std::int32_t> local(2 * 10), global(2 * 10);
    for (const TopkOrder order : {TopkOrder::rank, TopkOrder::ascending}) {
      ASSERT_TRUE(topk(logits.data(), 2, 40, nullptr, ends.data(), 10, order, local.data()));
      ASSERT_TRUE(topk(logits.data(), 2, 40, nullptr, ends.data(), 10, order, global.data(), dcp));
      std::vector<float> want(2 * 10), got(2 * 10);
      dcp_scores(logits.data(), 2, 40, nullptr, local.data(), 10, want.data());
      dcp_scores(logits.data(), 2, 40, nullptr, global.data(), 10, got.data(), dcp);
      EXPECT_EQ(got, want);
      for (std::size_t i = 0; i < global.size(); ++i)
        EXPECT_EQ(global[i], local[i] < 0 ? -1 : held[static_cast<std::size_t>(local[i])]);
    }
  }
  const float logits[] = {1, 2};
  const std::int32_t two = 2;
  std::int32_t index = 77;
  const DcpRank far{2, std::int64_t{1} << 31, 1};
  EXPECT_EQ(topk(logits, 1, 2, nullptr, &two, 1, TopkOrder::rank, &index, far).what(),
            "last position of row 0: found 2147483649, want an int32");
  EXPECT_EQ(topk(logits, 1, 2, nullptr, &two, 1, TopkOrder::rank, &index, {2, 1, 2}).what(),
            "dcp rank: found 2, want 0 to 1");
  EXPECT_EQ(index, 77);
}

TEST(TopkSlots, PagesAreStridedAndMinusOneStays) {
  EXPECT_EQ(slots_of({{0, 15, 16, -1}, 4, {3, 7}, 1, {0}, 16, 64}),
            (Ids{192, 207, 448, -1})); // spec 8
}

TEST(TopkSlots, S17_EachRowUsesItsOwnRequestAndKeepsItsOwnCells) {
  SlotRows in{{}, 4, {10, 11, 20, 21, 30, 31}, 3, {2, 0, 1, 0, 2}, 8, 8};
  for (std::int32_t row = 0; row < 5; ++row)
    for (std::int32_t i = 0; i < 4; ++i)
      in.positions.push_back((row * 3 + i * 5) % 16);
  const Ids slots = slots_of(in);
  for (std::int32_t row = 0; row < 5; ++row)
    for (std::int32_t i = 0; i < 4; ++i) {
      const std::int32_t p = (row * 3 + i * 5) % 16;
      const std::int32_t page = (in.row_request[index(row)] + 1) * 10 + p / 8;
      EXPECT_EQ(slots[index(row * 4 + i)], page * 8 + p % 8) << row << " " << i;
    }
}

TEST(TopkSlots, S23_InvalidPositionsPagesAndRequestsGiveMinusOne) {
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  const SlotRows in{
      {0, -1, 7, kMax, -2, kMin, 3, 4, 0, 1, 2, 3, 0, 1, 2, 3}, 8, {5, -1}, 1, {0, 1}, 4, 4};
  EXPECT_EQ(slots_of(in), (Ids{20, -1, -1, -1, -1, -1, 23, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  SlotRows negative = in;
  negative.row_request = {-1, 0};
  EXPECT_EQ(slots_of(negative)[0], -1);
  EXPECT_EQ(slots_of(negative)[8], 20);
}

TEST(TopkSlots, S12_ASlotBeyondInt32IsRefusedAndNothingIsWritten) {
  SlotRows in{{0, 63, 64}, 3, {33554431, 0}, 1, {0}, 64, 64};
  EXPECT_EQ(slots_of(in), (Ids{2147483584, 2147483647, 0}));
  in.block_stride = 65;
  Ids slots(3, kPoison);
  const Status status = in.run(slots.data());
  EXPECT_EQ(status.what(), "slot of position 0 in row 0: found 2181038015, want an int32");
  EXPECT_EQ(status.code(), Code::bad_input);
  EXPECT_EQ(slots, Ids(3, kPoison));
  in.block_stride = 63;
  EXPECT_EQ(in.run(slots.data()).what(),
            "block stride: found 63 slots, want at least the page size 64");
  in.page_size = 0;
  EXPECT_EQ(in.run(slots.data()).what(), "page_size: found 0, want at least 1");
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(TopkRecorded, SelectionsOfVllmAreValidAndSoAreOurs) {
  DSAKIT_NEED_RECORDING("kernel_topk");
  testing::Safetensors file(testing::recording_path("kernel_topk"));
  const Rows in{file.values<float>("logits"), file.extent("logits", 1),
                file.values<std::int32_t>("row_lens")};
  const auto recorded = file.values<std::int32_t>("topk");
  const std::int64_t k = file.extent("topk", 1);
  const Ids ours = selected(in, k);
  for (std::int64_t row = 0; row < in.rows(); ++row) {
    const auto logits = in.logits.begin() + row * in.columns;
    const std::vector<float> scores(logits, logits + in.ends[index(row)]);
    const auto ids_of = [&](const Ids& all) {
      return Ids(all.begin() + row * k, all.begin() + (row + 1) * k);
    };
    EXPECT_EQ(why_invalid(scores, ids_of(recorded)), "") << row;
    EXPECT_EQ(ids_of(ours), best_by_sorting(scores, k)) << row;
    Ids faulty = ids_of(recorded); // the worst that was left out for the best that was taken
    *std::find(faulty.begin(), faulty.end(), ours[index(row * k)]) =
        best_by_sorting(scores, std::ssize(scores)).back();
    EXPECT_EQ(why_invalid(scores, faulty), "a better score was left out") << row;
  }
}

TEST(TopkSlotsRecorded, VllmSlotsAreReproduced) {
  DSAKIT_NEED_RECORDING("kernel_index_convert");
  testing::Safetensors file(testing::recording_path("kernel_index_convert"));
  for (auto [name, page_size, block_stride] : {std::tuple{"slots_bs64_stride64", 64, 64},
                                               {"slots_bs64_stride80", 64, 80},
                                               {"slots_bs16_stride64", 16, 64}}) {
    const SlotRows in{file.values<std::int32_t>("token_indices"),
                      file.extent("token_indices", 1),
                      file.values<std::int32_t>("block_table"),
                      file.extent("block_table", 0),
                      file.values<std::int32_t>("req_id"),
                      page_size,
                      block_stride};
    EXPECT_EQ(slots_of(in), file.values<std::int32_t>(name)) << name;
  }
}

class LayerTopkRecorded : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerTopkRecorded, RecordedLogitsGiveTheRecordedIdsAndSlots) {
  DSAKIT_NEED_RECORDING(GetParam());
  testing::Safetensors file(testing::recording_path(GetParam()));
  int steps = 0;
  bool selects = false; // some row is longer than k
  for (;; ++steps) {
    const std::string step = "steps." + std::to_string(steps) + ".";
    if (!file.has(step + "index_logits")) break;
    Rows in{file.values<float>(step + "index_logits"), file.extent(step + "index_logits", 1), {}};
    Ids row_request;
    const auto query_lens = file.values<std::int32_t>(step + "query_lens");
    const auto seq_lens = file.values<std::int32_t>(step + "seq_lens");
    for (std::size_t b = 0; b < query_lens.size(); ++b)
      for (std::int32_t i = 0; i < query_lens[b]; ++i) {
        in.ends.push_back(seq_lens[b] - query_lens[b] + i + 1);
        row_request.push_back(static_cast<std::int32_t>(b));
      }
    const std::int64_t k = file.extent(step + "topk_indices", 1);
    selects = selects || *std::max_element(in.ends.begin(), in.ends.end()) > k;
    const Ids ids = selected(in, k);
    EXPECT_TRUE(ids == file.values<std::int32_t>(step + "topk_indices")) << step;
    const SlotRows rows{ids,
                        k,
                        file.values<std::int32_t>(step + "block_table"),
                        file.extent(step + "block_table", 0),
                        row_request,
                        64,
                        64};
    EXPECT_TRUE(slots_of(rows) == file.values<std::int32_t>(step + "topk_slots")) << step;
  }
  EXPECT_GT(steps, 0);
  EXPECT_TRUE(selects);
}

INSTANTIATE_TEST_SUITE_P(Files, LayerTopkRecorded,
                         ::testing::Values("decode_next_n2", "decode_fnuz", "decode_mxfp4",
                                           "prefill_no_q_lora_rmsnorm_yarn",
                                           "prefill_q_lora_layernorm_gate"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace topk_test
} // namespace dsakit::reference
