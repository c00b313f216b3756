#include "lines.hpp"

#include "attribute.hpp"
#include "command.hpp"
#include "names.hpp"
#include "quantised.hpp"
#include "tie_band.hpp"
#include "whole_hint.hpp"

namespace dsakit::harness {
namespace {

Verdict verdict_of(const Status& status) {
  return status.code() == Code::unsupported ? Verdict::unsupported : Verdict::error;
}

/// A cell that a kernel wrote and should not have.
void tell_stray(ReportLine& line, const StrayWrite& stray) {
  line.verdict = Verdict::fail;
  const std::string told = !stray.why.empty() ? "at " + to_string(stray.at) + ": " + stray.why
                           : stray.at.empty() ? "the kernel wrote beside the tensor"
                                              : "the kernel wrote at " + to_string(stray.at) +
                                                    ", beyond the length of its row";
  line.hint = told + (line.hint.empty() ? "" : "; " + line.hint);
}

} // namespace

ReportLine Lines::line_of(const ReplayFile& entry, const OperationId& id) const {
  ReportLine line;
  line.file = entry.report.file;
  line.step = id.step;
  line.operation = id.operation;
  return line;
}

std::string Lines::reproduce(const ReplayFile& entry, const OperationId& id) const {
  return command(report_.environment, "replay", entry.report.file, id.operation, options_.repeat);
}

void Lines::skip(const ReplayFile& entry, const OperationId& id, const std::string& reason) {
  ReportLine line = line_of(entry, id);
  line.verdict = Verdict::skipped;
  line.reason = reason;
  report_.lines.push_back(std::move(line));
}

void Lines::skip_kernel(const ReplayFile& entry, const OperationId& id, const std::string& output,
                        const std::string& why) {
  skip(entry, id, "reference only: " + why);
  ReportLine& line = report_.lines.back();
  line.tensor = output;
  line.subject = name(Producer::Kind::kernel);
  line.against = name(Producer::Kind::reference);
}

void Lines::failed(const ReplayFile& entry, const OperationId& id, const Status& status) {
  ReportLine line = line_of(entry, id);
  line.verdict = verdict_of(status);
  line.reason = status.what();
  line.reproduce = reproduce(entry, id);
  report_.lines.push_back(std::move(line));
}

void Lines::tell_kernel(ReportLine& line, const KernelRun& kernel) const {
  line.kernel = kernel.kernel;
  line.configuration = kernel.configuration;
  line.workgroups = kernel.workgroups;
  line.other_kernels = kernel.other_kernels;
  line.time_us = kernel.time_us;
}

Status Lines::judge_into(ReportLine& line, const Case& c, const Rule& rule, const OperationRun& run,
                         const Attributes& provenance) {
  const bool of_recorded = c.want.kind == Producer::Kind::recorded;
  const auto judged = judge(c, run.reference, of_recorded ? run.fed : nullptr);
  DSAKIT_TRY(judged);
  fill(line, c, *judged);
  line.why = rule.why;
  if (options_.attribute) {
    auto attribution = attribute(run.adapter, c, *judged, run.reference);
    DSAKIT_TRY(attribution);
    line.attribution = std::move(*attribution);
  }
  if (line.verdict == Verdict::fail) {
    line.tightest_gate = tightest_gate(c, judged->comparison, run.reference);
    if (!judged->comparison.passes())
      line.hint = hint_as_of_the_whole(provenance, line.tensor, run.hints.find(c, *judged));
  }
  if (c.got.kind == Producer::Kind::kernel && !of_recorded && run.kernel->stray &&
      run.kernel->stray->output == c.output)
    tell_stray(line, *run.kernel->stray);
  return {};
}

Status Lines::compare(const ReplayFile& entry, const Pair& pair, OperationRun& run) {
  const OperationData& data = run.reference.data();
  const auto rule = rules_.find(run.named.operation, pair.tensor, name(pair.got));
  DSAKIT_TRY(rule);
  Case c{pair.output, (*rule)->gate, {pair.got}, {pair.want}, (*rule)->limits};
  if (pair.of_kernel() && run.kernel) {
    c.got = kernel_side(*run.kernel, pair.output);
    c.got.right = pair.of_recorded() && run.kernel_right;
  }
  std::vector<double> band;
  if (pair.of_recorded()) {
    c.want = recorded_side(data, pair);
    auto of_logits = tie_band({*entry.reader, overrides_, {options_.rows, options_.seed}},
                              (run.fed ? *run.fed : run.reference).data(), **rule);
    DSAKIT_TRY(of_logits);
    band = std::move(*of_logits);
    if (!band.empty()) c.want.band = &band;
  }

  ReportLine line = line_of(entry, run.named);
  line.tensor = pair.tensor;
  line.subject = name(pair.got);
  line.against = name(pair.want);
  line.reproduce = reproduce(entry, run.named);
  if (pair.of_kernel() && run.kernel) tell_kernel(line, *run.kernel);
  const auto expected = run.reference.expected(pair.output);
  if (!expected && expected.status().code() == Code::bad_input) return expected.status();
  if (pair.of_kernel() && !run.kernel) {
    line.verdict = verdict_of(run.kernel.status());
    line.reason = run.kernel.status().what();
  } else if (!expected) {
    line.verdict = pair.of_kernel() ? Verdict::held : verdict_of(expected.status());
    line.reason = expected.status().what();
  } else {
    DSAKIT_TRY(judge_into(line, c, **rule, run, entry.reader->provenance()));
  }
  rules_.waivers.apply(line);
  if (pair.of_kernel() && !pair.of_recorded()) run.kernel_right = line.verdict == Verdict::pass;
  report_.lines.push_back(std::move(line));
  return {};
}

} // namespace dsakit::harness
