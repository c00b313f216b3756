// Benchmarks: make a problem, gate it, time it, drop it.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "../golden/manifest.hpp"
#include "../replay/child_process.hpp"
#include "../replay/judge.hpp"
#include "../replay/kernel_runner.hpp"
#include "../replay/pairs.hpp"
#include "../replay/sample_rows.hpp"
#include "dsakit/harness/exit_codes.hpp"
#include "measure.hpp"
#include "problem.hpp"
#include "report_json.hpp"
#include "resources.hpp"
#include "some_rows.hpp"
#include "work.hpp"

namespace dsakit::harness {
namespace {

constexpr int kReferenceSamples = 3;

class Bench {
public:
  Bench(const BenchOptions& options, Rules& rules, const BenchSampler& sampler)
      : options_(options), rules_(rules), sampler_(sampler),
        kernels_(options.device, options.host, options.time_limit_s, options.kernel_library) {}

  Result<BenchReport> run(const std::vector<BenchRequest>& requests) {
    DSAKIT_TRY(kernels_.look_into_library());
    DSAKIT_TRY(check_library_is_used(requests));
    for (const BenchRequest& request : requests)
      if (!options_.configuration.empty() && !kernels_.takes(request.operation))
        if (const Status status =
                optimized::check_configuration(request.operation, options_.configuration);
            !status)
          return bad_input("--configuration: " + status.what());
    for (const BenchRequest& request : requests) // before hours are spent on those before it
      if (request.recording.empty()) DSAKIT_TRY(check_problem(request, options_));
    report_.environment = capture_environment();
    const auto device = kernels_.open();
    DSAKIT_TRY(device);
    report_.environment.device = *device;
    report_.device = kind_name(options_.device);
    if (on_host()) report_.host_arch = optimized::name(options_.host.arch);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (interrupted()) {
        report_.partial = true;
        break;
      }
      if (options_.progress)
        options_.progress(static_cast<double>(i) / static_cast<double>(requests.size()),
                          requests[i].operation);
      DSAKIT_TRY(bench_one(requests[i]));
    }
    return std::move(report_);
  }

private:
  bool on_host() const { return options_.device == optimized::DeviceKind::host; }
  bool interrupted() const { return options_.interrupted && *options_.interrupted; }
  int samples() const {
    return options_.samples > 0 ? options_.samples : on_host() ? kHostSamples : kGpuSamples;
  }

  Status check_library_is_used(const std::vector<BenchRequest>& requests) const {
    if (options_.kernel_library.empty() ||
        std::any_of(requests.begin(), requests.end(),
                    [&](const BenchRequest& request) { return kernels_.takes(request.operation); }))
      return {};
    return unsupported(options_.kernel_library +
                       ": found kernels for none of the operations to time, only for " +
                       kernels_.served());
  }

  /// "libmine.so", where its kernel is timed.
  std::string library_of(const std::string& operation) const {
    return kernels_.takes(operation)
               ? std::filesystem::path(options_.kernel_library).filename().string()
               : "";
  }

  Status bench_one(const BenchRequest& request) {
    auto problem = make_problem(request, options_);
    if (!problem && problem.status().code() == Code::bad_input) return problem.status();
    BenchRow row;
    row.operation = request.operation;
    row.library = library_of(request.operation);
    row.problem = problem ? problem->dims : dims_of(request);
    if (problem) problem->configuration = options_.configuration;
    for (const auto& [key, value] : options_.configuration)
      row.configuration[key] = value == 0 ? "default" : std::to_string(value);
    row.reproduce = reproduce(request);
    if (const Status status = problem ? gate_and_time(*problem, row) : problem.status(); !status) {
      if (status.code() == Code::bad_input) return status;
      if (status.code() == Code::interrupted || interrupted()) {
        report_.partial = true;
        return {};
      }
      row.verdict = status.code() == Code::unsupported ? Verdict::unsupported : Verdict::error;
      row.reason = status.what();
    }
    report_.rows.push_back(std::move(row));
    return {};
  }

  std::string reproduce(const BenchRequest& request) const {
    std::string text = "dsakit bench ";
    if (!request.recording.empty()) text += shell_word(request.recording) + " ";
    text += "--op " + request.operation;
    std::string shape;
    for (const auto& [name, value] : request.shape)
      shape += (shape.empty() ? "" : ",") + name + "=" + value;
    if (!shape.empty()) text += " --shape " + shape;
    if (request.tile > 0) text += " --tile rows=" + std::to_string(request.tile);
    return options_.repeat.empty() ? text : text + " " + options_.repeat;
  }

  Status gate_and_time(const BenchProblem& problem, BenchRow& row) {
    row.rows = independent_rows(problem.tensors, problem.data().operation());
    row.work = work_of(problem);
    row.limit = limit_of(problem, row.work, report_.environment.device);
    const OperationAdapter& adapter = *find_adapter(problem.id.operation);
    if (const std::string why = adapter.reference_only(problem.data());
        !why.empty() && row.library.empty())
      return unsupported(why);
    if (problem.tensors.outputs.empty() || row.work.bytes == 0)
      return bad_input(problem.id.operation + ": found no rows, want at least one");
    DSAKIT_TRY(gate(problem, adapter, row));
    if (row.verdict != Verdict::pass) return {};
    const auto measured = time(problem);
    DSAKIT_TRY(measured);
    row.kernel = measured->kernel;
    row.graph = measured->graph;
    row.hot = measured->hot;
    row.cold = measured->cold;
    row.resources = kernel_resources(arch_, measured->symbols);
    const auto hash = row.library.empty() ? code_hash(options_.device, arch_, measured->symbols)
                                          : sha256_of(options_.kernel_library);
    DSAKIT_TRY(hash);
    row.code_hash = *hash;
    return {};
  }

  /// Holds the kernel to the reference, as replay does, on all rows or on as many as the reference
  /// does in seconds. Outputs that the kernel gives and nobody recorded count, too.
  Status gate(const BenchProblem& problem, const OperationAdapter& adapter, BenchRow& row) {
    const Operation& operation = problem.data().operation();
    RecordedOperation kept;
    RowNumbers rows;
    row.gate = "whole";
    if (row.rows > 0) {
      rows = gate_rows(row.rows, row.work, options_.seed);
      row.gate = std::to_string(rows.size()) + " of " + std::to_string(row.rows) + " rows";
      auto some = keep_rows(problem.tensors, operation, rows);
      DSAKIT_TRY(some);
      kept = std::move(*some);
    }
    const auto launched = launch(problem, adapter, rows);
    DSAKIT_TRY(launched);
    row.kernel = launched->kernel;
    row.ran = launched->configuration;
    row.problem_class = launched->problem_class;
    ReferenceRun reference(adapter,
                           {problem.id, problem.contract,
                            rows.empty() ? problem.tensors : std::as_const(kept), problem.config});
    if (problem.recorded) DSAKIT_TRY(time_reference(adapter, reference.data(), row, rows));
    for (const auto& [output, tensor] : launched->outputs) {
      DSAKIT_TRY(judge_output(*launched, output, reference, row));
      if (row.verdict != Verdict::pass) return {};
    }
    return {};
  }

  /// The kernel's outputs, or these rows of them. On a GPU in a process that ends with it: none is
  /// there while times are taken.
  Result<KernelRun> launch(const BenchProblem& problem, const OperationAdapter& adapter,
                           const RowNumbers& rows) const {
    const Operation& operation = problem.data().operation();
    if (!kernels_.takes(problem.id.operation))
      return kernels_.run(SomeRows(adapter, operation, rows), problem.data());
    return kernels_.run_library(problem.data(),
                                [&](KernelRun& run) { cut_to_rows(run, operation, rows); });
  }

  Status judge_output(const KernelRun& run, const std::string& output, ReferenceRun& reference,
                      BenchRow& row) {
    const std::string& operation = reference.data().id.operation;
    const auto rule = rules_.find(operation, output, name(Producer::Kind::kernel));
    DSAKIT_TRY(rule);
    const Case c{output,
                 (*rule)->gate,
                 kernel_side(run, output),
                 {Producer::Kind::reference},
                 (*rule)->limits};
    const auto judged = judge(c, reference);
    DSAKIT_TRY(judged);
    ReportLine line;
    fill(line, c, *judged);
    if (run.stray && run.stray->output == output) {
      line.verdict = Verdict::fail;
      line.reason = "the kernel wrote beside its output";
    }
    if (line.verdict == Verdict::pass) return {};
    row.verdict = Verdict::fail;
    row.reason = output + ": " +
                 (line.reason.empty()
                      ? std::to_string(line.mismatches) + " of " + std::to_string(line.elements) +
                            " elements are outside gate " + line.gate
                      : line.reason);
    return {};
  }

  Status time_reference(const OperationAdapter& adapter, const OperationData& data, BenchRow& row,
                        const RowNumbers& rows) const {
    std::vector<double> times;
    for (int i = 0; i < kReferenceSamples; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      DSAKIT_TRY(adapter.reference(data));
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      // Of all rows: they take equally long, more or less.
      const double part =
          rows.empty() ? 1 : static_cast<double>(row.rows) / static_cast<double>(rows.size());
      times.push_back(time.count() * part);
    }
    row.reference = timing_of(std::move(times));
    return {};
  }

  Result<Measurement> time(const BenchProblem& problem) {
    const bool foreign = kernels_.takes(problem.id.operation);
    if (on_host() && !foreign) {
      arch_ = options_.host.arch;
      const auto device = optimized::open_device(options_.device, options_.host);
      DSAKIT_TRY(device);
      return measure(problem, **device, samples(), options_.copies, sampler_);
    }
    const auto body = [&](const KernelLibrary* library,
                          optimized::Device& device) -> Result<std::string> {
      const auto measured = measure(problem, device, samples(), options_.copies, sampler_, library);
      DSAKIT_TRY(measured);
      return std::string(1, static_cast<char>(device.arch())) + serialise(*measured);
    };
    const auto text =
        foreign ? kernels_.in_library([&](const KernelLibrary& library, optimized::Device& device) {
          return body(&library, device);
        })
                : run_in_child(
                      [&]() -> Result<std::string> {
                        const auto device = optimized::open_device(options_.device, options_.host);
                        DSAKIT_TRY(device);
                        return body(nullptr, **device);
                      },
                      options_.time_limit_s);
    DSAKIT_TRY(text);
    arch_ = static_cast<optimized::Arch>((*text)[0]);
    return parse_measurement(text->substr(1));
  }

  const BenchOptions& options_;
  Rules& rules_;
  const BenchSampler& sampler_;
  KernelRunner kernels_;
  optimized::Arch arch_ = optimized::Arch::gfx942; ///< of what was timed last
  BenchReport report_;
};

} // namespace

std::optional<double> BenchRow::of_limit() const {
  if (!limit || !hot || hot->median_us <= 0) return std::nullopt;
  return limit->time_us / hot->median_us;
}

int BenchReport::exit_code() const {
  if (partial) return kExitInterrupted;
  const auto any = [&](Verdict verdict) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const BenchRow& row) { return row.verdict == verdict; });
  };
  if (any(Verdict::error) || any(Verdict::unsupported)) return kExitKernelFailed;
  if (any(Verdict::fail)) return kExitMismatch;
  return rows.empty() ? kExitNothingRan : kExitPass;
}

Result<BenchReport> bench(const BenchOptions& options, const std::vector<BenchRequest>& requests,
                          Rules& rules, const BenchSampler& sampler) {
  return Bench(options, rules, sampler).run(requests);
}

} // namespace dsakit::harness
