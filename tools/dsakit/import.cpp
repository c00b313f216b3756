// dsakit import: .safetensors to recording.
#include <cstdio>
#include <memory>

#include "complain.hpp"
#include "dsakit/harness/import.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + dsakit::harness::escaped(name);
  return text;
}

struct ImportArguments {
  dsakit::harness::ImportOptions options;
  std::vector<std::string> contract; ///< key=value
};

dsakit::Status parse_contract(ImportArguments& arguments) {
  std::string& command = arguments.options.command;
  command = "dsakit import";
  for (const std::string& item : arguments.contract) {
    const auto equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      return dsakit::bad_input("--contract: found '" + item + "', want key=value");
    const std::string key = item.substr(0, equals);
    if (!arguments.options.contract.emplace(key, item.substr(equals + 1)).second)
      return dsakit::bad_input("--contract: found " + key + " twice, want it once");
    command += " --contract " + item;
  }
  if (!arguments.options.contract_preset.empty())
    command += " --contract-preset " + arguments.options.contract_preset;
  if (!arguments.options.manifest.empty()) command += " --manifest";
  if (arguments.options.deflate) command += " --deflate";
  return {};
}

int run_import(ImportArguments& arguments) {
  const auto report = [](const dsakit::Status& status) {
    complain(status.what(), "import");
    return exit_code(status.code());
  };
  if (auto parsed = parse_contract(arguments); !parsed) return report(parsed);
  auto summary = dsakit::harness::import_safetensors(arguments.options);
  if (!summary) return report(summary.status());
  std::printf("wrote %s\n", dsakit::harness::escaped(arguments.options.output).c_str());
  if (!summary->assumed.empty())
    std::printf("assumed from %s: %s\n", arguments.options.contract_preset.c_str(),
                joined(summary->assumed).c_str());
  if (!summary->left_out.empty())
    std::printf("left out, since the manifest does not name them: %s\n",
                joined(summary->left_out).c_str());
  if (!summary->unknown.empty())
    std::printf("kept, and read by nothing: %s\n", joined(summary->unknown).c_str());
  return kExitPass;
}

} // namespace

void add_import(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand("import", "Turn a .safetensors file into a recording");
  auto arguments = std::make_shared<ImportArguments>();
  auto& options = arguments->options;
  verb->add_option("FILE", options.input, "A .safetensors file")->required();
  verb->add_option("-o,--output", options.output, "The recording to write")->required();
  verb->add_option("--contract", arguments->contract,
                   "key=value that the file does not say; accumulation:<output>=value and "
                   "mla_scale_read:<output>=value for one output; may be repeated")
      ->expected(1)
      ->take_all();
  verb->add_option("--contract-preset", options.contract_preset,
                   "kimi-k3.1: fill what is still missing, and mark it as assumed");
  verb->add_option("--manifest", options.manifest,
                   "JSON that names operations and tensors (docs/recordings.md)");
  verb->add_flag("--deflate", options.deflate, "Compress the tensors");
  verb->callback([arguments, &exit_code] { exit_code = run_import(*arguments); });
}
