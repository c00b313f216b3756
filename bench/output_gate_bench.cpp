// output_gate: 12 heads of 128, 4 bytes in and 2 out an element.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/output_gate.hpp"

namespace {

void output_gate(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kWidth = 12 * 128;
  const std::int64_t rows = state.range(0);
  const auto elements = static_cast<std::size_t>(rows * kWidth);

  dsakit::optimized::OutputGateParams params{};
  params.attn_value = bench.upload(dsakit::bench::ramp_bf16(elements));
  params.gate = bench.upload(dsakit::bench::ramp_bf16(elements));
  params.attn_gated = bench.upload(std::vector<std::uint16_t>(elements));
  params.attn_value_stride = kWidth;
  params.gate_stride = kWidth;
  params.attn_gated_stride = kWidth;
  params.rows = rows;
  params.width = kWidth;
  params.rounding = dsakit::GateRounding::two;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * rows * kWidth * 6);
}
DSAKIT_BENCHMARK(output_gate, 512, 16384);

} // namespace
