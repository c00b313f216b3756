// What replay, compare and bisect share: report output, exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/report.hpp"
#include "dsakit/harness/rules.hpp"
#include "rule_options.hpp"

/// Options --format, -o, --rules, --gate, --waivers, --threads, -v.
struct ReportOptions {
  std::string format = "text";
  std::string output;
  RuleOptions rules;
  int threads = 0;
  bool verbose = false;

  void add_to(CLI::App& verb);
};

/// The rules to use. Fails here, before any work, where -o takes no report or is one of the inputs.
dsakit::Result<dsakit::harness::Rules> prepare(const ReportOptions& options,
                                               const std::vector<std::string>& inputs);

/// To standard output, or to the file of -o, whole or not at all.
dsakit::Status print_report(const std::string& contents, const ReportOptions& options);

/// Says on standard error how many failures are waived, if any.
void say_waived(std::int64_t failures);

/// Of all that the report says: 130 before 2 before 3 before 1 before 0, and 77 where nothing ran.
/// A waived failure is 0; finish() says how many there are.
int exit_code_of(const dsakit::harness::Report& report);

/// Prints the report, or writes it to -o, then says in one line on stderr what was bad.
/// Returns the process exit code.
int finish(const dsakit::Result<dsakit::harness::Report>& report, const ReportOptions& options);
