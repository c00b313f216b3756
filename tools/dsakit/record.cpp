// dsakit record: a synthetic recording of a layer.
#include <cstdio>
#include <memory>

#include "complain.hpp"
#include "dsakit/harness/model_config.hpp"
#include "dsakit/harness/record.hpp"
#include "dsakit/harness/text.hpp"
#include "exit_codes.hpp"
#include "progress_bar.hpp"
#include "verbs.hpp"

namespace {

bool is_preset(const std::string& name) {
  for (const std::string& preset : dsakit::harness::model_presets())
    if (name == preset) return true;
  return false;
}

/// What made the recording, without paths and without what changes no byte.
std::string command_of(const dsakit::harness::RecordOptions& options) {
  std::string command = "dsakit record --config ";
  command += is_preset(options.config) ? options.config : "config.json";
  command += " --requests " + options.requests + " --seed " + std::to_string(options.seed);
  if (options.distribution != "normal") command += " --distribution " + options.distribution;
  if (options.indexer_kv_dtype != "fp8")
    command += " --indexer-kv-dtype " + options.indexer_kv_dtype;
  if (options.tensor_parallel_size != 1)
    command += " --tp " + std::to_string(options.tensor_parallel_size);
  if (options.decode_context_parallel_size != 1)
    command += " --dcp " + std::to_string(options.decode_context_parallel_size) +
               " --dcp-interleave " + std::to_string(options.cp_kv_cache_interleave_size);
  if (options.deflate) command += " --deflate";
  if (!options.weights.empty()) command += " --weights --layer " + std::to_string(options.layer);
  return command;
}

int run_record(dsakit::harness::RecordOptions& options) {
  options.command = command_of(options);
  const auto notes = [&] {
    ProgressBar bar;
    return dsakit::harness::record(options, bar.progress());
  }();
  if (!notes) {
    complain(notes.status().what(), "record");
    return exit_code(notes.status().code());
  }
  for (const std::string& note : *notes)
    complain("note: " + note, "record");
  std::printf("wrote %s\n", dsakit::harness::escaped(options.output).c_str());
  return kExitPass;
}

} // namespace

void add_record(CLI::App& app, int& exit_code) {
  auto* verb =
      app.add_subcommand("record", "run the reference layer on random inputs and record it");
  auto options = std::make_shared<dsakit::harness::RecordOptions>();
  std::string presets;
  for (const std::string& preset : dsakit::harness::model_presets())
    presets += preset + ", ";
  verb->add_option("--config", options->config, presets + "or a model's config.json")
      ->required()
      ->type_name("NAME|FILE");
  verb->add_option("--requests", options->requests,
                   "a step for each of prefill:[COUNTx]TOKENS[+NEW], decode:[COUNTx]CONTEXT[+NEW], "
                   "separated by commas")
      ->required();
  verb->add_option("--seed", options->seed, "of every random number")->required();
  verb->add_option("--distribution", options->distribution,
                   "of hidden states and cached tokens: normal, outliers, ties, narrow, zeros, "
                   "extreme")
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--indexer-kv-dtype", options->indexer_kv_dtype, "fp8 or mxfp4")
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--tp", options->tensor_parallel_size,
                   "record what rank 0 of so many tensor-parallel ranks sees")
      ->type_name("N")
      ->capture_default_str();
  auto* ranks = verb->add_option("--dcp", options->decode_context_parallel_size,
                                 "record what rank 0 of so many context-parallel ranks sees")
                    ->type_name("N")
                    ->capture_default_str();
  verb->add_option("--dcp-interleave", options->cp_kv_cache_interleave_size,
                   "positions in a row on one of those ranks")
      ->needs(ranks)
      ->type_name("N")
      ->capture_default_str();
  auto* weights =
      verb->add_option("--weights", options->weights,
                       "a checkpoint's folder of .safetensors files, instead of random weights")
          ->type_name("DIR");
  verb->add_option("--layer", options->layer, "which layer of the checkpoint")
      ->needs(weights)
      ->type_name("N");
  verb->add_flag("--deflate", options->deflate, "compress the tensors");
  verb->add_option("-o,--output", options->output, "the recording to write")
      ->required()
      ->type_name("FILE");
  verb->footer(kExitCodesHelp);
  verb->callback([options, &exit_code] { exit_code = run_record(*options); });
}
