#include "dsakit/harness/compare_recordings.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "../recording/names.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "hints.hpp"
#include "judge.hpp"
#include "names.hpp"
#include "quantised.hpp"
#include "same_inputs.hpp"
#include "tensor_file.hpp"
#include "tie_band.hpp"

namespace dsakit::harness {
namespace {

Result<Producer> recorded(const RecordedTensor& tensor) {
  Producer producer{Producer::Kind::recorded, &tensor.tensor};
  if (const auto found = tensor.attributes.find("accumulation"); found != tensor.attributes.end()) {
    const auto accumulation = parse_accumulation(found->second);
    DSAKIT_TRY(accumulation);
    producer.accumulation = *accumulation;
  }
  return producer;
}

/// Empty where the output has none.
std::string scale_read(const RecordedTensor& tensor) {
  const auto found = tensor.attributes.find("mla_scale_read");
  return found == tensor.attributes.end() ? "" : found->second;
}

/// The references of one operation, one for each mla_scale_read of its outputs.
class References {
public:
  struct One {
    One(const OperationAdapter& adapter, OperationData data)
        : reference(adapter, std::move(data)), hints(adapter, reference) {}
    ReferenceRun reference;
    Hints hints; ///< refers to the above
  };

  References(const OperationAdapter& adapter, OperationData data)
      : adapter_(adapter), data_(std::move(data)) {}

  One& under(const std::string& scale_read) {
    std::unique_ptr<One>& one = references_[scale_read];
    if (!one) {
      OperationData data = data_;
      if (!scale_read.empty()) data.contract["mla_scale_read"] = scale_read;
      one = std::make_unique<One>(adapter_, std::move(data));
    }
    return *one;
  }

private:
  const OperationAdapter& adapter_;
  OperationData data_;
  std::map<std::string, std::unique_ptr<One>> references_;
};

class Compare {
public:
  Compare(const CompareOptions& options, Rules& rules, RecordingReader got, RecordingReader want)
      : options_(options), rules_(rules), got_(std::move(got)), want_(std::move(want)) {}

  Result<Report> run() {
    report_.verb = "compare";
    report_.against = options_.want;
    report_.environment = capture_environment();
    report_.files.push_back({options_.got, Verdict::skipped, false, {}, got_.contract(), {}});
    DSAKIT_TRY(between(same_contract(got_.contract(), want_.contract(), 0)));

    const std::vector<OperationId>& operations = got_.operations();
    for (std::size_t i = 0; i < operations.size() && !interrupted(); ++i) {
      if (options_.progress)
        options_.progress(static_cast<double>(i) / static_cast<double>(operations.size()),
                          operations[i].operation);
      if (has(want_, operations[i]))
        DSAKIT_TRY(compare_operation(operations[i]));
      else
        DSAKIT_TRY(missing(operations[i], {}, options_.want));
    }
    report_.partial = interrupted();
    for (const OperationId& id : want_.operations())
      if (!report_.partial && !has(got_, id)) DSAKIT_TRY(missing(id, {}, options_.got));

    report_.files[0].verdict = report_.verdict();
    if (!other_inputs_.empty()) {
      report_.files[0].bad_input = true;
      report_.files[0].reason = between(bad_input("inputs differ: " + other_inputs_)).what();
    }
    if (report_.files[0].verdict == Verdict::skipped)
      report_.files[0].reason =
          report_.partial ? "interrupted before anything of it was compared"
                          : "no output of both files belongs to an operation that is compared";
    report_.warnings = rules_.unused();
    return std::move(report_);
  }

private:
  bool interrupted() const { return options_.interrupted && *options_.interrupted; }

  /// With the two files that differ.
  Status between(const Status& status) const {
    return status ? status
                  : bad_input(options_.got + " and " + options_.want + ": " + status.what());
  }

  ReportLine line_of(const OperationId& id, const std::string& tensor) const {
    ReportLine line;
    line.file = options_.got;
    line.step = id.step;
    line.operation = id.operation;
    line.tensor = tensor;
    line.subject = name(Producer::Kind::recorded);
    line.against = name(Producer::Kind::recorded);
    return line;
  }

  void skip(const OperationId& id, const std::string& tensor, const std::string& reason) {
    ReportLine line = line_of(id, tensor);
    line.verdict = Verdict::skipped;
    line.reason = reason;
    report_.lines.push_back(std::move(line));
  }

  Status missing(const OperationId& id, const std::string& tensor, const std::string& file) {
    const std::string what = file + ": has no step " + std::to_string(id.step) + " " +
                             id.operation + (tensor.empty() ? "" : " output " + tensor);
    if (!options_.allow_missing)
      return bad_input(what + ", want it on both sides (--allow-missing skips it)");
    skip(id, tensor, what);
    return {};
  }

  /// Each input that differs becomes a line: then the outputs may rightly differ.
  bool same_inputs(const OperationId& id, const RecordedOperation& got,
                   const RecordedOperation& want) {
    const std::string before = other_inputs_;
    const auto differs = [&](const std::string& name, const std::string& how, ReportLine line) {
      const std::string object = object_path(id, Side::inputs, name);
      line.verdict = Verdict::error;
      line.reason = "inputs differ: " + how;
      line.reproduce = compare_command(options_);
      other_inputs_ += (other_inputs_.empty() ? "" : "; ") + object +
                       (line.first_at.empty() ? "" : " " + to_string(line.first_at)) + ": " + how;
      report_.lines.push_back(std::move(line));
    };
    for (const auto& [name, tensor] : got.inputs) {
      ReportLine line = line_of(id, "inputs/" + name);
      const auto other = want.inputs.find(name);
      const std::string how = other == want.inputs.end()
                                  ? differ("the tensor", "none")
                                  : input_differs(tensor.tensor, other->second.tensor, line);
      if (!how.empty()) differs(name, how, std::move(line));
    }
    for (const auto& [name, tensor] : want.inputs)
      if (!got.inputs.contains(name))
        differs(name, differ("none", "the tensor"), line_of(id, "inputs/" + name));
    return other_inputs_ == before;
  }

  /// Names `want`'s outputs as --map says, which sees them as `export` writes them.
  Status rename_outputs(const OperationId& id, RecordedOperation& operation) const {
    const std::string folder = exported_name(object_path(id, Side::outputs, ""));
    std::vector<char> used(options_.maps.size());
    std::map<std::string, RecordedTensor> renamed;
    for (auto& [name, tensor] : operation.outputs) {
      const std::string to = mapped(folder + name, options_.maps, used);
      if (!to.starts_with(folder) || !valid_tensor_name(to.substr(folder.size())))
        return bad_input("--map: found '" + to + "' for '" + folder + name +
                         "', want an output of the same step and operation");
      if (!renamed.emplace(to.substr(folder.size()), std::move(tensor)).second)
        return bad_input("--map: found '" + to + "' for two outputs, want a name for each");
    }
    operation.outputs = std::move(renamed);
    return {};
  }

  Status compare_operation(const OperationId& id) {
    const OperationAdapter* adapter = find_adapter(id.operation);
    if (!adapter) {
      skip(id, {}, "this version does not compare " + id.operation);
      return {};
    }
    const ContractValues contract = got_.contract(id.step);
    DSAKIT_TRY(between(same_contract(contract, want_.contract(id.step), id.step)));
    const auto got = got_.read(id, contract);
    if (!got && got.status().code() == Code::unsupported) {
      skip(id, {}, got.status().what());
      return {};
    }
    DSAKIT_TRY(got);
    auto want = want_.read(id, contract);
    DSAKIT_TRY(want);
    DSAKIT_TRY(rename_outputs(id, *want));
    if (!same_inputs(id, *got, *want)) return {};

    References references(*adapter, {id, contract, *got, got_.config()});
    for (const auto& [name, tensor] : got->outputs) {
      const auto other = want->outputs.find(name);
      if (other == want->outputs.end()) {
        DSAKIT_TRY(missing(id, name, options_.want));
        continue;
      }
      const auto rule =
          rules_.find(id.operation, name, dsakit::harness::name(Producer::Kind::recorded));
      DSAKIT_TRY(rule);
      const std::string read = scale_read(tensor);
      if (read != scale_read(other->second))
        return bad_input(differ(object_path(id, Side::outputs, name) + " mla_scale_read", read,
                                scale_read(other->second)));
      auto& [reference, hints] = references.under(read);
      auto ours = recorded(tensor);
      DSAKIT_TRY(ours);
      auto theirs = recorded(other->second);
      DSAKIT_TRY(theirs);
      const std::string output = output_of(name, tensor.attributes);
      ours->scales = find_scales(*got, name, output);
      theirs->scales = find_scales(*want, name, output);
      std::vector<double> band;
      auto of_logits = tie_band({got_, as_recorded_}, reference.data(), **rule);
      DSAKIT_TRY(of_logits);
      band = std::move(*of_logits);
      if (!band.empty()) ours->band = theirs->band = &band;
      const Case c{output, (*rule)->gate, *ours, *theirs, (*rule)->limits};
      const auto judged = judge(c, reference);
      DSAKIT_TRY(judged);
      ReportLine line = line_of(id, name);
      fill(line, c, *judged);
      line.why = (*rule)->why;
      line.reproduce = compare_command(options_);
      if (line.verdict == Verdict::fail) {
        line.tightest_gate = tightest_gate(c, judged->comparison, reference);
        if (!judged->comparison.passes()) line.hint = hints.find(c, *judged);
      }
      rules_.waivers.apply(line);
      report_.lines.push_back(std::move(line));
    }
    for (const auto& [name, tensor] : want->outputs)
      if (!got->outputs.contains(name)) DSAKIT_TRY(missing(id, name, options_.got));
    return {};
  }

  const CompareOptions& options_;
  Rules& rules_;
  RecordingReader got_;
  RecordingReader want_;
  const std::vector<ContractOverride> no_overrides_;
  const Overrides as_recorded_{no_overrides_};
  std::string other_inputs_; ///< those that differ, for a message
  Report report_;
};

} // namespace

std::string compare_command(const CompareOptions& options) {
  std::string command =
      "dsakit compare " + shell_word(options.got) + " " + shell_word(options.want);
  for (const NameMap& map : options.maps)
    command += " --map " + shell_word(map.text);
  if (options.allow_missing) command += " --allow-missing";
  return options.repeat.empty() ? command : command + " " + options.repeat;
}

Result<Report> compare_recordings(const CompareOptions& options, Rules& rules) {
  auto got = RecordingReader::open(options.got);
  DSAKIT_TRY(got);
  auto want = RecordingReader::open(options.want);
  DSAKIT_TRY(want);
  DSAKIT_TRY(got->verify());
  DSAKIT_TRY(want->verify());
  return Compare(options, rules, std::move(*got), std::move(*want)).run();
}

} // namespace dsakit::harness
