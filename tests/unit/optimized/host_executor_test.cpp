// The host executor: what lanes see of each other, and how a kernel that breaks the rules ends.
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "device/lane.hpp"
#include "runtime/host_executor.hpp"

namespace dsakit::optimized::host {
namespace {

namespace amd = gfx942::amd;

Status run(std::function<void()> lane, unsigned lanes = 256, ExecutorOptions options = {},
           unsigned workgroups = 1) {
  return run_grid(options, Launch{"kernel", {workgroups, 1, 1}, {lanes, 1, 1}, nullptr, 0, lane});
}

int lane_index() {
  return static_cast<int>(thread_index().x);
}

TEST(HostExecutor, EveryLaneOfEveryWorkgroupRunsOnce) {
  std::vector<std::atomic<int>> count(7 * 192);
  const Status status = run([&] { ++count[block_index().x * 192 + thread_index().x]; }, 192, {}, 7);
  ASSERT_TRUE(status) << status.what();
  for (const auto& n : count)
    EXPECT_EQ(n, 1);
}

TEST(HostExecutor, BarrierMakesEveryWriteVisible) {
  std::vector<int> seen(256);
  for (std::uint64_t seed : {0, 1, 99}) {
    const Status status = run(
        [&] {
          int* lds = static_cast<int*>(current->lds(256 * sizeof(int)));
          const int lane = lane_index();
          int sum = 0;
          for (int round = 0; round < 5; ++round) {
            lds[lane] = lane + round;
            workgroup_barrier();
            sum += lds[255 - lane];
            workgroup_barrier();
          }
          seen[static_cast<std::size_t>(lane)] = sum;
        },
        256, {.schedule_seed = seed});
    ASSERT_TRUE(status) << status.what();
    for (int lane = 0; lane < 256; ++lane)
      EXPECT_EQ(seen[static_cast<std::size_t>(lane)], 5 * (255 - lane) + 10);
  }
}

TEST(HostExecutor, WithoutABarrierALaneReadsThePattern) {
  std::uint8_t seen = 0;
  ASSERT_TRUE(run(
      [&] {
        auto* lds = static_cast<std::uint8_t*>(current->lds(256));
        if (lane_index() == 0) seen = lds[200];
        lds[lane_index()] = 1;
      },
      256, {.lds_pattern = 0x5E}));
  EXPECT_EQ(seen, 0x5E);
}

TEST(HostExecutor, ASeedShufflesTheWavesBetweenBarriers) {
  const auto order = [](std::uint64_t seed) {
    std::vector<int> waves;
    EXPECT_TRUE(run(
        [&] {
          for (int phase = 0; phase < 3; ++phase) {
            if (lane_index() % 64 == 0) waves.push_back(lane_index() / 64);
            workgroup_barrier();
          }
        },
        512, {.schedule_seed = seed}));
    return waves;
  };
  std::vector<int> ascending(24);
  for (int i = 0; i < 24; ++i)
    ascending[static_cast<std::size_t>(i)] = i % 8;
  EXPECT_EQ(order(0), ascending);
  EXPECT_NE(order(1), ascending);
  EXPECT_NE(order(1), order(2));
  EXPECT_EQ(order(7), order(7));
}

TEST(HostExecutor, LanesMayReturnBeforeABarrierThatTheOthersReach) {
  int after = 0;
  ASSERT_TRUE(run([&] {
    if (lane_index() % 3 == 0) return;
    workgroup_barrier();
    ++after;
  }));
  EXPECT_EQ(after, 256 - 86);
}

std::string failure(std::function<void()> lane, ExecutorOptions options = {}) {
  const Status status = run(std::move(lane), 128, options);
  EXPECT_EQ(status.code(), Code::device_error);
  return status.what();
}

TEST(HostExecutor, NamesTheOperationThatNotEveryLaneReaches) {
  EXPECT_EQ(failure([] {
              if (lane_index() != 70) amd::ballot(true);
            }),
            "kernel: workgroup 0, wave 1, lane 6: ballot is not reached by every lane of the wave");
  EXPECT_EQ(failure([] {
              if (lane_index() == 3)
                amd::readfirstlane(1);
              else
                amd::ballot(true);
            }),
            "kernel: workgroup 0, wave 0, lane 3: lanes part: some reach ballot, one reaches "
            "v_readfirstlane_b32");
  EXPECT_EQ(failure([] {
              if (lane_index() == 5)
                workgroup_barrier();
              else
                amd::ballot(true);
            }),
            "kernel: workgroup 0, wave 0, lane 5: lanes part: some reach ballot, one reaches a "
            "barrier");
}

TEST(HostExecutor, RefusesLdsBeyondTheLimit) {
  EXPECT_EQ(failure([] { current->lds(1025); }, {.lds_limit = 1024}),
            "kernel: workgroup 0, wave 0, lane 0: LDS: the kernel takes 1025 bytes, the limit is "
            "1024");
}

TEST(HostExecutor, TheLowestFailingWorkgroupIsReported) {
  const Status status = run(
      [] {
        if (block_index().x >= 3) current->lds(2048);
      },
      64, {.lds_limit = 1024}, 40);
  EXPECT_NE(status.what().find("workgroup 3,"), std::string::npos) << status.what();
}

TEST(HostExecutor, RefusesBlocksThatAreNoWholeWaves) {
  EXPECT_EQ(run([] {}, 100).code(), Code::device_error);
  EXPECT_EQ(run([] {}, 0).code(), Code::device_error);
}

} // namespace
} // namespace dsakit::optimized::host
