// The JSON of a benchmark, and what it is made of.
#pragma once

#include <nlohmann/json.hpp>

#include "dsakit/harness/bench.hpp"

namespace dsakit::harness {

inline constexpr std::string_view kBenchSchema = "dsakit.bench/1";

/// Median, quartiles and minimum of the samples.
BenchTiming timing_of(std::vector<double> samples);
nlohmann::ordered_json timing_json(const BenchTiming& timing);

/// "rows=64 keys=32768 k=2048"
std::string dims_text(const BenchDims& dims);
/// "1.23 TB/s", "45.6 GB/s"; per microsecond.
std::string rate_text(double per_us, const char* unit);

} // namespace dsakit::harness
