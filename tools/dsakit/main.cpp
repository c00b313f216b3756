// dsakit: replay recorded tensors through the reference and the kernels, and say where they part.
#include <cstdio>
#include <exception>

#include "dsakit/harness/environment.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

int main(int argc, char** argv) {
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
    add_replay(app, code);
    add_compare(app, code);
    add_doctor(app, code);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has a code per kind of error; ours is one. --help and --version arrive here too.
    return app.exit(error) == 0 ? kExitPass : kExitBadInput;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dsakit: %s\n", error.what());
    return kExitBadInput;
  }
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == kExitPass) {
    std::fprintf(stderr, "dsakit: standard output: not everything could be written\n");
    return kExitBadInput;
  }
  return code;
}
