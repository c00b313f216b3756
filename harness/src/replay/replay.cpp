#include "dsakit/harness/replay.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "../recording/formats.hpp"
#include "attribute.hpp"
#include "chain.hpp"
#include "command.hpp"
#include "determinism.hpp"
#include "dsakit/core/operations.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "hints.hpp"
#include "judge.hpp"
#include "kernel_runner.hpp"
#include "layer_run.hpp"
#include "names.hpp"
#include "overrides.hpp"
#include "quantised.hpp"
#include "sample_rows.hpp"
#include "tie_band.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

/// A file of the run, open where it is sound.
struct Entry {
  ReportFile report;
  std::optional<RecordingReader> reader;
};

Result<std::vector<std::string>> expand(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path); // a missing file is told by the reader
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator item(path, error), end; !error && item != end;
         item.increment(error))
      if (item->path().extension() == ".h5") found.push_back(item->path().string());
    if (error) return bad_input(path + ": " + error.message());
    if (found.empty()) return bad_input(path + ": found no .h5 file in the folder");
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// Lines of the report belong to a file by its name: named twice, it is replayed once.
std::vector<std::string> each_once(std::vector<std::string> files) {
  std::set<std::string> seen;
  std::erase_if(files, [&](const std::string& file) { return !seen.insert(file).second; });
  return files;
}

class Replay {
public:
  Replay(const ReplayOptions& options, Rules& rules)
      : options_(options), rules_(rules), overrides_(options.overrides),
        kernels_(options.device, options.host, options.time_limit_s) {}

  Result<Report> run() {
    const auto files = expand(options_.paths);
    DSAKIT_TRY(files);
    report_.verb = "replay";
    report_.mode = chained() ? "chained" : "fed";
    report_.environment = capture_environment();
    const auto distinct = each_once(*files);
    open(distinct);
    if (interrupted()) return stop_at_the_first(distinct.size());
    if (!any_bad()) DSAKIT_TRY(overrides_.check_used());
    if (any_bad() && !options_.keep_going) return finish();

    const auto device = kernels_.open();
    if (!device) {
      // Files are judged before devices: a payload may still be bad.
      for (Entry& entry : entries_)
        check_payload(entry);
      return any_bad() ? Result<Report>(finish()) : Result<Report>(device.status());
    }
    report_.device = options_.device == optimized::DeviceKind::host  ? "host"
                     : options_.device == optimized::DeviceKind::hip ? "hip"
                                                                     : "cuda";
    if (options_.device == optimized::DeviceKind::host)
      report_.host_arch = optimized::name(options_.host.arch);
    report_.environment.device = *device;

    for (const Entry& entry : entries_)
      if (entry.reader)
        for (const OperationId& id : entry.reader->operations())
          if (replays(id)) bytes_ += bytes_of(*entry.reader, id);
    for (Entry& entry : entries_) {
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

  static void bad(Entry& entry, const Status& status) {
    entry.report.verdict = Verdict::error;
    entry.report.bad_input = true;
    entry.report.reason = status.what();
    entry.reader.reset();
  }

  bool any_bad() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& e) { return e.report.bad_input; });
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

  /// What an operation counts for in the progress.
  static double bytes_of(const RecordingReader& reader, const OperationId& id) {
    double bytes = 0;
    for (const Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : reader.tensors(id, side))
        bytes += static_cast<double>(element_count(info.shape)) *
                 static_cast<double>(size_of(info.dtype));
    return bytes;
  }

  void tell(const std::string& what) const {
    if (options_.progress) options_.progress(bytes_ > 0 ? done_bytes_ / bytes_ : 0, what);
  }

  void leave_out_after(const Entry& entry) {
    report_.files_left_out += &entries_.back() - &entry;
    entries_.resize(static_cast<std::size_t>(&entry - entries_.data()) + 1);
  }

  /// The report ends with what was compared of `entry`.
  Report stop_at(Entry& entry) {
    report_.partial = true;
    if (!entry.report.bad_input) summarise(entry);
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
      Entry& entry = entries_.emplace_back();
      entry.report.file = file;
      auto reader = RecordingReader::open(file);
      if (!reader) {
        bad(entry, reader.status());
      } else if (const Status damage = reader->verify(); !damage) {
        bad(entry, damage);
      } else if (const Status rules = check_rules(*reader); !rules) {
        bad(entry, {rules.code(), file + ": " + rules.what()});
      } else {
        entry.reader = std::move(*reader);
        overrides_.note(*entry.reader, options_.operation, entry.report);
      }
      if (entry.report.bad_input && !options_.keep_going) return;
    }
  }

  Status check_rules(const RecordingReader& reader) {
    for (const OperationId& id : reader.operations()) {
      const Operation* operation =
          find_recorded(id.operation, overrides_.contract(reader, id.step),
                        reader.tensors(id, Side::inputs), reader.tensors(id, Side::outputs));
      if (!operation || !wanted(id)) continue;
      auto outputs = split_names(operation->outputs);
      for (const std::string& output : outputs)
        DSAKIT_TRY(rules_.find(id.operation, output, name(Producer::Kind::kernel)));
      for (std::string& output : split_names(operation->optional_outputs))
        outputs.push_back(std::move(output));
      for (const TensorInfo& info : reader.tensors(id, Side::outputs))
        if (std::find(outputs.begin(), outputs.end(), info.output()) != outputs.end())
          for (const auto subject : {Producer::Kind::kernel, Producer::Kind::reference})
            DSAKIT_TRY(rules_.find(id.operation, info.name(), name(subject)));
    }
    return {};
  }

  void check_payload(Entry& entry) {
    if (!entry.reader) return;
    const RecordingReader& reader = *entry.reader;
    for (const OperationId& id : reader.operations()) {
      if (!find_adapter(id.operation) || !wanted(id)) continue;
      const auto tensors = reader.read(id, overrides_.contract(reader, id.step));
      if (!tensors && tensors.status().code() == Code::bad_input)
        return bad(entry, tensors.status());
    }
  }

  /// False where an interrupt ended it.
  bool replay_file(Entry& entry) {
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
        bad(entry, {status.code(), status.what().starts_with(entry.report.file)
                                       ? status.what()
                                       : entry.report.file + ": " + status.what()});
        return true;
      }
      done_bytes_ += bytes_of(*entry.reader, id);
    }
    summarise(entry);
    return true;
  }

  void summarise(Entry& entry) const {
    Report of_file;
    for (const ReportLine& line : report_.lines)
      if (line.file == entry.report.file) of_file.lines.push_back(line);
    entry.report.verdict = of_file.verdict();
    if (entry.report.verdict == Verdict::skipped)
      entry.report.reason = report_.partial ? "interrupted before anything of it was compared"
                            : options_.operation.empty()
                                ? "holds no operation that this version replays"
                                : "holds no operation " + options_.operation;
  }

  ReportLine line_of(const Entry& entry, const OperationId& id) const {
    ReportLine line;
    line.file = entry.report.file;
    line.step = id.step;
    line.operation = id.operation;
    return line;
  }

  void skip(const Entry& entry, const OperationId& id, const std::string& reason) {
    ReportLine line = line_of(entry, id);
    line.verdict = Verdict::skipped;
    line.reason = reason;
    report_.lines.push_back(std::move(line));
  }

  /// The output that no kernel is meant to give.
  void skip_kernel(const Entry& entry, const OperationId& id, const std::string& output,
                   const std::string& why) {
    skip(entry, id, "reference only: " + why);
    ReportLine& line = report_.lines.back();
    line.tensor = output;
    line.subject = name(Producer::Kind::kernel);
    line.against = name(Producer::Kind::reference);
  }

  /// A layer that ran as a whole.
  struct LayerRun {
    OperationId id;
    Result<KernelRun> kernel;
  };

  /// The operations of the step as one run on the device. Each is held to what the reference makes
  /// of what that run fed it, and the recorded outputs within the measured difference of the
  /// inputs.
  Status replay_layer(const Entry& entry, const OperationId& id) {
    if (!wanted(id)) return {};
    ContractValues values = overrides_.contract(*entry.reader, id.step);
    for (const OperationId& part : entry.reader->operations())
      if (part.step == id.step && outputs_hold(find_operation(part.operation), "mla_scale_read"))
        for (const TensorInfo& output : entry.reader->tensors(part, Side::outputs))
          values["mla_scale_read"] =
              overrides_.attribute("mla_scale_read", output.name(), output.attributes);
    const auto layer = RecordedLayer::read(*entry.reader, id.step, values);
    if (!layer && layer.status().code() == Code::unsupported) {
      skip(entry, id, layer.status().what());
      return {};
    }
    DSAKIT_TRY(layer);
    const RecordedOperation none;
    const LayerRun run{id, kernels_.run(*layer, {id, values, none})};
    if (!run.kernel && run.kernel.status().code() == Code::bad_input) return run.kernel.status();
    if (!run.kernel) {
      ReportLine line = line_of(entry, id);
      line.verdict = verdict_of(run.kernel.status());
      line.reason = run.kernel.status().what();
      line.reproduce =
          command(report_.environment, "replay", entry.report.file, id.operation, options_.repeat);
      report_.lines.push_back(std::move(line));
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
        skip(entry, id,
             part.operation + " is recorded of another chunk: " + other->name() + ": found " +
                 to_string(other->shape) + ", the step as a whole has " +
                 to_string(run.kernel->outputs.at(other->output()).shape));
      else
        status = replay_operation(entry, part);
    }
    layer_ = nullptr;
    chain_ = std::move(before);
    return status;
  }

  /// bad_input is the file's fault; everything else becomes lines of the report.
  Status replay_operation(const Entry& entry, const OperationId& id) {
    if (id.operation == kLayer) return replay_layer(entry, id);
    const OperationAdapter* adapter = find_adapter(id.operation);
    if (!adapter) {
      if (wanted(id)) skip(entry, id, "this version does not replay " + id.operation);
      return {};
    }
    ContractValues values = overrides_.contract(*entry.reader, id.step);
    auto tensors = entry.reader->read(id, values);
    if (!tensors && tensors.status().code() == Code::unsupported) {
      if (wanted(id)) skip(entry, id, tensors.status().what());
      return {};
    }
    DSAKIT_TRY(tensors);
    const Operation& operation =
        OperationData{id, values, *tensors, entry.reader->config()}.operation();
    const auto recorded_rows =
        sample_rows(std::move(*tensors), operation, {layer_ ? 0 : options_.rows, options_.seed});
    DSAKIT_TRY(recorded_rows);
    const RecordedOperation& recorded = *recorded_rows;
    // A producer that reads scales another way has another right answer: a reference for each.
    std::set<std::string> reads;
    for (const auto& [name, output] : recorded.outputs)
      reads.insert(scale_read(id, name, output));
    for (const std::string& read : reads) {
      if (!read.empty()) values["mla_scale_read"] = read;
      DSAKIT_TRY(replay_under(entry, *adapter, {id, values, recorded, entry.reader->config()}));
    }
    return {};
  }

  /// The mla_scale_read of a recorded output; empty where its operation has none.
  std::string scale_read(const OperationId& id, const std::string& name,
                         const RecordedTensor& recorded) const {
    return outputs_hold(find_operation(id.operation), "mla_scale_read") &&
                   recorded.attributes.contains("mla_scale_read")
               ? overrides_.attribute("mla_scale_read", name, recorded.attributes)
               : "";
  }

  /// A kernel's run, and the reference fed the same.
  struct Run {
    const OperationAdapter& adapter;
    const Result<KernelRun>& kernel;
    ReferenceRun& reference;
    Hints& hints;
    ReferenceRun* fed; ///< the reference of the recorded inputs, where the kernel had others
  };

  /// Everything about an operation under one contract. `data` is as recorded.
  Status replay_under(const Entry& entry, const OperationAdapter& adapter,
                      const OperationData& data) {
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
    const std::string reference_only = adapter.reference_only(reference.data());
    const Result<KernelRun> kernel = !reference_only.empty() ? unsupported(reference_only)
                                     : layer_                ? layer_->kernel
                                              : kernels_.run(adapter, reference.data());
    if (!kernel && kernel.status().code() == Code::bad_input) return kernel.status();
    if (chained() && kernel) chain_.take(data.tensors, *kernel);
    if (!wanted(id)) return {};
    const Run run{adapter, kernel, reference, hints, chained() ? &fed : nullptr};

    std::vector<std::string> outputs = split_names(data.operation().outputs);
    for (std::string& output : split_names(data.operation().optional_outputs))
      if (data.find_output(output) || (kernel && kernel->outputs.contains(output)))
        outputs.push_back(std::move(output));
    for (const std::string& output : outputs) {
      const auto expected = reference.expected(output);
      if (!expected && expected.status().code() == Code::bad_input) return expected.status();
      Producer ours{Producer::Kind::kernel, nullptr, Accumulation::fp32};
      if (kernel) {
        ours.tensor = &kernel->outputs.at(output);
        const auto scales = kernel->outputs.find(scales_output(output));
        if (scales != kernel->outputs.end()) ours.scales = &scales->second;
      }
      const Producer oracle{Producer::Kind::reference};

      if (reference_only.empty())
        DSAKIT_TRY(compare(entry, output, output, ours, oracle, run));
      else
        skip_kernel(entry, id, output, reference_only);
      ours.right = report_.lines.back().verdict == Verdict::pass;
      for (const auto& [name, recorded] : reference.data().tensors.outputs) {
        if (output_of(name, recorded.attributes) != output) continue;
        if (const std::string read = scale_read(id, name, recorded);
            !read.empty() && read != reference.data().contract.at("mla_scale_read"))
          continue;
        const auto accumulation =
            overrides_.accumulation(find_operation(id.operation), name, recorded.attributes);
        DSAKIT_TRY(accumulation);
        Producer theirs{Producer::Kind::recorded, &recorded.tensor, *accumulation};
        theirs.scales = find_scales(reference.data().tensors, name, output);
        if (!chained() || !reference_only.empty())
          DSAKIT_TRY(compare(entry, output, name, oracle, theirs, run));
        if (reference_only.empty()) DSAKIT_TRY(compare(entry, output, name, ours, theirs, run));
      }
    }
    if (!kernel || chained()) return {};
    const auto new_line = [&] {
      ReportLine line = line_of(entry, id);
      line.reproduce =
          command(report_.environment, "replay", entry.report.file, id.operation, options_.repeat);
      return line;
    };
    return check_determinism(options_.determinism, adapter, reference.data(), *kernel, kernels_,
                             new_line, report_.lines);
  }

  Status compare(const Entry& entry, const std::string& output, const std::string& tensor,
                 const Producer& got, const Producer& want, const Run& run) {
    const auto& [adapter, kernel, reference, hints, fed] = run;
    const OperationId& id = named(reference.data().id);
    const auto rule = rules_.find(id.operation, tensor, name(got.kind));
    DSAKIT_TRY(rule);
    Case c{output, (*rule)->gate, got, want, (*rule)->limits};
    std::vector<double> band;
    if ((*rule)->band && want.kind == Producer::Kind::recorded) {
      auto of_logits = tie_band(*entry.reader, (fed ? *fed : reference).data(), *(*rule)->band,
                                {options_.rows, options_.seed});
      DSAKIT_TRY(of_logits);
      band = std::move(*of_logits);
      c.want.band = &band;
    }

    ReportLine line = line_of(entry, id);
    line.tensor = tensor;
    line.subject = name(c.got.kind);
    line.against = name(c.want.kind);
    line.reproduce =
        command(report_.environment, "replay", entry.report.file, id.operation, options_.repeat);
    const bool of_kernel = c.got.kind == Producer::Kind::kernel;
    if (of_kernel && kernel) {
      line.kernel = kernel->kernel;
      line.configuration = kernel->configuration;
      line.workgroups = kernel->workgroups;
      line.other_kernels = kernel->other_kernels;
      line.time_us = kernel->time_us;
    }
    const auto expected = reference.expected(output);
    if (of_kernel && !kernel) {
      line.verdict = verdict_of(kernel.status());
      line.reason = kernel.status().what();
    } else if (!expected) {
      line.verdict = of_kernel ? Verdict::held : verdict_of(expected.status());
      line.reason = expected.status().what();
    } else {
      const auto judged =
          judge(c, reference, want.kind == Producer::Kind::recorded ? fed : nullptr);
      DSAKIT_TRY(judged);
      fill(line, c, *judged);
      line.why = (*rule)->why;
      if (options_.attribute) {
        auto attribution = attribute(adapter, c, *judged, reference);
        DSAKIT_TRY(attribution);
        line.attribution = std::move(*attribution);
      }
      if (line.verdict == Verdict::fail) {
        line.tightest_gate = tightest_gate(c, judged->comparison, reference);
        if (!judged->comparison.passes()) line.hint = hints.find(c, *judged);
      }
      if (of_kernel && c.want.kind == Producer::Kind::reference && kernel->stray &&
          kernel->stray->output == output) {
        line.verdict = Verdict::fail;
        line.hint = told(*kernel->stray) + (line.hint.empty() ? "" : "; " + line.hint);
      }
    }
    rules_.waivers.apply(line);
    report_.lines.push_back(std::move(line));
    return {};
  }

  static std::string told(const StrayWrite& stray) {
    if (!stray.why.empty()) return "at " + to_string(stray.at) + ": " + stray.why;
    return "the kernel wrote " +
           (stray.at.empty() ? "beside the tensor"
                             : "at " + to_string(stray.at) + ", beyond the length of its row");
  }

  static Verdict verdict_of(const Status& status) {
    return status.code() == Code::unsupported ? Verdict::unsupported : Verdict::error;
  }

  Report finish() {
    for (Entry& entry : entries_)
      report_.files.push_back(entry.report);
    report_.warnings = rules_.unused();
    return std::move(report_);
  }

  const ReplayOptions& options_;
  Rules& rules_;
  std::vector<Entry> entries_;
  Overrides overrides_;
  Chain chain_;                     ///< of the current step
  const LayerRun* layer_ = nullptr; ///< whose operations are being judged
  double bytes_ = 0;                ///< of all operations that are run
  double done_bytes_ = 0;
  KernelRunner kernels_;
  Report report_;
};

} // namespace

Result<Report> replay(const ReplayOptions& options, Rules& rules) {
  if (!options.operation.empty() && options.operation != kLayer &&
      !find_adapter(options.operation)) {
    std::string list(kLayer);
    for (const Operation& operation : kOperations)
      list += ", " + std::string(operation.name);
    return bad_input("--operation: found '" + options.operation + "', want one of " + list);
  }
  return Replay(options, rules).run();
}

} // namespace dsakit::harness
