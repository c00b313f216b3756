#include "bench_sampler.hpp"

#include <benchmark/benchmark.h>

namespace {

/// Verdicts, tables and exit codes are ours: this one says nothing.
class SilentReporter final : public benchmark::BenchmarkReporter {
public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

} // namespace

dsakit::Result<std::vector<double>>
sample_by_google_benchmark(const std::string& name, int samples,
                           const std::function<dsakit::Result<double>()>& once) {
  std::vector<double> times;
  dsakit::Status status;
  benchmark::ClearRegisteredBenchmarks();
  benchmark::RegisterBenchmark(name.c_str(),
                               [&](benchmark::State& state) {
                                 for (auto _ : state) {
                                   const auto us = once();
                                   if (!us) {
                                     status = us.status();
                                     state.SkipWithError(status.what().c_str());
                                     break;
                                   }
                                   times.push_back(*us);
                                   state.SetIterationTime(*us * 1e-6);
                                 }
                               })
      ->Iterations(samples)
      ->UseManualTime();
  SilentReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::ClearRegisteredBenchmarks();
  if (!status) return status;
  return times;
}
