// Synthetic recordings of a layer: random inputs and weights, the reference's outputs
// (docs/recordings.md, "Record").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/progress.hpp"

namespace dsakit::harness {

struct RecordOptions {
  std::string config;   ///< preset or path (read_model_config)
  std::string requests; ///< parse_requests
  std::uint64_t seed = 0;
  std::string distribution = "normal";
  std::string indexer_kv_dtype = "fp8";          ///< or mxfp4
  std::int64_t tensor_parallel_size = 1;         ///< what rank 0 of them sees is recorded
  std::int64_t decode_context_parallel_size = 1; ///< of them too rank 0's view: its keys, and what
                                                 ///< the others offer to the merges
  std::int64_t cp_kv_cache_interleave_size = 1;
  std::string weights;    ///< "" or a folder of safetensors shards
  std::int64_t layer = 0; ///< of the checkpoint
  bool deflate = false;   ///< shuffle + deflate the tensors
  std::string output;
  std::string command; ///< for /provenance: the command line without paths
};

/// Requests of one step.
struct RequestGroup {
  bool prefill; ///< prefill rows are scored against gathered keys, decode rows in the pages
  std::int64_t count;
  std::int64_t context; ///< tokens before the step
  std::int64_t added;   ///< new tokens of each
};

/// "prefill:4096,decode:8x32768+2": KIND:[COUNTx]CONTEXT[+NEW], a step for each group. prefill
/// without +NEW has its tokens new and no context; decode without it has one new token.
Result<std::vector<RequestGroup>> parse_requests(const std::string& text);

/// Notes worth a warning. The file appears under options.output only when it is whole, and has the
/// same bytes for the same options on one machine and build, with any number of threads. Memory:
/// the weights, and one step's caches and tensors. unsupported where the layer refuses the model.
Result<std::vector<std::string>> record(const RecordOptions& options,
                                        const Progress& progress = {});

} // namespace dsakit::harness
