// Comparison of what two paths hold: recordings, .safetensors files, or folders of them.
#pragma once

#include "dsakit/core/status.hpp"
#include "dsakit/harness/compare_recordings.hpp"

namespace dsakit::harness {

/// Two recordings: compare_recordings. Two .safetensors files, or one and a recording under the
/// names that `export` gives its tensors: tensors are matched by name and held to the rules of
/// kTensors, by default exact; payloads are read in blocks. Two folders: their *.h5 and
/// *.safetensors files, at any depth, are matched by relative name; a file's own fault is its
/// verdict `error` in the report. bad_input where dtypes or shapes differ, where a tensor or a file
/// is on one side only, and for a map that matches no name.
Result<Report> compare_paths(const CompareOptions& options, Rules& rules);

} // namespace dsakit::harness
