// The report: one object, printed as text for a person and as JSON for a program
// (docs/report.schema.json). Every number of the text is in the JSON.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/harness/environment.hpp"
#include "dsakit/optimized/configuration.hpp"

namespace dsakit::harness {

enum class Verdict : std::uint8_t {
  pass,
  fail,        ///< a number is outside its gate
  held,        ///< not judged, because what it is judged against failed
  waived,      ///< a fail that a waiver names, before it expires: never a pass
  unsupported, ///< no kernel, or no reference, takes the problem
  error,       ///< bad input, or a kernel failed
  skipped,     ///< this version does not replay the operation
};

std::string_view name(Verdict verdict);

/// One side's element at a coordinate.
struct Sample {
  double value = 0;
  std::string hex; ///< stored bits
};

/// A mismatch, or the largest error.
struct SamplePair {
  std::vector<std::int64_t> at;
  Sample got;
  Sample want;
};

/// Values of one kind that are not finite, where either side has any.
struct ReportAnomaly {
  std::string kind; ///< NaN | +inf | -inf
  std::int64_t got = 0;
  std::int64_t want = 0;
  std::int64_t apart = 0;             ///< elements where one side alone has it
  std::vector<std::int64_t> first_at; ///< of those; empty: none
};

/// Where along one axis the mismatches are.
struct AxisMap {
  static constexpr std::size_t kRanges = 8;
  std::string axis; ///< "rows"
  std::string unit; ///< what a block is: index | tile | page
  std::int64_t extent = 0;
  std::int64_t block = 1;  ///< indices of one block
  std::int64_t blocks = 0; ///< of the axis
  std::int64_t wrong_blocks = 0;
  /// First and last index of the first kRanges runs of wrong blocks.
  std::vector<std::array<std::int64_t, 2>> ranges;
};

/// A quantised tensor taken apart. A value is a code times its block's scale.
struct ReportQuantised {
  std::int64_t codes = 0;
  std::int64_t codes_wrong = 0;
  std::int64_t scales = 0; ///< one a block
  std::int64_t scales_wrong = 0;
  std::int64_t scales_one_exponent = 0; ///< of the wrong ones, those that are twice or half
  std::int64_t values_wrong = 0;
  double values_worst_abs = 0;
  double values_worst_rel = 0; ///< where want is not 0

  double scales_wrong_percent() const; ///< of `scales`
};

/// Elements between two distances.
struct UlpBin {
  std::int64_t from;
  std::int64_t to;
  std::int64_t elements;
};

/// Those of Comparison::ulp_histogram that are not empty.
std::vector<UlpBin> ulp_bins(const std::vector<std::int64_t>& histogram);

/// Logits that tie at the threshold of a top-k.
struct ReportTies {
  std::int64_t rows = 0;                       ///< with more of them than there are places
  std::int64_t largest = 0;                    ///< size of the largest such group
  std::int64_t places = 0;                     ///< for it
  std::int64_t row = 0;                        ///< where it is
  std::map<std::int64_t, std::int64_t> groups; ///< size of the group at the threshold -> rows
};

/// The error with one rounding point of the simulated tier switched.
struct SwitchedPoint {
  std::string point; ///< what is done otherwise: "dot rounded to bf16"
  double used;       ///< of the gate, against that tier
};

/// Which rounding an error comes from. Errors are worst error / bound.
struct ReportAttribution {
  double implementation = 0;         ///< against the simulated tier
  double format = 0;                 ///< of the simulated tier against the exact one
  std::vector<SwitchedPoint> points; ///< each alone
  std::string explained_by;          ///< the one that leaves a quarter of the error; empty: none
};

/// One compared tensor of one operation.
struct ReportLine {
  static constexpr std::size_t kSamples = 8;

  std::string file;
  std::int64_t step = 0;
  std::string operation;
  std::string
      tensor; ///< with its producer: "logits.deepgemm"; empty where the operation did not run
  std::string subject;                    ///< kernel | reference | recorded
  std::string against;                    ///< reference | recorded
  std::string kernel;                     ///< empty where none ran
  optimized::Configuration configuration; ///< of the kernel
  std::optional<std::int64_t> workgroups;
  std::vector<std::string> other_kernels; ///< "name: why it was not taken"
  Verdict verdict = Verdict::pass;
  std::string reason; ///< of a verdict other than pass and fail, and of an expired waiver
  std::string gate;   ///< exact | derived | topk_set
  std::string why;    ///< of that gate
  std::string dtype;  ///< as stored: what ulp counts steps of
  std::optional<double> used;
  std::int64_t elements = 0;
  std::int64_t mismatches = 0;
  std::int64_t allowed = 0; ///< of them, by the rule's budget
  /// Chained: elements left out of an exact comparison, since the reference says that they differ
  /// because the inputs do.
  std::int64_t moved = 0;
  std::optional<double> worst_abs;
  std::optional<double> worst_rel;
  std::optional<double> relative_l2;       ///< of the error to want, where both are finite
  std::optional<double> relative_l2_limit; ///< of the rule
  std::optional<std::int64_t> ulp_max;
  std::optional<std::int64_t> ulp_p99;
  std::vector<std::int64_t> ulp_histogram; ///< elements 0, 1, 2 to 3, 4 to 7, ... steps apart
  std::vector<std::int64_t> ulp_at;        ///< first that is ulp_max apart
  std::vector<ReportAnomaly> anomalies;    ///< kinds that occur
  std::vector<AxisMap> map;                ///< of the mismatches, an entry an axis; empty: none
  std::vector<SamplePair> samples;         ///< mismatches, at most kSamples, row-major
  std::optional<ReportQuantised> quantised;
  std::optional<ReportTies> ties;
  std::optional<ReportAttribution> attribution; ///< where asked for
  std::vector<std::int64_t> first_at;           ///< first mismatch in row-major order; empty: none
  std::vector<std::int64_t> worst_at;           ///< empty: no element differs
  std::optional<Sample> got;                    ///< at first_at, else at worst_at
  std::optional<Sample> want;
  std::string tightest_gate; ///< the tightest that would have passed
  std::string hint;          ///< a likely cause
  std::string reproduce;     ///< command line
  std::optional<double> time_us;

  double wrong_percent() const; ///< mismatches of elements
};

/// One file of the run.
struct ReportFile {
  std::string file;
  Verdict verdict = Verdict::pass;
  bool bad_input = false; ///< could not be read, or does not fit its rules or contract
  std::string reason;     ///< why it could not be read, or why nothing of it ran
  /// As used; "accumulation:logits.deepgemm" for the key of one tensor, below its step and
  /// operation
  /// ("steps/1/index_logits_decode/accumulation:logits") where tensors of that name differ.
  ContractValues contract;
  ContractValues contract_recorded; ///< values that an override replaced
};

/// Totals, of one file or of the run.
struct Summary {
  std::int64_t operations = 0;  ///< that ran
  std::int64_t comparisons = 0; ///< of tensors
  std::int64_t passed = 0;      ///< lines
  std::int64_t not_passed = 0;  ///< lines that are neither pass nor skipped
  std::int64_t waived = 0;      ///< of them
  std::int64_t mismatches = 0;  ///< elements outside their gate
  std::optional<double> worst_used;
  double time_us = 0; ///< of the kernels
};

struct Report {
  std::string verb;      ///< replay | compare
  std::string mode;      ///< of replay: fed | chained
  std::string against;   ///< of compare: the recording that judged
  std::string device;    ///< host | hip | cuda; empty where no kernel was asked for
  std::string host_arch; ///< of the host device
  Environment environment;
  std::vector<ReportFile> files;
  std::vector<ReportLine> lines; ///< in the order of files, steps and causality
  std::vector<std::string> warnings;
  std::int64_t files_left_out = 0; ///< not looked at, since one before them failed or by Ctrl-C
  bool partial = false;            ///< Ctrl-C ended the run before everything was looked at

  /// The worst of all files: error, unsupported, fail, held, waived, pass, skipped in this order.
  Verdict verdict() const;
  Summary summary() const;
  Summary summary(const std::string& file) const;
};

struct TextOptions {
  bool colour = false;
  bool verbose = false; ///< a table for each of several files, and why a kernel was not taken
};

std::string to_text(const Report& report, const TextOptions& options);
std::string to_json(const Report& report);
std::string to_junit(const Report& report);    ///< one test an operation
std::string to_markdown(const Report& report); ///< a summary that fits a comment

/// Writes a report to `path`, whole or not at all.
Status write_report(const std::string& path, const std::string& contents);

/// `text` as one word of a POSIX shell, with control characters as one of bash ($'a\x0ab'): what
/// `reproduce` is made of.
std::string shell_word(const std::string& text);

} // namespace dsakit::harness
