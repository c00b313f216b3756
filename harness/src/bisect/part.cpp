#include "part.hpp"

#include <algorithm>
#include <cstring>

#include "../replay/command.hpp"
#include "../replay/judge.hpp"
#include "../replay/names.hpp"
#include "../replay/overrides.hpp"
#include "../replay/same_inputs.hpp"
#include "../replay/tie_band.hpp"
#include "dsakit/harness/operations.hpp"
#include "makers.hpp"

namespace dsakit::harness {
namespace {

class Part {
public:
  Part(const BisectOptions& options, Rules& rules, RecordingReader got, RecordingReader want)
      : options_(options), rules_(rules), overrides_(options.overrides), got_(std::move(got)),
        want_(std::move(want)) {}

  Result<Bisection> run() {
    ReportFile used;
    overrides_.note(got_, {}, used);
    DSAKIT_TRY(overrides_.check_used());
    result_.file = options_.file;
    result_.against = options_.against;
    result_.environment = capture_environment();
    std::int64_t step = -1;
    const std::vector<OperationId>& operations = got_.operations();
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const OperationId& id = operations[i];
      result_.partial = options_.interrupted && *options_.interrupted;
      if (result_.partial) break;
      if (options_.progress)
        options_.progress(static_cast<double>(i) / static_cast<double>(operations.size()),
                          id.operation);
      if (id.step != step) makers_.clear();
      step = id.step;
      if (find_adapter(id.operation) && has(want_, id)) DSAKIT_TRY(compare(id));
    }
    finish();
    return std::move(result_);
  }

private:
  Status parted(const std::string& what, const std::string& got, const std::string& want) const {
    return bad_input(options_.file + " and " + options_.against + ": " + differ(what, got, want));
  }

  Status same_contract(const OperationId& id) const {
    const ContractValues got = got_.contract(id.step), want = want_.contract(id.step);
    const Operation& operation = *find_operation(id.operation);
    for (std::string_view keys : {operation.contract, operation.optional_contract})
      for (const std::string& key : split_names(keys)) {
        const auto of = [&](const ContractValues& values) {
          const auto found = values.find(key);
          return found == values.end() ? "no value" : found->second;
        };
        if (of(got) != of(want))
          return parted("contract of step " + std::to_string(id.step) + ", key " + key, of(got),
                        of(want));
      }
    return {};
  }

  Status compare(const OperationId& id) {
    DSAKIT_TRY(same_contract(id));
    const ContractValues contract = overrides_.contract(got_, id.step);
    const auto got = got_.read(id, contract);
    if (!got && got.status().code() == Code::unsupported) return {};
    DSAKIT_TRY(got);
    const auto want = want_.read(id, contract);
    DSAKIT_TRY(want);
    ++result_.operations;
    const std::size_t partings = result_.partings.size();
    for (const auto& [name, tensor] : got->inputs) {
      const auto other = want->inputs.find(name);
      if (other == want->inputs.end())
        return parted(object_path(id, Side::inputs, name), "the tensor", "none");
      DSAKIT_TRY(compare_input(id, name, tensor.tensor, other->second.tensor));
    }
    for (const auto& [name, tensor] : want->inputs)
      if (!got->inputs.contains(name))
        return parted(object_path(id, Side::inputs, name), "none", "the tensor");
    for (const auto& [name, tensor] : got->outputs) {
      if (!want->outputs.contains(name)) continue;
      waived(id.operation, name, Verdict::pass); // a waiver that meets no failure can go
      DSAKIT_TRY(compare_output(id, contract, name, *got, *want));
    }
    makers_.note(id);
    Verdict verdict = Verdict::pass;
    for (std::size_t i = partings; i < result_.partings.size(); ++i)
      if (verdict != Verdict::fail)
        verdict = result_.partings[i].waived.empty() ? Verdict::fail : Verdict::waived;
    result_.judged.push_back({id.step, id.operation, verdict, {}});
    return {};
  }

  Status same_form(const OperationId& id, Side side, const std::string& name, const Tensor& got,
                   const Tensor& want) const {
    if (got.shape == want.shape && got.dtype == want.dtype) return {};
    return parted(object_path(id, side, name), form_of(got), form_of(want));
  }

  /// An input that is what an operation before it made was judged as its output.
  Status compare_input(const OperationId& id, const std::string& name, const Tensor& got,
                       const Tensor& want) {
    DSAKIT_TRY(same_form(id, Side::inputs, name, got, want));
    if (got.bytes == want.bytes) return {};
    const auto origin = makers_.origin(name, got, want);
    DSAKIT_TRY(origin);
    Parting parting{id.step, id.operation, name, Parting::Cause::given, got.elements()};
    parting.gate = harness::name(Gate::exact);
    if (origin->got != origin->want) {
      parting.cause = Parting::Cause::stale;
      parting.maker = origin->operation;
      parting.got_right = origin->got;
      parting.want_right = origin->want;
    }
    const auto explained = [&](std::ptrdiff_t at) {
      return std::any_of(origin->explained.begin(), origin->explained.end(),
                         [&](const auto& part) { return at >= part.first && at < part.second; });
    };
    const std::size_t size = size_of(got.dtype);
    for (std::int64_t i = 0; i < got.elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * size;
      if (std::memcmp(got.bytes.data() + at, want.bytes.data() + at, size) == 0 ||
          explained(static_cast<std::ptrdiff_t>(at)))
        continue;
      if (parting.mismatches++ == 0) {
        parting.first_at = coordinates(got.shape, i);
        parting.got = Sample{element(got, i), hex(got, i)};
        parting.want = Sample{element(want, i), hex(want, i)};
      }
    }
    if (parting.mismatches > 0) result_.partings.push_back(std::move(parting));
    return {};
  }

  Result<Producer> recorded(const OperationId& id, const std::string& tensor,
                            const RecordedTensor& output) const {
    const auto accumulation =
        overrides_.accumulation(find_operation(id.operation), tensor, output.attributes);
    DSAKIT_TRY(accumulation);
    return Producer{Producer::Kind::recorded, &output.tensor, *accumulation};
  }

  ContractValues contract_of(const OperationId& id, const ContractValues& contract,
                             const std::string& tensor, const RecordedTensor& output) const {
    ContractValues values = contract;
    if (outputs_hold(find_operation(id.operation), "mla_scale_read"))
      values["mla_scale_read"] = overrides_.attribute("mla_scale_read", tensor, output.attributes);
    return values;
  }

  Status compare_output(const OperationId& id, const ContractValues& contract,
                        const std::string& tensor, const RecordedOperation& got,
                        const RecordedOperation& want) {
    const RecordedTensor& ours = got.outputs.at(tensor);
    const RecordedTensor& theirs = want.outputs.at(tensor);
    DSAKIT_TRY(same_form(id, Side::outputs, tensor, ours.tensor, theirs.tensor));
    if (ours.tensor.bytes == theirs.tensor.bytes) return {};
    const OperationAdapter& adapter = *find_adapter(id.operation);
    ReferenceRun of_got(adapter, {id, contract_of(id, contract, tensor, ours), got, got_.config()});
    ReferenceRun of_want(adapter,
                         {id, contract_of(id, contract, tensor, theirs), want, want_.config()});
    const auto a = recorded(id, tensor, ours);
    DSAKIT_TRY(a);
    const auto b = recorded(id, tensor, theirs);
    DSAKIT_TRY(b);
    const auto rule = rules_.find(id.operation, tensor, name(Producer::Kind::recorded));
    DSAKIT_TRY(rule);
    Case both{output_of(tensor, ours.attributes), (*rule)->gate, *a, *b, (*rule)->limits};
    const auto got_band = tie_band({got_, overrides_}, of_got.data(), **rule);
    DSAKIT_TRY(got_band);
    const auto want_band = tie_band({want_, overrides_}, of_want.data(), **rule);
    DSAKIT_TRY(want_band);
    if (!got_band->empty()) both.got.band = &*got_band;
    if (!want_band->empty()) both.want.band = &*want_band;
    const auto plain = judge(both, of_got);
    DSAKIT_TRY(plain);
    if (passes(plain->comparison, both.limits)) return {};
    const auto explained = judge(both, of_got, &of_want);
    DSAKIT_TRY(explained);
    const bool by_itself = !passes(explained->comparison, both.limits);
    const Comparison& shown = by_itself ? explained->comparison : plain->comparison;

    Parting parting{id.step,        id.operation,
                    tensor,         by_itself ? Parting::Cause::itself : Parting::Cause::inputs,
                    shown.elements, shown.mismatches};
    if (shown.first) {
      parting.first_at = coordinates(ours.tensor.shape, *shown.first);
      parting.got =
          Sample{element(*plain->got.tensor, *shown.first), hex(*plain->got.tensor, *shown.first)};
      parting.want = Sample{element(*plain->want.tensor, *shown.first),
                            hex(*plain->want.tensor, *shown.first)};
    }
    const auto got_right = is_right(both.output, tensor, both.got, of_got);
    DSAKIT_TRY(got_right);
    const auto want_right = is_right(both.output, tensor, both.want, of_want);
    DSAKIT_TRY(want_right);
    parting.got_right = *got_right;
    parting.want_right = *want_right;
    parting.gate = name(both.gate);
    parting.waived = waived(id.operation, tensor, Verdict::fail);
    result_.partings.push_back(std::move(parting));
    return {};
  }

  /// Until when and why, if a waiver names it.
  std::string waived(const std::string& operation, const std::string& tensor, Verdict verdict) {
    ReportLine line;
    line.operation = operation;
    line.tensor = tensor;
    line.subject = line.against = name(Producer::Kind::recorded);
    line.verdict = verdict;
    rules_.waivers.apply(line);
    return line.verdict == Verdict::waived ? line.reason : "";
  }

  Result<bool> is_right(const std::string& output, const std::string& tensor,
                        const Producer& producer, ReferenceRun& reference) {
    const Producer oracle{Producer::Kind::reference};
    const auto rule = rules_.find(reference.data().id.operation, tensor, name(oracle.kind));
    DSAKIT_TRY(rule);
    const auto judged =
        judge({output, (*rule)->gate, oracle, producer, (*rule)->limits}, reference);
    DSAKIT_TRY(judged);
    return passes(judged->comparison, (*rule)->limits);
  }

  void finish() {
    if (result_.operations == 0) {
      result_.verdict = Verdict::skipped;
      result_.reason = "no operation of both files is one that this version replays";
    }
    result_.warnings = rules_.unused();
    if (result_.partings.empty()) return;
    const bool all_waived = result_.waived() == std::ssize(result_.partings);
    result_.verdict = all_waived ? Verdict::waived : Verdict::fail;
    if (all_waived) return;
    const std::string again = forced_kernel_word(result_.environment) + "dsakit bisect " +
                              shell_word(options_.file) + " --against " +
                              shell_word(options_.against);
    result_.reproduce = options_.repeat.empty() ? again : again + " " + options_.repeat;
    // The file to look at: the first that the reference contradicts.
    const auto made =
        std::find_if(result_.partings.begin(), result_.partings.end(), [](const Parting& p) {
          return p.waived.empty() && p.cause != Parting::Cause::stale &&
                 (!p.got_right.value_or(true) || !p.want_right.value_or(true));
        });
    if (made == result_.partings.end()) return;
    const std::string& wrong = *made->got_right ? options_.against : options_.file;
    result_.reproduce =
        command(result_.environment, "replay", wrong, made->operation, options_.repeat);
    result_.next = next_command(result_.environment, options_, wrong, made->operation);
  }

  const BisectOptions& options_;
  Rules& rules_;
  Overrides overrides_;
  RecordingReader got_;
  RecordingReader want_;
  Makers makers_{got_, want_};
  Bisection result_;
};

} // namespace

Result<Bisection> part(const BisectOptions& options, Rules& rules) {
  auto got = RecordingReader::open(options.file);
  DSAKIT_TRY(got);
  auto want = RecordingReader::open(options.against);
  DSAKIT_TRY(want);
  DSAKIT_TRY(got->verify());
  DSAKIT_TRY(want->verify());
  return Part(options, rules, std::move(*got), std::move(*want)).run();
}

} // namespace dsakit::harness
