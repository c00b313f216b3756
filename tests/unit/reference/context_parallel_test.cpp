#include "dsakit/reference/context_parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/topk.hpp"
#include "support/recordings.hpp"
#include "support/safetensors.hpp"

namespace dsakit::reference {
namespace context_parallel_test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<std::int32_t>;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// ---- Who holds what -----------------------------------------------------------------------------

TEST(ContextParallel, S59_S60_EveryPositionHasOneOwnerWhichCountsItsOwnWithoutGaps) {
  for (std::int64_t world : {1, 2, 3, 4, 7, 8, 64})
    for (std::int64_t interleave : {1, 2, 3, 4, 16, 64, 100}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, interleave " + std::to_string(interleave));
      std::vector<std::int64_t> held(index(world), 0); // by each rank so far
      for (std::int64_t position = 0; position < 1000; ++position) {
        for (std::int64_t rank = 0; rank < world; ++rank)
          ASSERT_EQ(dcp_local_length({world, interleave, rank}, position), held[index(rank)])
              << "rank " << rank << " of the first " << position;
        const std::int64_t owner = dcp_owner({world, interleave, 0}, position);
        ASSERT_EQ(owner, position / interleave % world);
        ASSERT_EQ(dcp_local_index({world, interleave, 0}, position), held[index(owner)]);
        ASSERT_EQ(dcp_global_position({world, interleave, owner}, held[index(owner)]), position);
        ++held[index(owner)];
      }
    }
}

// A row's own length is localised: the rows of a request of 10 with three new tokens end at 8, 9
// and 10, and rank 1 of two sees 4, 4 and 5 of them, not the 5, 5 and 5 of the request.
TEST(ContextParallel, EachCausalBoundIsLocalisedApart) {
  for (auto [length, local] : {std::pair{8, 4}, {9, 4}, {10, 5}})
    EXPECT_EQ(dcp_local_length({2, 1, 1}, length), local);
}

TEST(ContextParallel, PositionsBeyond32BitsOfBlocksStayRight) {
  const DcpRank dcp{8, std::int64_t{1} << 30, 3};
  const std::int64_t position = (std::int64_t{1} << 40) + dcp.rank * dcp.interleave + 17;
  EXPECT_EQ(dcp_owner(dcp, position), dcp.rank);
  EXPECT_EQ(dcp_global_position(dcp, dcp_local_index(dcp, position)), position);
}

TEST(ContextParallel, RefusalsNameTheNumber) {
  EXPECT_EQ(check_dcp_rank({0, 1, 0}).what(), "dcp world: found 0, want at least 1");
  EXPECT_EQ(check_dcp_rank({2, 0, 0}).what(), "dcp interleave: found 0, want at least 1");
  EXPECT_EQ(check_dcp_rank({2, 1, 2}).what(), "dcp rank: found 2, want 0 to 1");
  EXPECT_EQ(check_dcp_rank({2, 1, -1}).what(), "dcp rank: found -1, want 0 to 1");
  EXPECT_EQ(check_dcp_rank({2, 1, 2}).code(), Code::bad_input);
  EXPECT_TRUE(check_dcp_rank({1, 1, 0}));
  const Ids positions = {0};
  std::vector<std::int64_t> slots(1);
  EXPECT_FALSE(
      dcp_slot_mapping({2, 1, 2}, positions, positions.data(), {nullptr, 0, 0}, 4, slots.data()));
}

TEST(ContextParallel, ATokenIsWrittenByOneRankIntoItsOwnPages) {
  const Ids positions = {0, 1, 2, 3, 4, 5, 6, 7, 8}, request(9, 0);
  const Ids table = {5, 9}; // of either rank
  const auto slots_of = [&](std::int64_t rank) {
    std::vector<std::int64_t> slots(positions.size());
    EXPECT_TRUE(dcp_slot_mapping({2, 2, rank}, positions, request.data(), {table.data(), 1, 2}, 2,
                                 slots.data()));
    return slots;
  };
  // Blocks of 2 in turn; pages of 2: the third page of rank 0 does not exist.
  EXPECT_EQ(slots_of(0), (std::vector<std::int64_t>{10, 11, -1, -1, 18, 19, -1, -1, -1}));
  EXPECT_EQ(slots_of(1), (std::vector<std::int64_t>{-1, -1, 10, 11, -1, -1, 18, 19, -1}));
}

// ---- Local selection ----------------------------------------------------------------------------

TEST(DcpScores, AreTheLogitsOfThePositionsAndMinusInfinityAtPadding) {
  const std::vector<float> logits = {9, 8, 7, 6, 5, 4, 3, 2, -0.0f, kNaN};
  const Ids starts = {2, 0}, indices = {1, 0, -1, 4, 3, -1};
  std::vector<float> scores(6);
  dcp_scores(logits.data(), 2, 5, starts.data(), indices.data(), 3, scores.data());
  EXPECT_EQ(scores[0], 6);
  EXPECT_EQ(scores[1], 7);
  EXPECT_EQ(scores[2], -kInf);
  EXPECT_TRUE(std::isnan(scores[3]));
  EXPECT_TRUE(scores[4] == 0 && std::signbit(scores[4]));
  EXPECT_EQ(scores[5], -kInf);
}

TEST(CompactSlots, KeepsTheOrderAndCounts) {
  const Ids slots = {-1, 7, -1, 3, -1, -1, -1, -1, 5, 6, 4, 0};
  Ids compact(12, 99), counts(3, 99);
  compact_slots(slots.data(), 3, 4, compact.data(), counts.data());
  EXPECT_EQ(compact, (Ids{7, 3, -1, -1, -1, -1, -1, -1, 5, 6, 4, 0}));
  EXPECT_EQ(counts, (Ids{2, 0, 4}));
}

// ---- dcp_topk_merge -----------------------------------------------------------------------------

Ids merged(const std::vector<float>& scores, const Ids& indices, std::int64_t world, std::int64_t k,
           TopkOrder order = TopkOrder::rank) {
  const std::int64_t rows = std::ssize(indices) / (world * k);
  Ids out(index(rows * k), -777);
  dcp_topk_merge(scores.data(), indices.data(), world, rows, k, order, out.data());
  return out;
}

TEST(DcpTopkMerge, BestFirstAndTheSmallerPositionOfATie) {
  EXPECT_EQ(merged({1, 3, 2, 3}, {8, 6, 1, 3}, 2, 2), (Ids{3, 6}));
  EXPECT_EQ(merged({1, 3, 2, 3}, {8, 6, 1, 3}, 2, 2, TopkOrder::ascending), (Ids{3, 6}));
  EXPECT_EQ(merged({1, 5, 2, 3}, {8, 6, 1, 3}, 2, 2), (Ids{6, 3}));
}

TEST(DcpTopkMerge, RowsOfEveryRankStayApart) {
  // [world 2, rows 2, k 2]
  EXPECT_EQ(merged({9, 1, 2, 3, 8, 7, 6, 5}, {0, 2, 4, 6, 1, 3, 5, 7}, 2, 2), (Ids{0, 1, 5, 7}));
}

TEST(DcpTopkMerge, NaNIsBelowMinusInfinityAndAbovePadding) {
  EXPECT_EQ(merged({-kNaN, -kInf, kInf, -1}, {0, 2, -1, 3}, 2, 2), (Ids{3, 2}));
  EXPECT_EQ(merged({kNaN, -kInf, kNaN, kInf}, {4, 2, 1, -1}, 2, 2), (Ids{2, 1}));
}

TEST(DcpTopkMerge, MinusZeroTiesWithPlusZero) {
  EXPECT_EQ(merged({0.0f, -1, -0.0f, 1}, {4, 6, 1, 3}, 2, 2), (Ids{3, 1}));
}

TEST(DcpTopkMerge, ARowOfAtMostKCandidatesHasThemAll) {
  EXPECT_EQ(merged({1, 2, 0, 9, 0, 0}, {0, 2, -1, 1, -1, -1}, 2, 3), (Ids{1, 2, 0}));
  EXPECT_EQ(merged({1, 2, 0, 9, 0, 0}, {0, 2, -1, 1, -1, -1}, 2, 3, TopkOrder::ascending),
            (Ids{0, 1, 2}));
  EXPECT_EQ(merged({1, 0, 0, 0, -kInf, 0}, {1, -1, -1, -1, 2, -1}, 2, 3), (Ids{1, 2, -1}));
  EXPECT_EQ(merged({kInf, kInf}, {-1, -5}, 2, 1), (Ids{-1}));
}

// Packed into fp32 these three would be one (2^24).
TEST(DcpTopkMerge, PositionsBeyondTheIntegersOfFloatStayApart) {
  EXPECT_EQ(merged({1, 1, 1, 0}, {16777217, 16777218, 16777216, 16777219}, 2, 2),
            (Ids{16777216, 16777217}));
}

TEST(DcpTopkMerge, DependsOnTheSetOfCandidatesAlone) {
  std::mt19937 random(5);
  constexpr std::int64_t kWorld = 5, kK = 7;
  std::vector<std::pair<float, std::int32_t>> candidates;
  for (std::int32_t i = 0; i < kWorld * kK; ++i)
    candidates.emplace_back(static_cast<float>(random() % 4), i % 6 == 0 ? -1 : i);
  std::set<Ids> results;
  for (int run = 0; run < 20; ++run) {
    std::shuffle(candidates.begin(), candidates.end(), random);
    std::vector<float> scores;
    Ids indices;
    for (const auto& [score, position] : candidates)
      scores.push_back(score), indices.push_back(position);
    results.insert(merged(scores, indices, kWorld, kK));
  }
  EXPECT_EQ(results.size(), 1u);
}

// ---- dcp_attention_merge ------------------------------------------------------------------------

struct Merge {
  std::int64_t world;
  std::vector<float> lses;    ///< [world, rows of one head]
  std::vector<float> latents; ///< [world, rows, dim]
  std::int64_t dim = 1;
  LseBase base = LseBase::e;

  std::int64_t rows() const { return std::ssize(lses) / world; }
  DcpAttention in() const {
    return {latents.data(), Dtype::float32, lses.data(), world, rows(), 1, dim, base};
  }
};

struct Merged {
  std::vector<double> latent, lse, corrected;
};

Merged exactly(const Merge& m) {
  Merged out{std::vector<double>(index(m.rows() * m.dim)), std::vector<double>(index(m.rows())),
             std::vector<double>(m.latents.size())};
  EXPECT_TRUE(
      dcp_attention_merge_exact(m.in(), out.latent.data(), out.lse.data(), out.corrected.data()));
  return out;
}

Merged bounds(const Merge& m, Accumulation accumulation = Accumulation::fp32) {
  Merged out{std::vector<double>(index(m.rows() * m.dim)), std::vector<double>(index(m.rows())),
             std::vector<double>(m.latents.size())};
  EXPECT_TRUE(dcp_attention_merge_bound(m.in(), accumulation, out.latent.data(), out.lse.data(),
                                        out.corrected.data()));
  return out;
}

std::pair<std::vector<float>, std::vector<float>> simulated(const Merge& m) {
  std::vector<std::uint16_t> bits(index(m.rows() * m.dim));
  std::vector<float> lse(index(m.rows())), latent;
  EXPECT_TRUE(dcp_attention_merge(m.in(), bits.data(), lse.data()));
  for (std::uint16_t b : bits)
    latent.push_back(bf16_to_float(b));
  return {latent, lse};
}

TEST(DcpAttentionMerge, SharesAreWeightedByTheExponentOfTheLse) {
  const Merge m{2, {std::log(3.0f), 0}, {8, 4}};
  EXPECT_NEAR(exactly(m).latent[0], 7, 1e-6);
  EXPECT_NEAR(exactly(m).lse[0], std::log(4.0), 1e-7);
  EXPECT_EQ(simulated(m).first[0], 7);
  const Merge two{2, {2, 0}, {5, 10}, 1, LseBase::two}; // weights 4 and 1 of 5
  EXPECT_DOUBLE_EQ(exactly(two).latent[0], 6);
  EXPECT_DOUBLE_EQ(exactly(two).lse[0], std::log2(5.0));
  EXPECT_EQ(exactly(two).corrected, (std::vector<double>{4, 2}));
  EXPECT_EQ(simulated(two).first[0], 6);
}

TEST(DcpAttentionMerge, S52_ARankWithoutAKeyLeaksNothing) {
  for (float empty : {-kInf, kInf, kNaN, -kNaN})
    for (float garbage : {kNaN, kInf, 3e38f}) {
      const Merge m{3, {empty, 1.5f, empty}, {garbage, 6, -garbage}};
      EXPECT_EQ(exactly(m).latent[0], 6);
      EXPECT_EQ(exactly(m).lse[0], 1.5);
      EXPECT_EQ(exactly(m).corrected, (std::vector<double>{0, 6, 0}));
      EXPECT_EQ(simulated(m).first[0], 6);
      EXPECT_EQ(simulated(m).second[0], 1.5f);
      EXPECT_TRUE(std::isfinite(bounds(m).latent[0]));
      EXPECT_EQ(bounds(m).corrected[0], 0);
    }
}

TEST(DcpAttentionMerge, S50_WithoutAnyKeyTheLatentIsZeroAndTheLseMinusInfinity) {
  const Merge m{3, {-kInf, kNaN, kInf}, {kNaN, kNaN, kInf}};
  EXPECT_EQ(exactly(m).latent[0], 0);
  EXPECT_EQ(exactly(m).lse[0], -kInf);
  EXPECT_EQ(simulated(m).first[0], 0);
  EXPECT_EQ(simulated(m).second[0], -kInf);
  EXPECT_EQ(bounds(m).lse[0], 0);
}

TEST(DcpAttentionMerge, NaNOfARankWithKeysIsSeen) {
  const Merge m{2, {1, 0}, {kNaN, 6}};
  EXPECT_TRUE(std::isnan(exactly(m).latent[0]));
  EXPECT_TRUE(std::isnan(simulated(m).first[0]));
}

// Through the rounded lse every weight would be 1, and the sum four times too large.
TEST(DcpAttentionMerge, HugeLsesOfOneSizeStillShare) {
  for (float lse : {-1e30f, 1e30f, 3e38f, -3e38f, 1000.0f}) {
    const Merge m{4, {lse, lse, lse, lse}, {2, 4, 6, 8}};
    EXPECT_EQ(exactly(m).latent[0], 5) << lse;
    EXPECT_EQ(simulated(m).first[0], 5) << lse;
    EXPECT_LT(bounds(m).latent[0], 0.04) << lse;
  }
}

TEST(DcpAttentionMerge, SharesOfVeryDifferentSizeAndHugeLatentsStayFinite) {
  const Merge m{3, {3e38f, -3e38f, 0}, {3e38f, 3e38f, -3e38f}};
  EXPECT_EQ(simulated(m).first[0], bf16_to_float(float_to_bf16(3e38f)));
  EXPECT_EQ(simulated(m).second[0], 3e38f);
  const Merge equal{2, {0, 0}, {3e38f, 3e38f}}; // their sum is no fp32
  EXPECT_EQ(simulated(equal).first[0], bf16_to_float(float_to_bf16(3e38f)));
}

Merge random_merge(std::mt19937& random, std::int64_t world, float spread, LseBase base) {
  std::normal_distribution<float> normal;
  Merge m{world, {}, {}, 5, base};
  constexpr std::int64_t kRows = 20;
  for (std::int64_t i = 0; i < world * kRows; ++i)
    m.lses.push_back(random() % 9 == 0 ? -kInf : spread * normal(random));
  for (std::int64_t i = 0; i < world * kRows * m.dim; ++i)
    m.latents.push_back(normal(random));
  return m;
}

void expect_within(const std::vector<float>& got, const std::vector<double>& want,
                   const std::vector<double>& bound, double& used) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]);
      continue;
    }
    const double error = std::fabs(got[i] - want[i]);
    EXPECT_LE(error, bound[i]) << i;
    if (bound[i] > 0) used = std::max(used, error / bound[i]);
  }
}

// The bound holds and is not far from what rounding does.
TEST(DcpAttentionMerge, TheSimulatedTierStaysWithinTheBoundAndUsesMuchOfIt) {
  std::mt19937 random(11);
  double latent_used = 0, lse_used = 0;
  for (LseBase base : {LseBase::e, LseBase::two})
    for (std::int64_t world : {1, 2, 3, 8, 64})
      for (float spread : {0.0f, 1.0f, 8.0f, 300.0f}) {
        const Merge m = random_merge(random, world, spread, base);
        const auto [latent, lse] = simulated(m);
        const Merged want = exactly(m), bound = bounds(m);
        expect_within(latent, want.latent, bound.latent, latent_used);
        expect_within(lse, want.lse, bound.lse, lse_used);
      }
  EXPECT_GT(latent_used, 0.9); // the rounding to bf16
  EXPECT_GT(lse_used, 0.1);
}

TEST(DcpAttentionMerge, ADoubleRoundedOnceStaysWithinTheBoundOfExact) {
  std::mt19937 random(12);
  double used = 0;
  const Merge m = random_merge(random, 8, 4, LseBase::e);
  const Merged want = exactly(m), bound = bounds(m, Accumulation::exact);
  std::vector<float> latent, lse;
  for (double value : want.latent)
    latent.push_back(bf16_to_float(float_to_bf16(static_cast<float>(value))));
  for (double value : want.lse)
    lse.push_back(static_cast<float>(value));
  expect_within(latent, want.latent, bound.latent, used);
  expect_within(lse, want.lse, bound.lse, used);
  EXPECT_GT(used, 0.9);
}

/// fp32 rounds the sum up to the middle of two bf16, and that goes away from it.
TEST(DcpAttentionMerge, AValueThatReachesBf16ThroughFp32StaysWithinTheBoundOfExact) {
  constexpr float kMiddle = 1 + 0x3p-8F;
  const Merge m{2, {0, 0}, {kMiddle, kMiddle - 0x1p-23F}};
  const double want = exactly(m).latent[0];
  ASSERT_EQ(want, kMiddle - 0x1p-24);
  const float stored = bf16_to_float(float_to_bf16(static_cast<float>(want)));
  EXPECT_EQ(stored - want, 0x1p-8 + 0x1p-24);
  EXPECT_LE(stored - want, bounds(m, Accumulation::exact).latent[0]);
  EXPECT_LT(bounds(m, Accumulation::exact).latent[0], 0x1p-8 + 0x1p-23);
}

TEST(DcpAttentionMerge, TheOrderOfTheRanksChangesRoundingOnly) {
  std::mt19937 random(13);
  Merge m = random_merge(random, 4, 2, LseBase::e);
  const auto before = simulated(m);
  const Merged bound = bounds(m);
  std::rotate(m.lses.begin(), m.lses.begin() + std::ssize(m.lses) / 4, m.lses.end());
  std::rotate(m.latents.begin(), m.latents.begin() + std::ssize(m.latents) / 4, m.latents.end());
  const auto after = simulated(m);
  for (std::size_t i = 0; i < before.first.size(); ++i)
    EXPECT_LE(std::fabs(before.first[i] - after.first[i]), 2 * bound.latent[i]);
}

TEST(DcpAttentionMerge, RefusalsNameWhatWasFound) {
  const Merge m{1, {0}, {1}};
  DcpAttention in = m.in();
  double out[2] = {};
  in.latent_dtype = Dtype::float16;
  EXPECT_EQ(dcp_attention_merge_exact(in, out, out + 1, nullptr).what(),
            "latents of the ranks: found dtype float16, want bfloat16 or float32");
  in = m.in();
  in.world = 0;
  EXPECT_EQ(dcp_attention_merge_exact(in, out, out + 1, nullptr).what(),
            "ranks: found 0, want at least 1");
  EXPECT_EQ(
      dcp_attention_merge_bound(m.in(), Accumulation::sm90_wgmma_fp8, out, out + 1, nullptr).what(),
      "dcp_attention_merge: found accumulation sm90_wgmma_fp8, want exact | fp32");
}

// ---- Recordings ---------------------------------------------------------------------------------

TEST(ContextParallelRecorded, VllmSlotsOfEveryRankAreReproduced) {
  DSAKIT_NEED_RECORDING("kernel_index_convert");
  testing::Safetensors file(testing::recording_path("kernel_index_convert"));
  const auto positions = file.values<std::int32_t>("token_indices");
  const auto table = file.values<std::int32_t>("block_table");
  const auto request = file.values<std::int32_t>("req_id");
  const std::int64_t rows = std::ssize(request), k = file.extent("token_indices", 1);
  int found = 0;
  for (std::int64_t world : {2, 4, 8})
    for (std::int64_t interleave : {1, 4, 16, 64})
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const std::string name = "dcp" + std::to_string(world) + "_il" +
                                 std::to_string(interleave) + "_rank" + std::to_string(rank);
        if (!file.has(name + "_inplace")) continue;
        ++found;
        Ids slots(positions.size()), compact(positions.size()), counts(request.size());
        EXPECT_TRUE(
            topk_slots(positions.data(), rows, k,
                       {table.data(), file.extent("block_table", 0), file.extent("block_table", 1)},
                       request.data(), 64, 64, slots.data(), {world, interleave, rank}));
        EXPECT_EQ(slots, file.values<std::int32_t>(name + "_inplace")) << name;
        compact_slots(slots.data(), rows, k, compact.data(), counts.data());
        EXPECT_EQ(compact, file.values<std::int32_t>(name + "_slots")) << name;
        EXPECT_EQ(counts, file.values<std::int32_t>(name + "_counts")) << name;
      }
  EXPECT_EQ(found, 10);
}

struct RecordedMerge {
  testing::Safetensors file{testing::recording_path("kernel_cp_merge")};
  std::vector<float> lses = file.values<float>("lses");

  DcpAttention in(const void* latents, Dtype dtype, const char* tensor, LseBase base) const {
    return {latents,
            dtype,
            lses.data(),
            file.extent("lses", 0),
            file.extent("lses", 1),
            file.extent("lses", 2),
            file.extent(tensor, 3),
            base};
  }
};

std::int64_t ulps_apart(float a, float b) {
  const auto place = [](float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return std::int64_t{bits < 0 ? std::numeric_limits<std::int32_t>::min() - bits : bits};
  };
  return std::abs(place(a) - place(b));
}

TEST(ContextParallelRecorded, VllmCorrectionsInBf16AreReproducedBitForBit) {
  DSAKIT_NEED_RECORDING("kernel_cp_merge");
  RecordedMerge recorded;
  const auto latents = recorded.file.values<std::uint16_t>("out");
  std::vector<std::uint16_t> corrected(latents.size());
  const auto want_lse = recorded.file.values<float>("lse");
  std::vector<float> lse(want_lse.size());
  EXPECT_TRUE(dcp_attention_correct(recorded.in(latents.data(), Dtype::bfloat16, "out", LseBase::e),
                                    lse.data(), corrected.data()));
  EXPECT_EQ(corrected, recorded.file.values<std::uint16_t>("corrected_bf16"));
  for (std::size_t i = 0; i < lse.size(); ++i)
    EXPECT_LE(ulps_apart(lse[i], want_lse[i]), 1) << i;
}

TEST(ContextParallelRecorded, VllmCorrectionsInFp32StayWithinTheBound) {
  DSAKIT_NEED_RECORDING("kernel_cp_merge");
  RecordedMerge recorded;
  const auto latents = recorded.file.values<float>("out_fp32");
  for (auto [base, lse_name, name] :
       {std::tuple{LseBase::e, "lse", "corrected_fp32"},
        std::tuple{LseBase::two, "lse_base2", "corrected_fp32_base2"}}) {
    const DcpAttention in = recorded.in(latents.data(), Dtype::float32, "out_fp32", base);
    const std::size_t rows = index(in.rows * in.heads);
    std::vector<double> latent(rows * index(in.dim)), lse(rows), corrected(latents.size());
    auto latent_bound = latent, lse_bound = lse, corrected_bound = corrected;
    ASSERT_TRUE(dcp_attention_merge_exact(in, latent.data(), lse.data(), corrected.data()));
    ASSERT_TRUE(dcp_attention_merge_bound(in, Accumulation::fp32, latent_bound.data(),
                                          lse_bound.data(), corrected_bound.data()));
    double used = 0, lse_used = 0;
    expect_within(recorded.file.values<float>(name), corrected, corrected_bound, used);
    expect_within(recorded.file.values<float>(lse_name), lse, lse_bound, lse_used);
    EXPECT_GT(used, 0.05) << name; // and the bound is no wide one
    EXPECT_GT(lse_used, 0.05) << lse_name;
    // Where the lse says nothing of the weights, any weight from 0 to 1 is right, and no other.
    const auto wide = index((2 * 4 + 2) * in.dim);
    EXPECT_NEAR(corrected_bound[wide], 0.75 * std::fabs(latents[wide]), 1e-5) << name;
  }
}

} // namespace context_parallel_test
} // namespace dsakit::reference
