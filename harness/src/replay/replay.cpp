#include "dsakit/harness/replay.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "dsakit/core/operations.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "hints.hpp"
#include "judge.hpp"
#include "names.hpp"

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
  Replay(const ReplayOptions& options, Rules& rules) : options_(options), rules_(rules) {}

  Result<Report> run() {
    const auto files = expand(options_.paths);
    DSAKIT_TRY(files);
    report_.verb = "replay";
    report_.environment = capture_environment();
    open(each_once(*files));
    if (interrupted()) return interruption();
    DSAKIT_TRY(check_overrides_used());
    if (any_bad() && !options_.keep_going) return finish();

    auto device = optimized::open_device(options_.device, options_.host);
    if (!device) {
      // Files are judged before devices: a payload may still be bad.
      for (Entry& entry : entries_)
        check_payload(entry);
      return any_bad() ? Result<Report>(finish()) : Result<Report>(device.status());
    }
    device_ = std::move(*device);
    report_.device = options_.device == optimized::DeviceKind::host  ? "host"
                     : options_.device == optimized::DeviceKind::hip ? "hip"
                                                                     : "cuda";
    if (options_.device == optimized::DeviceKind::host)
      report_.host_arch = optimized::name(options_.host.arch);
    report_.environment.device = device_->description();

    for (Entry& entry : entries_) {
      if (!entry.reader) continue;
      DSAKIT_TRY(replay_file(entry));
      if (entry.report.verdict != Verdict::pass && entry.report.verdict != Verdict::skipped &&
          !options_.keep_going) {
        report_.files_left_out = &entries_.back() - &entry;
        entries_.resize(static_cast<std::size_t>(&entry - entries_.data()) + 1);
        break;
      }
    }
    return finish();
  }

private:
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
  static Status interruption() { return {Code::interrupted, "interrupted"}; }

  bool wanted(const OperationId& id) const {
    return options_.operation.empty() || id.operation == options_.operation;
  }

  /// Everything about the files that needs no device: structure, checksums, rules.
  void open(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      if (interrupted()) return;
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
        note_contract(entry);
      }
      if (entry.report.bad_input && !options_.keep_going) return;
    }
  }

  Status check_rules(const RecordingReader& reader) {
    for (const OperationId& id : reader.operations()) {
      const Operation* operation = find_operation(id.operation);
      if (!operation || !wanted(id)) continue;
      for (const std::string& output : split_names(operation->outputs))
        DSAKIT_TRY(rules_.find(id.operation, output));
      for (const TensorInfo& info : reader.tensors(id, Side::outputs))
        DSAKIT_TRY(rules_.find(id.operation, info.name()));
    }
    return {};
  }

  /// The contract as used, and what an override replaced.
  void note_contract(Entry& entry) {
    ContractValues& used = entry.report.contract;
    ContractValues& recorded = entry.report.contract_recorded;
    const RecordingReader& reader = *entry.reader;
    used = reader.contract();
    for (const OperationId& id : reader.operations()) {
      for (const auto& [key, value] : reader.contract(id.step))
        if (!used.contains(key) || used.at(key) != value)
          used["steps/" + std::to_string(id.step) + "/" + key] = value;
      if (!wanted(id)) continue;
      for (const TensorInfo& info : reader.tensors(id, Side::outputs)) {
        const auto accumulation = info.attributes.find("accumulation");
        if (accumulation == info.attributes.end() || !find_operation(id.operation)) continue;
        const std::string key = "accumulation:" + info.name();
        used[key] = accumulation->second;
        for (const ContractOverride& o : options_.overrides)
          if (applies(o, info.name(), info.output())) {
            recorded[key] = accumulation->second;
            used[key] = o.value;
            used_overrides_.insert(&o);
          }
      }
    }
    for (const ContractOverride& o : options_.overrides)
      for (auto& [key, value] : used)
        if (o.key != "accumulation" && (key == o.key || key.ends_with("/" + o.key))) {
          if (value != o.value) recorded[key] = value;
          value = o.value;
          used_overrides_.insert(&o);
        }
  }

  static bool applies(const ContractOverride& o, const std::string& tensor,
                      const std::string& output) {
    return o.key == "accumulation" &&
           (o.tensor.empty() || o.tensor == tensor || o.tensor == output);
  }

  Status check_overrides_used() const {
    if (any_bad()) return {};
    for (const ContractOverride& o : options_.overrides)
      if (!used_overrides_.contains(&o))
        return bad_input("--contract " + o.key + (o.tensor.empty() ? "" : ":" + o.tensor) + "=" +
                         o.value + ": no file has such a key or tensor");
    return {};
  }

  ContractValues contract(const RecordingReader& reader, std::int64_t step) const {
    ContractValues values = reader.contract(step);
    for (const ContractOverride& o : options_.overrides)
      if (values.contains(o.key)) values[o.key] = o.value;
    return values;
  }

  void check_payload(Entry& entry) {
    if (!entry.reader) return;
    const RecordingReader& reader = *entry.reader;
    for (const OperationId& id : reader.operations()) {
      if (!find_adapter(id.operation) || !wanted(id)) continue;
      const auto tensors = reader.read(id, contract(reader, id.step));
      if (!tensors && tensors.status().code() == Code::bad_input)
        return bad(entry, tensors.status());
    }
  }

  Status replay_file(Entry& entry) {
    for (const OperationId& id : entry.reader->operations()) {
      if (interrupted()) return interruption();
      if (!wanted(id)) continue;
      if (const Status status = replay_operation(entry, id); !status) {
        // What the other operations said stays in the report.
        bad(entry, {status.code(), status.what().starts_with(entry.report.file)
                                       ? status.what()
                                       : entry.report.file + ": " + status.what()});
        return {};
      }
    }
    summarise(entry);
    return {};
  }

  void summarise(Entry& entry) const {
    Report of_file;
    for (const ReportLine& line : report_.lines)
      if (line.file == entry.report.file) of_file.lines.push_back(line);
    entry.report.verdict = of_file.verdict();
    if (entry.report.verdict == Verdict::skipped)
      entry.report.reason = options_.operation.empty()
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

  /// bad_input is the file's fault; everything else becomes lines of the report.
  Status replay_operation(const Entry& entry, const OperationId& id) {
    const OperationAdapter* adapter = find_adapter(id.operation);
    if (!adapter) {
      skip(entry, id, "this version does not replay " + id.operation);
      return {};
    }
    ContractValues values = contract(*entry.reader, id.step);
    const auto tensors = entry.reader->read(id, values);
    if (!tensors && tensors.status().code() == Code::unsupported) {
      skip(entry, id, tensors.status().what());
      return {};
    }
    DSAKIT_TRY(tensors);
    ReferenceRun reference(*adapter, {id, std::move(values), *tensors});
    Hints hints(*adapter, reference);
    const auto kernel = adapter->run(reference.data(), *device_);
    if (!kernel && kernel.status().code() == Code::bad_input) return kernel.status();

    for (const std::string& output : split_names(find_operation(id.operation)->outputs)) {
      const auto expected = reference.expected(output);
      if (!expected && expected.status().code() == Code::bad_input) return expected.status();
      Producer ours{Producer::Kind::kernel, nullptr, Accumulation::fp32};
      if (kernel) ours.tensor = &kernel->outputs.at(output);
      const Producer oracle{Producer::Kind::reference};

      DSAKIT_TRY(compare(entry, output, output, ours, oracle, kernel, reference, hints));
      for (const auto& [name, recorded] : tensors->outputs) {
        if (output_of(name, recorded.attributes) != output) continue;
        Producer theirs{Producer::Kind::recorded, &recorded.tensor};
        DSAKIT_TRY(set_accumulation(entry, name, theirs));
        DSAKIT_TRY(compare(entry, output, name, oracle, theirs, kernel, reference, hints));
        DSAKIT_TRY(compare(entry, output, name, ours, theirs, kernel, reference, hints));
      }
    }
    return {};
  }

  static Status set_accumulation(const Entry& entry, const std::string& tensor,
                                 Producer& recorded) {
    const auto found = entry.report.contract.find("accumulation:" + tensor);
    if (found == entry.report.contract.end()) return {};
    const auto accumulation = parse_accumulation(found->second);
    DSAKIT_TRY(accumulation);
    recorded.accumulation = *accumulation;
    return {};
  }

  Status compare(const Entry& entry, const std::string& output, const std::string& tensor,
                 const Producer& got, const Producer& want, const Result<KernelRun>& kernel,
                 ReferenceRun& reference, Hints& hints) {
    const OperationId& id = reference.data().id;
    const auto rule = rules_.find(id.operation, tensor);
    DSAKIT_TRY(rule);
    const Case c{output, (*rule)->gate, got, want};

    ReportLine line = line_of(entry, id);
    line.tensor = tensor;
    line.subject = name(c.got.kind);
    line.against = name(c.want.kind);
    line.reproduce = reproduce(entry, id);
    const bool of_kernel = c.got.kind == Producer::Kind::kernel;
    if (of_kernel && kernel) {
      line.kernel = kernel->kernel;
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
      const auto judged = judge(c, reference);
      DSAKIT_TRY(judged);
      fill(line, c, *judged);
      line.why = (*rule)->why;
      if (line.verdict == Verdict::fail) {
        line.tightest_gate = tightest_gate(c, judged->comparison, reference);
        line.hint = hints.find(c, *judged);
      }
      if (of_kernel && c.want.kind == Producer::Kind::reference && kernel->stray &&
          kernel->stray->output == output) {
        line.verdict = Verdict::fail;
        line.hint = "the kernel wrote " +
                    (kernel->stray->at.empty() ? "beside the tensor"
                                               : "at " + to_string(kernel->stray->at) +
                                                     ", beyond the length of its row") +
                    (line.hint.empty() ? "" : "; " + line.hint);
      }
    }
    report_.lines.push_back(std::move(line));
    return {};
  }

  std::string reproduce(const Entry& entry, const OperationId& id) const {
    std::string command;
    const auto& variables = report_.environment.variables;
    if (const auto forced = variables.find("DSAKIT_FORCE_KERNEL"); forced != variables.end())
      command = forced->first + "=" + shell_word(forced->second) + " ";
    command += "dsakit replay " + shell_word(entry.report.file) + " --operation " + id.operation;
    return options_.repeat.empty() ? command : command + " " + options_.repeat;
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
  std::set<const ContractOverride*> used_overrides_;
  std::unique_ptr<optimized::Device> device_;
  Report report_;
};

} // namespace

Result<ContractOverride> parse_override(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos)
    return bad_input("--contract: found '" + text + "', want key[:tensor]=value");
  std::string key = text.substr(0, equals);
  std::string tensor;
  if (const auto colon = key.find(':'); colon != std::string::npos) {
    tensor = key.substr(colon + 1);
    key.resize(colon);
  }
  ContractOverride result{key, tensor, text.substr(equals + 1)};
  if (key == "accumulation") {
    DSAKIT_TRY(parse_accumulation(result.value));
    return result;
  }
  std::set<std::string> known;
  for (const Operation& operation : kOperations)
    for (std::string& name : split_names(operation.contract))
      known.insert(std::move(name));
  if (!known.contains(key)) {
    std::string list = "accumulation";
    for (const std::string& name : known)
      list += ", " + name;
    return bad_input("--contract: found key '" + key + "', want one of " + list);
  }
  if (!tensor.empty())
    return bad_input("--contract " + key + ":" + tensor + ": only accumulation is per tensor");
  return result;
}

Result<Report> replay(const ReplayOptions& options, Rules& rules) {
  if (!options.operation.empty() && !find_adapter(options.operation)) {
    std::string list;
    for (const Operation& operation : kOperations)
      list += (list.empty() ? "" : ", ") + std::string(operation.name);
    return bad_input("--operation: found '" + options.operation + "', want one of " + list);
  }
  return Replay(options, rules).run();
}

} // namespace dsakit::harness
