#include "trial.hpp"

#include <algorithm>

#include "names.hpp"

namespace dsakit::harness {

std::vector<Pair> Trial::pairs(const OperationData& data) const {
  using Kind = Producer::Kind;
  std::vector<std::string> outputs = split_names(data.operation().outputs);
  for (std::string& output : split_names(data.operation().optional_outputs))
    outputs.push_back(std::move(output));

  std::vector<Pair> pairs;
  for (const std::string& output : outputs) {
    if (!data.find_output(output)) // a kernel may give it all the same
      pairs.push_back({output, output, "", Kind::kernel, Kind::reference});
    std::vector<std::string> reads;
    for (const auto& [name, recorded] : data.tensors.outputs) {
      if (output_of(name, recorded.attributes) != output) continue;
      const std::string read =
          outputs_hold(&data.operation(), "mla_scale_read")
              ? overrides_.attribute("mla_scale_read", name, recorded.attributes)
              : "";
      if (std::find(reads.begin(), reads.end(), read) == reads.end()) {
        pairs.push_back({output, output, read, Kind::kernel, Kind::reference});
        reads.push_back(read);
      }
      const std::string accumulation =
          outputs_hold(&data.operation(), "accumulation")
              ? overrides_.attribute("accumulation", name, recorded.attributes)
              : "";
      pairs.push_back({output, name, read, Kind::reference, Kind::recorded, accumulation});
      pairs.push_back({output, name, read, Kind::kernel, Kind::recorded, accumulation});
    }
  }
  return pairs;
}

Result<Producer> Trial::recorded(const OperationData& data, const Pair& pair) const {
  Producer producer{Producer::Kind::recorded, &data.tensors.outputs.at(pair.tensor).tensor};
  if (pair.accumulation.empty()) return producer;
  const auto accumulation = parse_accumulation(pair.accumulation);
  DSAKIT_TRY(accumulation);
  producer.accumulation = *accumulation;
  return producer;
}

Result<Outcome> Trial::run(const OperationData& data, const Pair& pair) const {
  const OperationAdapter& adapter = *find_adapter(data.id.operation);
  const auto rule = rules_.find(data.id.operation, pair.tensor, name(pair.got));
  DSAKIT_TRY(rule);
  ContractValues contract = data.contract;
  if (!pair.scale_read.empty()) contract["mla_scale_read"] = pair.scale_read;
  ReferenceRun reference(adapter, {data.id, std::move(contract), data.tensors, data.config});

  Outcome outcome;
  outcome.gate = (*rule)->gate;
  Case c{pair.output, outcome.gate, {pair.got}, {pair.want}, (*rule)->limits};
  std::optional<KernelRun> run;
  if (pair.of_kernel()) {
    auto launched = kernels_.run(adapter, reference.data());
    outcome.kernel_status = launched.status();
    outcome.fails = outcome.kernel_status.code() == Code::device_error;
    if (!launched) return outcome;
    if (!launched->outputs.contains(pair.output)) return outcome;
    run = std::move(*launched);
    outcome.kernel = run->kernel;
    c.got = {Producer::Kind::kernel, &run->outputs.at(pair.output), run->accumulation};
  }
  if (pair.of_recorded()) {
    const auto want = recorded(data, pair);
    DSAKIT_TRY(want);
    c.want = *want;
  }
  auto judged = judge(c, reference);
  if (!judged && judged.status().code() == Code::unsupported) return outcome;
  DSAKIT_TRY(judged);
  const bool strayed =
      pair.of_kernel() && !pair.of_recorded() && run->stray && run->stray->output == pair.output;
  outcome.fails = strayed || !passes(judged->comparison, c.limits);
  outcome.judged = std::move(*judged);
  return outcome;
}

} // namespace dsakit::harness
