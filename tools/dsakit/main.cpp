// dsakit: replay recorded tensors through the reference and the kernels, and say where they part.
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include <unistd.h>

#include "complain.hpp"
#include "dsakit/harness/environment.hpp"
#include "dsakit/harness/output.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

void end_at_once(int signal) {
  dsakit::harness::remove_unfinished_outputs();
  if (signal == SIGINT) ::_exit(kExitInterrupted);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// An option with nothing in its place, as a shell's unset variable leaves it, is not one that was
/// left out.
void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options(std::function<bool(CLI::Option*)>()))
    option->check([](const std::string& value) {
      return value.empty() ? std::string("found an empty value, want none or a value") : "";
    });
  for (CLI::App* verb : app.get_subcommands(std::function<bool(CLI::App*)>()))
    refuse_empty_values(*verb);
}

/// What CLI11 threw, as one line on standard error; --help and --version arrive here too.
int say(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  std::string what = error.what();
  if (const auto rest = app.remaining(); app.get_subcommands().empty() && !rest.empty())
    what = "found " + rest.front() + ", want a verb";
  complain(what + " (--help lists what there is)");
  return kExitBadInput;
}

int run(int argc, char** argv) {
  CLI::App app{"Verification and benchmarks for DeepSeek Sparse Attention kernels on ROCm."};
  app.name("dsakit");
  app.set_version_flag("--version", "dsakit " + dsakit::harness::capture_environment().version);
  app.footer(kExitCodesHelp);
  app.require_subcommand(1);

  int code = kExitPass;
  try {
    add_info(app, code);
    add_import(app, code);
    add_export(app, code);
    add_record(app, code);
    add_replay(app, code);
    add_compare(app, code);
    add_bisect(app, code);
    add_shrink(app, code);
    add_bench(app, code);
    add_bench_diff(app, code);
    add_sweep(app, code);
    add_golden(app, code);
    add_doctor(app, code);
    refuse_empty_values(app);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return say(app, error);
  }
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == kExitPass) {
    complain("standard output: not everything could be written");
    return kExitBadInput;
  }
  return code;
}

} // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, end_at_once);
  for (const int signal : {SIGTERM, SIGHUP})
    if (std::signal(signal, end_at_once) == SIG_IGN) std::signal(signal, SIG_IGN); // nohup
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    complain(error.what());
    return kExitBadInput;
  }
}
