// dsakit export: recording to .safetensors.
#include <cstdio>
#include <memory>

#include "dsakit/harness/export.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

struct Arguments {
  std::string input, output;
};

int run(const Arguments& arguments) {
  if (auto done = dsakit::harness::export_safetensors(arguments.input, arguments.output); !done) {
    std::fprintf(stderr, "dsakit export: %s\n", done.what().c_str());
    return exit_code(done.code());
  }
  std::printf("wrote %s\n", arguments.output.c_str());
  return kExitPass;
}

} // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("export", "Write a recording's tensors to a .safetensors file");
  auto arguments = std::make_shared<Arguments>();
  verb->add_option("FILE", arguments->input, "A recording")->required();
  verb->add_option("-o,--output", arguments->output, "The .safetensors file to write")->required();
  verb->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}
