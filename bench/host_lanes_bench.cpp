// The host executor itself: one 16x16x32 FP8 MFMA is 64 fiber switches and 16,384 operations.
#include <benchmark/benchmark.h>

#include "device/lane.hpp"

namespace {

namespace host = dsakit::optimized::host;
namespace amd = dsakit::optimized::gfx942::amd;

void host_lanes_mfma_16x16x32_fp8(benchmark::State& state) {
  constexpr int kInstructions = 4096;
  host::Workgroup workgroup;
  const std::function<void()> lane = [] {
    amd::Float4 d = {};
    for (int i = 0; i < kInstructions; ++i)
      d = amd::mfma_f32_16x16x32_fp8_fp8(0x3835302825201811u, 0x1122334411223344u, d);
    benchmark::DoNotOptimize(d);
  };
  for (auto _ : state)
    if (const auto status = workgroup.run({}, {0, 0, 0}, {64, 1, 1}, lane); !status)
      return state.SkipWithError(status.what().c_str());
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * 16 * 16 * 32 * kInstructions,
                                                benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(host_lanes_mfma_16x16x32_fp8)->Unit(benchmark::kMillisecond);

void host_lanes_barrier(benchmark::State& state) {
  constexpr int kBarriers = 1000;
  host::Workgroup workgroup;
  const std::function<void()> lane = [] {
    for (int i = 0; i < kBarriers; ++i)
      host::workgroup_barrier();
  };
  for (auto _ : state)
    if (const auto status = workgroup.run({}, {0, 0, 0}, {256, 1, 1}, lane); !status)
      return state.SkipWithError(status.what().c_str());
  state.counters["lane-barriers/s"] =
      benchmark::Counter(256.0 * kBarriers, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(host_lanes_barrier)->Unit(benchmark::kMillisecond);

} // namespace
