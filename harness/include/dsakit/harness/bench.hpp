// Throughput of kernels: a correctness gate, then device times, hot and cold (docs/bench.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/environment.hpp"
#include "dsakit/harness/progress.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"
#include "dsakit/optimized/device.hpp"

namespace dsakit::harness {

/// Dimensions of a problem by name, as text: "rows" -> "64", "input" -> "narrow".
using BenchDims = std::map<std::string, std::string>;

/// A problem that is not made yet: an operation of a recording, or one by its shape.
struct BenchRequest {
  std::string operation;
  BenchDims shape;       ///< of one by shape; what is missing has its default
  std::string recording; ///< path; empty: by shape
  std::int64_t step = 0; ///< of the recording
  std::int64_t tile = 0; ///< rows that the recorded ones are tiled to; 0: as recorded
};

/// The operation and shape of "--op REGEX --shape K=V,...": one request for each operation that the
/// whole of REGEX matches. bad_input where none does, or one has no such dimension.
Result<std::vector<BenchRequest>> requests_by_shape(const std::string& operation,
                                                    const std::string& shape);
/// Every operation of a recording that has a kernel and whose name REGEX matches; "": all.
/// bad_input for a REGEX that matches no operation at all; no_device, as where nothing can run, for
/// one that none of the file matches.
Result<std::vector<BenchRequest>>
requests_of_recording(const std::string& path, const std::string& operation, std::int64_t tile);
/// The problems of a dsakit.axes/1 file, lists of values multiplied out; `operation` as above.
Result<std::vector<BenchRequest>> requests_of_axes(const std::string& path,
                                                   const std::string& operation);
/// "topk: rows=64 keys=32768 k=2048 input=normal|narrow|...": for --help and messages.
std::vector<std::string> shape_help();

/// Calls `once` `samples` times, which gives the microseconds of one; the samples. The CLI's goes
/// through Google Benchmark.
using BenchSampler = std::function<Result<std::vector<double>>(
    const std::string& name, int samples, const std::function<Result<double>()>& once)>;

struct BenchOptions {
  optimized::DeviceKind device = optimized::DeviceKind::host;
  optimized::HostOptions host;
  std::vector<ContractOverride> overrides;
  optimized::Configuration configuration; ///< of the kernels; empty: as dispatch chooses
  int samples = 0;         ///< of each time; 0: kGpuSamples, on host lanes kHostSamples
  std::int64_t copies = 0; ///< of all tensors, for cold times; 0: as many as outrun the last cache
  int time_limit_s = 60;   ///< of each launch and of each timing on a GPU or of a library
  std::string kernel_library; ///< whose kernels go before the built-in ones; empty: none
  std::uint64_t seed = 0;     ///< of problems by shape, and of the rows that the gate takes
  std::string repeat;         ///< options of the command that does a row again
  const std::atomic<bool>* interrupted = nullptr;
  Progress progress;
};

inline constexpr int kGpuSamples = 30;
inline constexpr int kHostSamples = 10;
/// A launch below it is timed by the replay of a graph of many.
inline constexpr double kGraphBelow_us = 400;

/// Times of one thing, in microseconds.
struct BenchTiming {
  double median_us = 0, q1_us = 0, q3_us = 0, min_us = 0;
  std::vector<double> samples; ///< as they came
  std::int64_t launches = 1;   ///< that one sample is the mean of
  std::int64_t copies = 1;     ///< of all tensors, taken in turn
};

/// What a row has to do at least, and how that was counted.
struct BenchWork {
  double bytes = 0; ///< read and written once
  double flops = 0; ///< of the matrix products
  std::string bytes_formula, flops_formula;
};

/// What bounds a row on its device.
struct BenchLimit {
  std::string name;     ///< "H200 copy, measured"
  bool compute = false; ///< rate is TFLOP/s, else GB/s
  double rate = 0;
  double time_us = 0; ///< of the row's work at that rate
};

struct BenchRow {
  std::string operation, kernel;
  std::string library; ///< "libmine.so", whose kernel it is; empty: built in
  BenchDims problem;
  BenchDims configuration;         ///< that was asked for
  optimized::Configuration ran;    ///< all that may be tuned of the kernel, as it ran
  std::string problem_class;       ///< of tuned choices; empty where nothing may be tuned
  std::string code_hash;           ///< sha256 of what holds the kernel's code, a library itself
  Verdict verdict = Verdict::pass; ///< pass | fail | unsupported | error
  std::string reason;
  std::string gate;      ///< "64 of 4096 rows"; empty: was not reached
  std::int64_t rows = 0; ///< of the problem; 0 where its rows are not independent
  bool graph = false;
  std::optional<BenchTiming> hot, cold, reference;
  BenchWork work;
  std::optional<BenchLimit> limit;
  std::map<std::string, std::int64_t> resources; ///< of the code object: vgprs, spills, ...
  std::string reproduce;

  std::optional<double> of_limit() const; ///< of the hot median
};

struct BenchReport {
  Environment environment;
  std::string device;    ///< host | hip | cuda
  std::string host_arch; ///< of host lanes
  std::vector<BenchRow> rows;
  bool partial = false;

  /// 130 > 3 > 1 > 0 by the verdicts; 77 where there is no row.
  int exit_code() const;
};

/// One row after the other; each problem is made, gated, timed and dropped. no_device where there
/// is none; bad_input for a request that makes no sense, before anything runs where that can be
/// told.
Result<BenchReport> bench(const BenchOptions& options, const std::vector<BenchRequest>& requests,
                          Rules& rules, const BenchSampler& sampler);

struct BenchText {
  bool explain = false; ///< with the formulas of bytes and flops
};
std::string to_text(const BenchReport& report, const BenchText& options);
std::string to_json(const BenchReport& report); ///< docs/bench.schema.json
std::string to_csv(const BenchReport& report);
std::string to_markdown(const BenchReport& report);

} // namespace dsakit::harness
