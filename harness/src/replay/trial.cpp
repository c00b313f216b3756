#include "trial.hpp"

#include "hints.hpp"
#include "names.hpp"
#include "tie_band.hpp"

namespace dsakit::harness {

Result<const Rule*> Trial::rule(const OperationData& data, const Pair& pair) const {
  return rules_.find(data.id.operation, pair.tensor, name(pair.got));
}

Result<std::vector<double>> Trial::band(const OperationData& data, const Pair& pair) const {
  const auto of_pair = rule(data, pair);
  DSAKIT_TRY(of_pair);
  if (!pair.of_recorded()) return std::vector<double>{};
  return tie_band({reader_, overrides_}, data, **of_pair);
}

bool Trial::waived(const OperationId& id, const Pair& pair) const {
  ReportLine line;
  line.step = id.step;
  line.operation = id.operation;
  line.tensor = pair.tensor;
  line.subject = name(pair.got);
  line.against = name(pair.want);
  line.verdict = Verdict::fail;
  rules_.waivers.apply(line);
  return line.verdict == Verdict::waived;
}

Result<Outcome> Trial::run(const OperationData& data, const Pair& pair, bool with_hint) const {
  const OperationAdapter& adapter = *find_adapter(data.id.operation);
  const auto of_pair = rule(data, pair);
  DSAKIT_TRY(of_pair);
  ContractValues contract = data.contract;
  if (!pair.scale_read.empty()) contract["mla_scale_read"] = pair.scale_read;
  ReferenceRun reference(adapter, {data.id, std::move(contract), data.tensors, data.config});

  Outcome outcome;
  outcome.gate = (*of_pair)->gate;
  Case c{pair.output, outcome.gate, {pair.got}, {pair.want}, (*of_pair)->limits};
  std::optional<KernelRun> run;
  if (pair.of_kernel()) {
    if (!adapter.reference_only(reference.data()).empty()) return outcome; // no kernel is meant to
    auto launched = kernels_.run(adapter, reference.data());
    outcome.kernel_status = launched.status();
    outcome.fails = outcome.kernel_status.code() == Code::device_error;
    if (!launched) return outcome;
    if (!launched->outputs.contains(pair.output)) return outcome;
    run = std::move(*launched);
    outcome.kernel = run->kernel;
    c.got = {Producer::Kind::kernel, &run->outputs.at(pair.output), run->accumulation};
  }
  const auto off = band(data, pair);
  DSAKIT_TRY(off);
  if (pair.of_recorded()) c.want = recorded_side(data, pair);
  if (!off->empty()) c.want.band = &*off;
  auto judged = judge(c, reference);
  if (!judged && judged.status().code() == Code::unsupported) return outcome;
  DSAKIT_TRY(judged);
  const bool strayed =
      pair.of_kernel() && !pair.of_recorded() && run->stray && run->stray->output == pair.output;
  outcome.fails = strayed || !passes(judged->comparison, c.limits);
  outcome.shape = judged->want.tensor->shape;
  if (with_hint && !judged->comparison.passes())
    outcome.hint = Hints(adapter, reference, [&] {
                     return kernels_.run_again(adapter, reference.data());
                   }).find(c, *judged);
  outcome.comparison = std::move(judged->comparison);
  return outcome;
}

} // namespace dsakit::harness
