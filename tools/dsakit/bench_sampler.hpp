// Samples of a time through Google Benchmark, whose loop and manual timing they go through.
#pragma once

#include "dsakit/harness/bench.hpp"

/// Runs `once` as a benchmark of `samples` iterations; what it says is what an iteration took.
dsakit::Result<std::vector<double>>
sample_by_google_benchmark(const std::string& name, int samples,
                           const std::function<dsakit::Result<double>()>& once);
