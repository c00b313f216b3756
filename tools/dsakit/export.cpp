// dsakit export: a recording, or one of its tensors, for other programs.
#include <cstdio>
#include <memory>

#include "complain.hpp"
#include "dsakit/harness/export.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "verbs.hpp"

namespace {

using namespace dsakit;

/// What was written of a recording; empty: all.
Result<std::string> write(const harness::ExportTensorOptions& options) {
  if (!options.tensor.empty()) return harness::export_tensor(options);
  for (const char* ending : {".npy", ".csv"})
    if (options.output.ends_with(ending))
      return bad_input(options.output + ": holds one tensor, want --operation and --tensor");
  DSAKIT_TRY(harness::export_safetensors(options.recording, options.output));
  return std::string();
}

int run_export(const harness::ExportTensorOptions& options) {
  const auto written = write(options);
  if (!written) {
    complain(written.status().what(), "export");
    return exit_code(written.status().code());
  }
  std::printf("wrote %s%s%s\n", harness::escaped(options.output).c_str(),
              written->empty() ? "" : ": ", harness::escaped(*written).c_str());
  return kExitPass;
}

} // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto* verb = app.add_subcommand(
      "export", "write a recording to .safetensors, or one tensor of it to .npy, .csv or "
                ".safetensors");
  auto options = std::make_shared<harness::ExportTensorOptions>();
  verb->add_option("FILE", options->recording, "a recording")->required();
  auto* operation =
      verb->add_option("--operation", options->operation, "whose tensor")->type_name("NAME");
  auto* tensor = verb->add_option("--tensor", options->tensor,
                                  "which one; inputs/NAME or outputs/NAME where both sides have it")
                     ->needs(operation)
                     ->type_name("NAME");
  operation->needs(tensor);
  verb->add_option("--step", options->step, "of the recording; needed where several have it")
      ->needs(tensor)
      ->type_name("N");
  verb->add_option("--slice", options->slice,
                   "for each axis BEGIN:END or an index, below 0 from the end: \"0:4,:,-1\"")
      ->needs(tensor)
      ->type_name("RANGES");
  verb->add_option("-o,--output", options->output, "the file to write; its ending is the format")
      ->required()
      ->type_name("FILE");
  verb->footer(".npy and .csv have bfloat16, fp8, e8m0 and fp4 as float32; .safetensors keeps the "
               "dtype.\n" +
               std::string(kExitCodesHelp));
  verb->callback([options, &exit_code] { exit_code = run_export(*options); });
}
