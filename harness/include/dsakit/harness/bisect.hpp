// Bisect: the first operation of a recording that is wrong, or the first tensor in which two
// recordings of one run part (docs/bisect.schema.json).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/progress.hpp"
#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"

namespace dsakit::harness {

/// An operation, by the worst that was said of it.
struct JudgedOperation {
  std::int64_t step = 0;
  std::string operation;
  Verdict verdict = Verdict::pass;
  std::string reason; ///< of a verdict other than pass and fail
};

/// Where along the first axis of a tensor its wrong elements lie.
struct WrongRows {
  std::string axis;       ///< "rows", "pages", ...
  std::int64_t first = 0; ///< of the first block of neighbours
  std::int64_t last = 0;  ///< of that block
  std::int64_t wrong = 0; ///< in all
  std::int64_t of = 0;
  bool complete = true; ///< false: counted in the first mismatches alone
};

/// How far our kernels are from a recorded output when an operation is fed from the recording, and
/// when it is fed from the kernels before it.
struct Growth {
  std::int64_t step = 0;
  std::string operation;
  std::string tensor;
  double fed_abs = 0;
  double fed_used = 0; ///< worst error / bound
  double chained_abs = 0;
  double chained_used = 0; ///< against the bound that grew by what the inputs explain
  std::int64_t moved = 0;  ///< elements of an exact tensor that differ because the inputs do
};

/// A tensor that two recordings do not have in common.
struct Parting {
  enum class Cause : std::uint8_t {
    given,  ///< an input that no operation of the step makes
    stale,  ///< an input that in one file is not what the operation before it made
    itself, ///< more than its inputs explain
    inputs, ///< as the reference says for those inputs
  };
  std::int64_t step = 0;
  std::string operation;
  std::string tensor;
  Cause cause = Cause::itself;
  std::int64_t elements = 0;
  std::int64_t mismatches = 0;
  std::vector<std::int64_t> first_at = {};
  std::optional<Sample> got = {};  ///< of FILE
  std::optional<Sample> want = {}; ///< of OTHER
  std::string maker = {};          ///< of a stale input, the operation that made another
  /// Whether the reference says so of its inputs; of a stale input whether it is what `maker` made;
  /// none of a given one.
  std::optional<bool> got_right = {};
  std::optional<bool> want_right = {};
  std::string gate = {};   ///< of the rule; exact for an input
  std::string waived = {}; ///< until when and why; empty: it is not
};

std::string_view name(Parting::Cause cause);

struct BisectOptions {
  std::string file;
  std::string against; ///< empty: `file` is judged by the reference and the kernels
  optimized::DeviceKind device = optimized::DeviceKind::host; ///< not asked for with `against`
  optimized::HostOptions host;
  std::vector<ContractOverride> overrides;
  int time_limit_s = 60;
  std::string kernel_library;                     ///< as of replay
  std::string repeat;                             ///< options that `reproduce` repeats
  const std::atomic<bool>* interrupted = nullptr; ///< then the bisection is partial
  Progress progress;
};

struct Bisection {
  std::string file;
  std::string against;
  std::string device;    ///< host | hip | cuda; empty with `against`
  std::string host_arch; ///< of the host device
  Environment environment;
  Verdict verdict = Verdict::pass;     ///< of the whole; skipped: nothing could be judged
  std::string reason;                  ///< of skipped
  std::int64_t operations = 0;         ///< that were judged
  bool partial = false;                ///< Ctrl-C ended it before everything was looked at
  std::vector<JudgedOperation> judged; ///< in causal order, with those that were skipped

  // Without `against`.
  /// The first line that is wrong, fed; where none is, the first that no kernel takes.
  std::optional<ReportLine> first;
  std::optional<WrongRows> rows;        ///< of it
  std::vector<ReportLine> others;       ///< the first such line of every operation after it
  std::vector<ReportLine> waived_lines; ///< failures that a waiver names
  std::vector<Growth> growth;           ///< in causal order, where the error grew

  std::vector<Parting> partings; ///< with `against`, in causal order
  std::vector<std::string> warnings;
  std::string reproduce; ///< command line; empty where nothing is wrong
  std::string next;      ///< the command that makes a small file of it

  std::int64_t waived() const; ///< failures that a waiver names
};

/// bad_input for a file that cannot be read or, with `against`, contracts or shapes that differ.
Result<Bisection> bisect(const BisectOptions& options, Rules& rules);

std::string to_text(const Bisection& bisection);
std::string to_json(const Bisection& bisection);
std::string to_junit(const Bisection& bisection);    ///< one test an operation
std::string to_markdown(const Bisection& bisection); ///< a summary that fits a comment

} // namespace dsakit::harness
