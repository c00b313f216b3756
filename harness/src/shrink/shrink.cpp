#include "dsakit/harness/shrink.hpp"

#include <algorithm>
#include <cmath>

#include "../recording/atomic_file.hpp"
#include "../replay/command.hpp"
#include "../replay/names.hpp"
#include "../replay/tie_band.hpp"
#include "../replay/whole_hint.hpp"
#include "mend.hpp"
#include "reducer.hpp"
#include "scramble.hpp"

namespace dsakit::harness {
namespace {

constexpr std::uint64_t kSeeds = 8; ///< that are tried for scrambled values

class Shrink {
public:
  Shrink(const ShrinkOptions& options, Rules& rules, const ShrinkProgress& progress,
         RecordingReader reader)
      : options_(options), progress_(progress), reader_(std::move(reader)),
        overrides_(options.overrides),
        kernels_(options.device, options.host, options.time_limit_s, options.kernel_library),
        trial_(reader_, overrides_, rules, kernels_) {}

  Result<Shrunk> run() {
    ReportFile used;
    overrides_.note(reader_, options_.operation, used);
    DSAKIT_TRY(overrides_.check_used());
    std::vector<OperationId> steps;
    for (const OperationId& id : reader_.operations())
      if (id.operation == options_.operation) steps.push_back(id);
    if (steps.empty() && !find_adapter(options_.operation))
      return bad_input("--operation: found '" + options_.operation +
                       "', want one that dsakit replays");
    if (steps.empty())
      return Status(Code::no_device, options_.input + ": holds no operation " + options_.operation +
                                         " (dsakit info lists them)");
    DSAKIT_TRY(kernels_.open());
    for (const OperationId& id : steps) {
      auto reducer = find_failure(id);
      DSAKIT_TRY(reducer);
      if (*reducer) return reduce(id, **reducer);
    }
    if (!unsupported_.empty()) return unsupported(options_.input + ": " + unsupported_);
    result_.not_written = waived_ ? "nothing fails that is not waived" : "nothing fails";
    return result_;
  }

private:
  /// None where the operation passes.
  Result<std::optional<Reducer>> find_failure(const OperationId& id) {
    const ContractValues contract = overrides_.contract(reader_, id.step);
    auto tensors = reader_.read(id, contract);
    if (!tensors && tensors.status().code() == Code::unsupported) return std::optional<Reducer>{};
    DSAKIT_TRY(tensors);
    Problem problem{id, contract, reader_.config(), std::move(*tensors)};
    if (auto named = name_row_requests(problem, {})) problem = std::move(*named);
    auto pairs = pairs_of(problem.data(), overrides_);
    DSAKIT_TRY(pairs);
    if (options_.device == optimized::DeviceKind::host) // a model of lanes is slow
      std::stable_partition(pairs->begin(), pairs->end(),
                            [](const Pair& pair) { return !pair.of_kernel(); });
    for (const Pair& pair : *pairs) {
      auto outcome = trial_.run(problem.data(), pair);
      DSAKIT_TRY(outcome);
      if (outcome->kernel_status.code() == Code::unsupported)
        unsupported_ = outcome->kernel_status.what();
      if (!outcome->fails) continue;
      if (outcome->kernel_status && trial_.waived(id, pair)) {
        waived_ = true;
        continue;
      }
      result_.bytes_before = problem.bytes();
      auto hint = hint_of(problem, pair, *outcome);
      DSAKIT_TRY(hint);
      whole_hint_ = std::move(*hint);
      keep_one_producer(problem, pair);
      DSAKIT_TRY(keep_band(problem, pair));
      return std::optional<Reducer>(
          Reducer(trial_, pair, std::move(problem), std::move(*outcome), progress_));
    }
    return std::optional<Reducer>{};
  }

  /// Empty where a kernel faulted: nothing to look at, and it would take its time again.
  Result<std::string> hint_of(const Problem& problem, const Pair& pair,
                              const Outcome& outcome) const {
    if (!outcome.comparison) return std::string();
    auto hinted = trial_.run(problem.data(), pair, true);
    DSAKIT_TRY(hinted);
    return std::move(hinted->hint);
  }

  /// Of each output one recorded tensor, that of `pair` where it is its output.
  void keep_one_producer(Problem& problem, const Pair& pair) const {
    Problem smaller = problem;
    std::vector<std::string> seen;
    if (pair.of_recorded()) seen.push_back(pair.output);
    std::erase_if(smaller.tensors.outputs, [&](const auto& item) {
      const auto& [name, recorded] = item;
      if (pair.of_recorded() && name == pair.tensor) return false;
      const std::string output = output_of(name, recorded.attributes);
      if (std::find(seen.begin(), seen.end(), output) != seen.end()) return true;
      if (!pair.scale_read.empty() &&
          overrides_.attribute("mla_scale_read", name, recorded.attributes) != pair.scale_read)
        return true;
      seen.push_back(output);
      return false;
    });
    if (check(smaller)) problem = std::move(smaller);
  }

  /// The tie band of a top-k comes from the operation before it, which the small file has not.
  Status keep_band(Problem& problem, const Pair& pair) const {
    const auto band = trial_.band(problem.data(), pair);
    DSAKIT_TRY(band);
    if (band->empty() || problem.has(kLogitsBand)) return {};
    const RecordedTensor& logits = problem.tensors.inputs.at("logits");
    RecordedTensor off{Tensor(Dtype::float32, logits.tensor.shape), logits.axes, {}};
    std::transform(band->begin(), band->end(), off.tensor.as<float>(), [](double value) {
      const auto rounded = static_cast<float>(value);
      return rounded < value ? std::nextafter(rounded, HUGE_VALF) : rounded;
    });
    problem.tensors.inputs[kLogitsBand] = std::move(off);
    return {};
  }

  Result<Shrunk> reduce(const OperationId& id, Reducer& reducer) {
    const Pair& pair = reducer.pair();
    reducer.reduce();
    if (!pair.of_recorded()) reduce_sums(reducer, Carried::ratio);
    result_.step = id.step;
    result_.tensor = pair.tensor;
    result_.subject = name(pair.got);
    result_.against = name(pair.want);
    result_.reason = reducer.outcome().kernel_status.what();
    if (options_.synthesize && !synthesize(reducer)) {
      result_.not_written = "scrambled values do not fail, with none of the seeds " +
                            std::to_string(options_.seed) + " to " +
                            std::to_string(options_.seed + kSeeds - 1);
      return result_;
    }
    const auto hint = hint_of(reducer.problem(), pair, reducer.outcome());
    DSAKIT_TRY(hint);
    // What too little is left to show is said, and what it only seems to be is not.
    if (whole_hint_.empty() ? !hint->empty()
                            : hint->empty() || !is_part_of_hint(*hint, whole_hint_))
      note_ = pair.tensor + ": " + (whole_hint_.empty() ? "none" : whole_hint_);
    result_.extents = reducer.extents();
    result_.bytes_after = reducer.problem().bytes();
    result_.trials = reducer.trials();
    DSAKIT_TRY(write(id, reducer.problem()));
    result_.reproduce =
        command(capture_environment(), "replay", options_.output, id.operation, options_.repeat);
    return result_;
  }

  static void reduce_sums(Reducer& reducer, Carried carried) {
    reducer.reduce_sums([&](const Problem& from, Problem& to) {
      return mend_outputs(reducer.pair(), reducer.outcome().gate, carried, from, to);
    });
    reducer.reduce();
  }

  bool synthesize(Reducer& reducer) {
    const Problem original = reducer.problem();
    for (std::uint64_t seed = options_.seed; seed < options_.seed + kSeeds; ++seed)
      for (const Carried carried : {Carried::ratio, Carried::gates}) {
        Problem scrambled = scramble(original, seed);
        if (!mend_outputs(reducer.pair(), reducer.outcome().gate, carried, original, scrambled) ||
            shares_values(original, scrambled) || !reducer.accept(std::move(scrambled)))
          continue;
        result_.seed = seed;
        reduce_sums(reducer, carried);
        return true;
      }
    return false;
  }

  Status write(const OperationId& id, const Problem& problem) const {
    const Problem as_recorded{id, reader_.contract(id.step), problem.config, problem.tensors};
    DSAKIT_TRY(check(as_recorded)); // under an override, ids may not be what the file says
    auto writer = RecordingWriter::create(options_.output, {.deflate = true});
    DSAKIT_TRY(writer);
    DSAKIT_TRY(writer->contract(reader_.contract(id.step))); // overrides are said again
    if (!problem.config.empty()) DSAKIT_TRY(writer->config(problem.config));
    DSAKIT_TRY(writer->provenance(provenance(id)));
    const OperationId first{0, id.operation};
    for (const auto& [name, tensor] : problem.tensors.inputs)
      DSAKIT_TRY(writer->add(object_path(first, Side::inputs, name), tensor));
    for (const auto& [name, tensor] : problem.tensors.outputs)
      DSAKIT_TRY(writer->add(object_path(first, Side::outputs, name), tensor));
    return writer->commit();
  }

  /// Scrambled values have no other producer than this.
  Attributes provenance(const OperationId& id) const {
    Attributes values = result_.seed ? Attributes{} : reader_.provenance();
    std::string command = "dsakit shrink --operation " + id.operation;
    if (result_.seed) command += " --synthesize --seed " + std::to_string(*result_.seed);
    values["command"] = command;
    const auto noted = reader_.provenance().find(kWholeHint); // it is a small file already
    if (noted != reader_.provenance().end())
      values[kWholeHint] = noted->second;
    else if (!note_.empty())
      values[kWholeHint] = note_;
    std::string text = "step " + std::to_string(id.step) + " " + id.operation + " " +
                       result_.tensor + ", where " + result_.subject + " against " +
                       result_.against + " fails";
    for (const Shrunk::Extent& extent : result_.extents)
      text += "; " + extent.name + " " + std::to_string(extent.from) + " to " +
              std::to_string(extent.to);
    if (result_.seed) text += "; values are scrambled";
    values["shrunk"] = text;
    return values;
  }

  const ShrinkOptions& options_;
  const ShrinkProgress& progress_;
  RecordingReader reader_;
  Overrides overrides_;
  KernelRunner kernels_;
  Trial trial_;
  bool waived_ = false;     ///< something failed that a waiver names
  std::string unsupported_; ///< why no kernel took it
  std::string whole_hint_;  ///< before anything was left out
  std::string note_;        ///< of it, for the small file; empty: that has the same hint
  Shrunk result_;
};

} // namespace

Result<Shrunk> shrink(const ShrinkOptions& options, Rules& rules, const ShrinkProgress& progress) {
  if (!find_adapter(options.operation))
    return bad_input(
        "--operation: found '" + options.operation +
        "', want a single operation that is replayed (dsakit info lists those of a file)");
  DSAKIT_TRY(check_not_input(options.output, options.input));
  auto reader = RecordingReader::open(options.input);
  DSAKIT_TRY(reader);
  DSAKIT_TRY(reader->verify());
  return Shrink(options, rules, progress, std::move(*reader)).run();
}

} // namespace dsakit::harness
