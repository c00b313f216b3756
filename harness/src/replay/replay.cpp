#include "dsakit/harness/replay.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "chain.hpp"
#include "command.hpp"
#include "determinism.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "files.hpp"
#include "kernel_runner.hpp"
#include "layer_run.hpp"
#include "lines.hpp"
#include "names.hpp"
#include "sample_rows.hpp"

namespace dsakit::harness {
namespace {

class Replay {
public:
  Replay(const ReplayOptions& options, Rules& rules)
      : options_(options), rules_(rules), overrides_(options.overrides),
        kernels_(options.device, options.host, options.time_limit_s, options.kernel_library) {}

  Result<Report> run() {
    const auto files = files_of(options_.paths);
    DSAKIT_TRY(files);
    report_.verb = "replay";
    report_.mode = chained() ? "chained" : "fed";
    report_.environment = capture_environment();
    open(*files);
    if (interrupted()) return stop_at_the_first(files->size());
    if (!any_bad()) DSAKIT_TRY(overrides_.check_used());
    if (any_bad() && !options_.keep_going) return finish();

    const auto device = kernels_.open();
    if (!device) {
      // Files are judged before devices: a payload may still be bad.
      for (ReplayFile& entry : entries_)
        check_payload(entry, checks());
      return any_bad() ? Result<Report>(finish()) : Result<Report>(device.status());
    }
    report_.device = kind_name(options_.device);
    if (options_.device == optimized::DeviceKind::host)
      report_.host_arch = optimized::name(options_.host.arch);
    report_.environment.device = *device;

    bool takes_any = options_.kernel_library.empty() || any_bad();
    for (const ReplayFile& entry : entries_)
      if (entry.reader)
        for (const OperationId& id : entry.reader->operations())
          if (replays(id)) {
            bytes_ += bytes_of(*entry.reader, id);
            takes_any |= kernels_.takes(id.operation);
          }
    if (!takes_any)
      return unsupported(options_.kernel_library +
                         ": found kernels for none of the operations to replay, only for " +
                         kernels_.served());
    for (ReplayFile& entry : entries_) {
      if (!entry.reader) continue;
      if (!replay_file(entry)) return stop_at(entry);
      if (!goes_on(entry.report.verdict) && !options_.keep_going) {
        leave_out_after(entry);
        break;
      }
    }
    return finish();
  }

private:
  static bool goes_on(Verdict verdict) {
    return verdict == Verdict::pass || verdict == Verdict::skipped || verdict == Verdict::waived;
  }

  bool any_bad() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const ReplayFile& e) { return e.report.bad_input; });
  }

  bool interrupted() const { return options_.interrupted && *options_.interrupted; }

  /// The operations of a layer are fed by the ones before, too.
  bool chained() const { return options_.mode == ReplayMode::chained || layer_; }

  /// What lines and rules call it: an operation of a layer that is replayed as a whole is its part.
  const OperationId& named(const OperationId& id) const { return layer_ ? layer_->id : id; }

  bool wanted(const OperationId& id) const {
    return options_.operation.empty() || named(id).operation == options_.operation;
  }

  /// Whether its operation is run; a chain needs those before the wanted one.
  bool replays(const OperationId& id) const { return wanted(id) || chained(); }

  FileChecks checks() {
    return {rules_, overrides_, [this](const OperationId& id) { return wanted(id); },
            options_.operation};
  }

  void tell(const std::string& what) const {
    if (options_.progress) options_.progress(bytes_ > 0 ? done_bytes_ / bytes_ : 0, what);
  }

  void leave_out_after(const ReplayFile& entry) {
    report_.files_left_out += &entries_.back() - &entry;
    entries_.resize(static_cast<std::size_t>(&entry - entries_.data()) + 1);
  }

  /// The report ends with what was compared of `entry`.
  Report stop_at(ReplayFile& entry) {
    report_.partial = true;
    if (!entry.report.bad_input) summarise(entry, report_, options_.operation);
    leave_out_after(entry);
    return finish();
  }

  /// Interrupted while the files were opened.
  Result<Report> stop_at_the_first(std::size_t files) {
    if (entries_.empty()) return Status(Code::interrupted, "interrupted");
    report_.files_left_out = static_cast<std::int64_t>(files - entries_.size());
    return stop_at(entries_.front());
  }

  /// Everything about the files that needs no device: structure, checksums, rules.
  void open(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      if (interrupted()) return;
      tell("checking " + file);
      entries_.push_back(open_file(file, checks()));
      if (entries_.back().report.bad_input && !options_.keep_going) return;
    }
  }

  /// False where an interrupt ended it.
  bool replay_file(ReplayFile& entry) {
    std::int64_t step = -1;
    std::vector<OperationId> ids = entry.reader->operations();
    std::stable_partition(ids.begin(), ids.end(), // first the operations that it is made of
                          [](const OperationId& id) { return id.operation != kLayer; });
    for (const OperationId& id : ids) {
      if (!replays(id)) continue;
      if (interrupted()) return false;
      tell(id.operation);
      const std::size_t lines = report_.lines.size();
      if (id.step != step) chain_ = {};
      step = id.step;
      const Status status = replay_operation(entry, id);
      if (interrupted()) { // what the operation said may be its doing
        report_.lines.resize(lines);
        return false;
      }
      if (!status) {
        // What the other operations said stays in the report.
        entry.bad(status);
        return true;
      }
      done_bytes_ += bytes_of(*entry.reader, id);
    }
    summarise(entry, report_, options_.operation);
    return true;
  }

  /// A layer that ran as a whole.
  struct LayerRun {
    OperationId id;
    Result<KernelRun> kernel;
  };

  /// The operations of the step as one run on the device. Each is held to what the reference makes
  /// of what that run fed it, and the recorded outputs within the measured difference of the
  /// inputs.
  Status replay_layer(const ReplayFile& entry, const OperationId& id) {
    if (!wanted(id)) return {};
    if (!options_.kernel_library.empty()) {
      lines_.skip(entry, id, "--kernel-lib: a whole layer runs built-in kernels alone");
      return {};
    }
    ContractValues values = overrides_.contract(*entry.reader, id.step);
    for (const OperationId& part : entry.reader->operations())
      if (part.step == id.step && outputs_hold(find_operation(part.operation), "mla_scale_read"))
        for (const TensorInfo& output : entry.reader->tensors(part, Side::outputs))
          values["mla_scale_read"] =
              overrides_.attribute("mla_scale_read", output.name(), output.attributes);
    const auto layer = RecordedLayer::read(*entry.reader, id.step, values);
    if (!layer && layer.status().code() == Code::unsupported) {
      lines_.skip(entry, id, layer.status().what());
      return {};
    }
    DSAKIT_TRY(layer);
    const RecordedOperation none;
    const LayerRun run{id, kernels_.run(*layer, {id, values, none})};
    if (!run.kernel && run.kernel.status().code() == Code::bad_input) return run.kernel.status();
    if (!run.kernel) {
      lines_.failed(entry, id, run.kernel.status());
      return {};
    }
    const auto made = [&](const TensorInfo& output) {
      return run.kernel->outputs.contains(output.output());
    };
    Chain before = std::exchange(chain_, {});
    layer_ = &run;
    Status status;
    for (const OperationId& part : entry.reader->operations()) {
      const auto& outputs = entry.reader->tensors(part, Side::outputs);
      if (!status || part.step != id.step || !find_adapter(part.operation) ||
          !std::all_of(outputs.begin(), outputs.end(), made))
        continue;
      // Keys gathered for some of the requests, say: right for their own chunk, and no other's.
      const auto other =
          std::find_if(outputs.begin(), outputs.end(), [&](const TensorInfo& output) {
            return run.kernel->outputs.at(output.output()).shape != output.shape;
          });
      if (other != outputs.end())
        lines_.skip(entry, id,
                    part.operation + " is recorded of another chunk: " + other->name() +
                        ": found " + to_string(other->shape) + ", the step as a whole has " +
                        to_string(run.kernel->outputs.at(other->output()).shape));
      else
        status = replay_operation(entry, part);
    }
    layer_ = nullptr;
    chain_ = std::move(before);
    return status;
  }

  /// bad_input is the file's fault; everything else becomes lines of the report.
  Status replay_operation(const ReplayFile& entry, const OperationId& id) {
    if (const std::string& level = entry.reader->level(); level != "full") {
      if (wanted(id)) lines_.skip(entry, id, "recorded at level " + level + ", without values");
      return {};
    }
    if (id.operation == kLayer) return replay_layer(entry, id);
    const OperationAdapter* adapter = find_adapter(id.operation);
    if (!adapter) {
      if (wanted(id)) lines_.skip(entry, id, "this version does not replay " + id.operation);
      return {};
    }
    ContractValues values = overrides_.contract(*entry.reader, id.step);
    auto tensors = entry.reader->read(id, values);
    if (!tensors && tensors.status().code() == Code::unsupported) {
      if (wanted(id)) lines_.skip(entry, id, tensors.status().what());
      return {};
    }
    DSAKIT_TRY(tensors);
    const Operation& operation =
        OperationData{id, values, *tensors, entry.reader->config()}.operation();
    const auto recorded_rows =
        sample_rows(std::move(*tensors), operation, {layer_ ? 0 : options_.rows, options_.seed});
    DSAKIT_TRY(recorded_rows);
    const OperationData data{id, values, *recorded_rows, entry.reader->config()};
    const auto pairs = pairs_of(data, overrides_);
    DSAKIT_TRY(pairs);
    for (auto first = pairs->begin(); first != pairs->end();) { // a reference for each scale_read
      const auto last = std::find_if(first, pairs->end(), [&](const Pair& pair) {
        return pair.scale_read != first->scale_read;
      });
      if (!first->scale_read.empty()) values["mla_scale_read"] = first->scale_read;
      DSAKIT_TRY(
          replay_under(entry, *adapter, {id, values, data.tensors, data.config}, {first, last}));
      first = last;
    }
    return {};
  }

  /// Everything about an operation under one contract. `data` is as recorded.
  Status replay_under(const ReplayFile& entry, const OperationAdapter& adapter,
                      const OperationData& data, const std::vector<Pair>& pairs) {
    const OperationId& id = data.id;
    if (layer_) chain_.take_keys(data.tensors, *layer_->kernel);
    const RecordedOperation chain_fed = chained() ? chain_.feed(data.tensors) : RecordedOperation{};
    ReferenceRun fed(adapter, data);
    ReferenceRun reference(adapter,
                           {id, data.contract, chained() ? chain_fed : data.tensors, data.config});
    const auto again = [&] {
      return layer_ ? layer_->kernel : kernels_.run_again(adapter, reference.data());
    };
    Hints hints(adapter, reference, again);
    const std::string reference_only =
        kernels_.takes(id.operation) ? "" : adapter.reference_only(reference.data());
    const Result<KernelRun> kernel = !reference_only.empty() ? unsupported(reference_only)
                                     : layer_                ? layer_->kernel
                                              : kernels_.run(adapter, reference.data());
    if (!kernel && kernel.status().code() == Code::bad_input) return kernel.status();
    if (chained() && kernel) chain_.take(data.tensors, *kernel);
    if (!wanted(id)) return {};
    OperationRun run{adapter, named(id), kernel, reference, hints, chained() ? &fed : nullptr};
    for (const Pair& pair : pairs) {
      if (!data.find_output(pair.output) &&
          is_one_of(data.operation().optional_outputs, pair.output) &&
          !(kernel && kernel->outputs.contains(pair.output)))
        continue;
      // What was recorded meets the reference of what it was fed: in fed mode.
      if (!pair.of_kernel() && chained() && reference_only.empty()) continue;
      if (pair.of_kernel() && !reference_only.empty()) {
        if (!pair.of_recorded()) lines_.skip_kernel(entry, id, pair.output, reference_only);
        continue;
      }
      DSAKIT_TRY(lines_.compare(entry, pair, run));
    }
    if (!kernel || chained()) return {};
    const auto new_line = [&] {
      ReportLine line = lines_.line_of(entry, id);
      line.reproduce =
          command(report_.environment, "replay", entry.report.file, id.operation, options_.repeat);
      return line;
    };
    return check_determinism(options_.determinism, adapter, reference.data(), *kernel, kernels_,
                             new_line, report_.lines);
  }

  Report finish() {
    for (ReplayFile& entry : entries_)
      report_.files.push_back(entry.report);
    report_.warnings = rules_.unused();
    return std::move(report_);
  }

  const ReplayOptions& options_;
  Rules& rules_;
  std::vector<ReplayFile> entries_;
  Overrides overrides_;
  Chain chain_;                     ///< of the current step
  const LayerRun* layer_ = nullptr; ///< whose operations are being judged
  double bytes_ = 0;                ///< of all operations that are run
  double done_bytes_ = 0;
  KernelRunner kernels_;
  Report report_;
  Lines lines_{options_, rules_, overrides_, report_};
};

} // namespace

Result<Report> replay(const ReplayOptions& options, Rules& rules) {
  if (!options.operation.empty() && options.operation != kLayer &&
      !find_adapter(options.operation)) {
    std::string list(kLayer);
    std::string_view last;
    for (const Operation& operation : kOperations)
      if (std::exchange(last, operation.name) != operation.name) // formats lie side by side
        list += ", " + std::string(operation.name);
    return bad_input("--operation: found '" + options.operation + "', want one of " + list);
  }
  if (options.rows != 0 && options.mode == ReplayMode::chained)
    return bad_input(
        "--rows: found it with --mode chained, want --mode fed: an operation whose rows "
        "are a sample feeds no other");
  return Replay(options, rules).run();
}

} // namespace dsakit::harness
