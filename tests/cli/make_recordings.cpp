// make_recordings FOLDER: the recordings that cli_test.py replays.
#include <cstdio>
#include <cstring>

#include "support/tiny_recording.hpp"

using dsakit::testing::tiny_recording;
using dsakit::testing::TinyRecording;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = std::string(argv[1]) + "/";

  const TinyRecording sound = tiny_recording();
  sound.write(folder + "sound.h5");

  TinyRecording wrong = sound;
  wrong.output("index_cache_gather", "k_scale").as<float>()[3] *= 2;
  wrong.output("index_logits_decode", "logits").as<float>()[6] += 1;
  wrong.write(folder + "wrong.h5");

  TinyRecording not_finite = sound;
  not_finite.output("index_logits_decode", "logits").as<std::uint32_t>()[0] = 0x7FC00000;
  not_finite.write(folder + "not_finite.h5");

  // 2^-14 is too much for fp32, and within a 14-bit accumulator.
  TinyRecording wgmma = sound;
  auto& logits = wgmma.operations["index_logits_decode"].outputs["logits"];
  for (std::int64_t i = 0; i < logits.tensor.elements(); ++i)
    logits.tensor.as<float>()[i] *= 1 + 0x1p-14f;
  logits.attributes["accumulation"] = "sm90_wgmma_fp8";
  wgmma.write(folder + "wgmma.h5");

  // No kernel takes fp16 activations.
  TinyRecording unsupported = sound;
  unsupported.contract["activation_dtype"] = "fp16";
  unsupported.input("index_cache_write", "index_k").dtype = dsakit::Dtype::float16;
  unsupported.write(folder + "unsupported.h5");

  TinyRecording gather_only = sound;
  gather_only.operations.erase("index_cache_write");
  gather_only.operations.erase("index_logits_decode");
  gather_only.write(folder + "gather_only.h5");

  TinyRecording other_operation = sound;
  other_operation.operations.erase("index_cache_write");
  other_operation.operations.erase("index_cache_gather");
  other_operation.write(folder + "other_operation.h5");

  std::string command = "dsakit record --config kimi-k3.1";
  for (int i = 0; i < 12; ++i)
    command += " --contract key" + std::to_string(i) + "=value";
  TinyRecording long_command = gather_only;
  long_command.provenance = {{"command", command}};
  long_command.write(folder + "long_command.h5");

  TinyRecording other_contract = sound;
  other_contract.contract["index_k_floor"] = "2e-4";
  other_contract.write(folder + "other_contract.h5");

  TinyRecording other_input = sound;
  other_input.input("index_logits_decode", "index_weights_folded").as<float>()[4] *= 2;
  other_input.input("index_logits_decode", "block_table").as<std::int32_t>()[1] ^= 1;
  other_input.write(folder + "other_input.h5");

  // Decode that reads the cache as it was before this step's writes, and as it is after them.
  TinyRecording fresh_input = sound;
  for (const char* operation : {"index_cache_gather", "index_logits_decode"})
    fresh_input.input(operation, "index_cache") =
        fresh_input.output("index_cache_write", "index_cache");
  fresh_input.write(folder + "fresh_input.h5");
  TinyRecording stale_input = fresh_input;
  stale_input.input("index_logits_decode", "index_cache") =
      stale_input.input("index_cache_write", "index_cache");
  stale_input.write(folder + "stale_input.h5");

  TinyRecording bad_slot = sound;
  bad_slot.input("index_cache_write", "slot_mapping").as<std::int64_t>()[1] = 8;
  bad_slot.write(folder + "bad_slot.h5");
  return testing::Test::HasFailure() ? 1 : 0;
}
