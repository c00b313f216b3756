// Comparison of two float32 tensors of 64 MiB, on one core. The rate counts the bytes of one side.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "dsakit/harness/compare.hpp"

namespace {

using namespace dsakit;
using harness::Values;

constexpr std::int64_t kRows = 1024, kColumns = 16384;

/// Numbers in [1, 2), `off` larger.
Values numbers(float off) {
  Values values;
  values.tensor = Tensor(Dtype::float32, {kRows, kColumns});
  for (std::int64_t i = 0; i < values.tensor.elements(); ++i)
    values.tensor.as<float>()[i] = 1 + static_cast<float>(i * 7919 % 65536) / 65536 + off;
  return values;
}

void set_rate(benchmark::State& state, const Values& values) {
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(values.tensor.bytes.size()));
}

void compare_exact(benchmark::State& state) {
  const Values got = numbers(0), want = got;
  for (auto _ : state)
    benchmark::DoNotOptimize(harness::compare_exact(got, want, {}));
  set_rate(state, got);
}
BENCHMARK(compare_exact)->Unit(benchmark::kMillisecond);

/// Every element is off, within its bound, and has a value before rounding.
void compare_derived(benchmark::State& state) {
  const Values got = numbers(0x1p-12F);
  Values want = numbers(0);
  for (std::int64_t i = 0; i < want.tensor.elements(); ++i)
    want.unrounded.push_back(static_cast<double>(want.tensor.as<float>()[i]) + 0x1p-30);
  const std::vector<double> bound(want.unrounded.size(), 0x1p-11);
  const harness::Mask mask(want.unrounded.size(), 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(harness::compare_derived(got, want, bound, mask));
  set_rate(state, got);
}
BENCHMARK(compare_derived)->Unit(benchmark::kMillisecond);

} // namespace
