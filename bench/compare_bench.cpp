// Comparing two tensors on one core. Bytes are those of one side, 64 MiB: more than any cache.
#include <benchmark/benchmark.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "dsakit/harness/compare.hpp"
#include "dsakit/reference/formats.hpp"

namespace {

using namespace dsakit;

/// Value of element i, a few steps of float32 apart on both sides, as two kernels' are.
float value(std::size_t i, bool got) {
  const auto bits = static_cast<std::uint32_t>(0x3F800000 + i * 2654435761u % 0x00FFFFFF);
  return std::bit_cast<float>(bits + (got ? static_cast<std::uint32_t>(i * 40503u % 7) : 0));
}

harness::Values side(Dtype dtype, bool got) {
  harness::Values values;
  values.tensor =
      Tensor(dtype, {1024, (64 << 20) / 1024 / static_cast<std::int64_t>(size_of(dtype))});
  for (std::size_t i = 0; i < static_cast<std::size_t>(values.tensor.elements()); ++i)
    if (dtype == Dtype::float32)
      values.tensor.as<float>()[i] = value(i, got);
    else
      values.tensor.as<std::uint16_t>()[i] = reference::float_to_bf16(value(i, got));
  return values;
}

void compare_exact(benchmark::State& state, Dtype dtype) {
  const harness::Values got = side(dtype, false);
  const harness::Values want = side(dtype, false);
  for (auto _ : state)
    benchmark::DoNotOptimize(harness::compare_exact(got, want, {}));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(got.tensor.bytes.size()));
}

/// Against the reference's values before rounding, each with its bound, under a mask.
void compare_derived(benchmark::State& state, Dtype dtype) {
  const harness::Values got = side(dtype, true);
  harness::Values want = side(dtype, false);
  const auto n = static_cast<std::size_t>(want.tensor.elements());
  want.unrounded.resize(n);
  for (std::size_t i = 0; i < n; ++i)
    want.unrounded[i] = harness::element(want.tensor, static_cast<std::int64_t>(i));
  const std::vector<double> bound(n, 1);
  const harness::Mask mask(n, 1);
  for (auto _ : state)
    benchmark::DoNotOptimize(harness::compare_derived(got, want, bound, mask));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(got.tensor.bytes.size()));
}

BENCHMARK_CAPTURE(compare_exact, float32, Dtype::float32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compare_exact, bfloat16, Dtype::bfloat16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compare_derived, float32, Dtype::float32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compare_derived, bfloat16, Dtype::bfloat16)->Unit(benchmark::kMillisecond);

} // namespace
