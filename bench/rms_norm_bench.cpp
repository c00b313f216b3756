// rms_norm: rows of q_lora_rank 1536, 2 bytes in and 2 out an element.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/rms_norm.hpp"

namespace {

void rms_norm(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kWidth = 1536;
  const std::int64_t rows = state.range(0);
  const auto elements = static_cast<std::size_t>(rows * kWidth);

  dsakit::optimized::RmsNormParams params{};
  params.x = bench.upload(dsakit::bench::ramp_bf16(elements));
  params.weight = bench.upload(std::vector<float>(kWidth, 1.0f));
  params.y = bench.upload(std::vector<std::uint16_t>(elements));
  params.x_stride = kWidth;
  params.y_stride = kWidth;
  params.rows = rows;
  params.width = kWidth;
  params.eps = 1e-5f;
  params.rounding = dsakit::RmsNormRounding::two;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * kWidth * 4);
}
DSAKIT_BENCHMARK(rms_norm, 512, 16384);

} // namespace
