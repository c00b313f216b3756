// Two benchmarks of one set of problems: what became faster, what slower, what nobody can say
// (docs/bench.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

enum class BenchChange : std::uint8_t {
  same,      ///< the medians' ratio lies within the minimum effect, with confidence
  faster,    ///< beyond it, and the medians' intervals do not overlap
  slower,    ///< the same
  ambiguous, ///< neither can be said
};

std::string_view name(BenchChange change);

/// Confidence of the interval of each median.
inline constexpr double kDiffConfidence = 0.99;

/// What was measured of one side of a row.
struct DiffSide {
  std::vector<double> samples; ///< microseconds
  std::map<std::string, std::int64_t> resources;
  std::string kernel, code_hash, verdict;
};

/// How NEW compares with BASE, of one row's hot or cold times.
struct DiffRow {
  std::string key;  ///< "topk rows=64 keys=32768 on cuda"
  std::string what; ///< hot | cold
  DiffSide base, now;
  BenchChange change = BenchChange::ambiguous;
  double ratio = 1;                 ///< median of NEW / median of BASE
  double low = 0, high = 0;         ///< of that ratio; both 0 where too few samples say
  std::string note;                 ///< "12 samples, want ...", "was SLOWER once, not again"
  std::vector<std::string> changed; ///< resources that differ: "spills 0 -> 24"
};

/// The change, from the interval of each median and the minimum effect (0.03: 3 %).
BenchChange judge_change(const std::vector<double>& base, const std::vector<double>& now,
                         double min_effect, DiffRow* row = nullptr);

struct BenchDiff {
  std::string base, now; ///< files
  double min_effect = 0.03;
  std::vector<DiffRow> rows;
  std::vector<std::string> only_base, only_new; ///< keys of rows that the other side has not
  std::vector<std::string> failures;    ///< rows of NEW whose gate failed, and BASE's did not
  std::vector<std::string> warnings;    ///< another device, another contract
  std::optional<double> geometric_mean; ///< of the hot ratios; none where there is none in common
  bool rerun = false;                   ///< SLOWER stands for what repeated

  /// 1 where anything is SLOWER or fails; 4 where nothing is and a row is AMBIGUOUS; else 0. 77
  /// where the two have no row in common.
  int exit_code() const;
};

/// The files are dsakit.bench/1; bad_input naming what is not.
Result<BenchDiff> diff_benchmarks(const std::string& base_path, const std::string& new_path,
                                  double min_effect);
/// The same of a file and a text.
Result<BenchDiff> diff_with_text(const std::string& base_path, const std::string& new_name,
                                 const std::string& now, double min_effect);
/// The same of texts that were read.
Result<BenchDiff> diff_benchmark_texts(const std::string& base_name, const std::string& base,
                                       const std::string& new_name, const std::string& now,
                                       double min_effect);

/// Rows that are SLOWER in `diff`, and not in `again`, become AMBIGUOUS.
void keep_repeated(BenchDiff& diff, const BenchDiff& again);

/// A second benchmark's samples put behind the first one's, row by row.
Result<std::string> join_samples(const std::string& name, const std::string& first,
                                 const std::string& second);

std::string to_text(const BenchDiff& diff, bool colour);
std::string to_json(const BenchDiff& diff);
std::string to_markdown(const BenchDiff& diff);

} // namespace dsakit::harness
