// weight_dequant: a projection of 7168 inputs, a byte in and two out an element.
#include "bench/device_memory.hpp"
#include "dsakit/optimized/weight_dequant.hpp"

namespace {

void weight_dequant(benchmark::State& state, dsakit::optimized::DeviceKind kind) {
  dsakit::bench::Bench bench(kind);
  if (!bench) return state.SkipWithError(bench.why_not().c_str());
  constexpr std::int64_t kInputs = 7168;
  const std::int64_t outputs = state.range(0);
  const auto elements = static_cast<std::size_t>(outputs * kInputs);

  dsakit::optimized::WeightDequantParams params{};
  params.codes = bench.upload(dsakit::bench::random_codes(elements));
  params.scales = bench.upload(std::vector<float>(static_cast<std::size_t>(outputs), 0.5f));
  params.weight = bench.upload(std::vector<std::uint16_t>(elements));
  params.outputs = outputs;
  params.inputs = kInputs;
  params.format = dsakit::WeightFormat::fp8_block;
  params.encoding = dsakit::Fp8Encoding::e4m3fn;
  bench.run(state, params);
  state.SetBytesProcessed(state.iterations() * outputs * kInputs * 3);
}
DSAKIT_BENCHMARK(weight_dequant, 128, 16384);

} // namespace
