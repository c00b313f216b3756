#include "run_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "complain.hpp"
#include "dsakit/harness/output.hpp"
#include "exit_codes.hpp"

namespace {

using dsakit::Status;
using namespace dsakit::harness;

std::string contents_of(const Report& report, const ReportOptions& options, bool colour) {
  if (options.format == "json") return to_json(report);
  if (options.format == "junit") return to_junit(report);
  if (options.format == "md") return to_markdown(report);
  return to_text(report, {.colour = colour, .verbose = options.verbose});
}

Status print(const Report& report, const ReportOptions& options) {
  const bool to_terminal = options.output.empty() && isatty(STDOUT_FILENO);
  return print_report(contents_of(report, options, to_terminal), options);
}

} // namespace

Status print_report(const std::string& contents, const ReportOptions& options) {
  if (!options.output.empty()) return write_report(options.output, contents);
  if (std::fwrite(contents.data(), 1, contents.size(), stdout) != contents.size() ||
      std::fflush(stdout) != 0)
    return dsakit::bad_input(std::string("standard output: cannot write the report: ") +
                             std::strerror(errno));
  return {};
}

int exit_code_of(const Report& report) {
  const auto any = [](const auto& entries, Verdict verdict) {
    return std::any_of(entries.begin(), entries.end(),
                       [&](const auto& entry) { return entry.verdict == verdict; });
  };
  if (report.partial) return kExitInterrupted;
  // A file is in error for what it holds; a line, for what a kernel did.
  if (std::any_of(report.files.begin(), report.files.end(),
                  [](const ReportFile& f) { return f.bad_input; }))
    return kExitBadInput;
  if (any(report.lines, Verdict::error) || any(report.lines, Verdict::unsupported))
    return kExitKernelFailed;
  if (any(report.lines, Verdict::fail)) return kExitMismatch;
  return any(report.lines, Verdict::pass) || any(report.lines, Verdict::waived) ? kExitPass
                                                                                : kExitNothingRan;
}

void ReportOptions::add_to(CLI::App& verb) {
  verb.add_option("--format", format,
                  "text for a person, json for a program, junit for CI, md for a comment")
      ->check(CLI::IsMember({"text", "json", "junit", "md"}))
      ->capture_default_str();
  verb.add_option("-o,--output", output, "write the report to FILE, whole or not at all")
      ->type_name("FILE");
  rules.add_to(verb);
  verb.add_option("--threads", threads,
                  "CPU threads at most; 0: one per core. Results do not "
                  "depend on it")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  verb.add_flag("-v,--verbose", verbose,
                "a table for each of several files, all lines of a failing one, samples, and why a "
                "kernel was not taken");
}

dsakit::Result<Rules> prepare(const ReportOptions& options,
                              const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs)
    DSAKIT_TRY(check_not_input(options.output, input));
  if (!options.output.empty()) {
    const auto folder = std::filesystem::absolute(options.output).parent_path();
    if (access(folder.c_str(), W_OK | X_OK) != 0)
      return dsakit::bad_input(options.output +
                               ": cannot write the report: " + std::strerror(errno));
  }
  return options.rules.load();
}

void say_waived(std::int64_t failures) {
  if (failures > 0)
    complain(std::to_string(failures) + (failures == 1 ? " failure is" : " failures are") +
             " waived, not passed");
}

int finish(const dsakit::Result<Report>& report, const ReportOptions& options) {
  if (!report) {
    complain(report.status().what());
    return exit_code(report.status().code());
  }
  const int code = exit_code_of(*report);
  // A file that cannot be read is one line on stderr. A program still asks why.
  if (!report->lines.empty() || report->partial || options.format != "text")
    if (const Status status = print(*report, options); !status) {
      complain(status.what());
      return exit_code(status.code());
    }
  for (const ReportFile& file : report->files)
    if (file.bad_input) complain(file.reason);
  say_waived(report->summary().waived);
  if (code == kExitNothingRan) complain("nothing ran");
  return code;
}
