// The lines of a replay's report.
#pragma once

#include <string>

#include "dsakit/harness/replay.hpp"
#include "dsakit/harness/rules.hpp"
#include "files.hpp"
#include "hints.hpp"
#include "judge.hpp"
#include "overrides.hpp"
#include "pairs.hpp"

namespace dsakit::harness {

/// An operation that ran: our kernel, and the reference fed the same.
struct OperationRun {
  const OperationAdapter& adapter;
  const OperationId& named; ///< what lines and rules call it
  const Result<KernelRun>& kernel;
  ReferenceRun& reference;
  Hints& hints;
  ReferenceRun* fed;         ///< the reference of the recorded inputs, where the kernel had others
  bool kernel_right = false; ///< it passed against the reference, of the output at work
};

class Lines {
public:
  /// All outlive this; lines go to the end of `report`.
  Lines(const ReplayOptions& options, Rules& rules, const Overrides& overrides, Report& report)
      : options_(options), rules_(rules), overrides_(overrides), report_(report) {}

  ReportLine line_of(const ReplayFile& entry, const OperationId& id) const;
  void skip(const ReplayFile& entry, const OperationId& id, const std::string& reason);
  /// Of an output that no kernel is meant to give.
  void skip_kernel(const ReplayFile& entry, const OperationId& id, const std::string& output,
                   const std::string& why);
  /// Of an operation that did not run.
  void failed(const ReplayFile& entry, const OperationId& id, const Status& status);
  /// One comparison. bad_input is the file's fault; everything else becomes the line.
  Status compare(const ReplayFile& entry, const Pair& pair, OperationRun& run);

private:
  std::string reproduce(const ReplayFile& entry, const OperationId& id) const;
  void tell_kernel(ReportLine& line, const KernelRun& kernel) const;
  Status judge_into(ReportLine& line, const Case& c, const Rule& rule, const OperationRun& run,
                    const Attributes& provenance);

  const ReplayOptions& options_;
  Rules& rules_;
  const Overrides& overrides_;
  Report& report_;
};

} // namespace dsakit::harness
