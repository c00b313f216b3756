// What each kind of .safetensors file means: which tensor goes where, and which contract its
// producer follows (docs/recordings.md, "Known producers").
#pragma once

#include "draft.hpp"

namespace dsakit::harness {

/// Files written by production kernels: metadata `op`. False if `op` is not known.
Result<bool> place_kernel_file(Draft& draft);
/// Whole layers: metadata `kind` and `config`. False without them.
Result<bool> place_layer_file(Draft& draft);
/// Files written by export. False for others.
Result<bool> place_exported_file(Draft& draft);
/// Whatever the manifest says.
Status place_by_manifest(Draft& draft, const std::string& manifest);

} // namespace dsakit::harness
