// How the rows of a step are cut into launches of the indexer (spec 2.7, 2.9). Host code only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsakit/optimized/layer.hpp"

namespace dsakit::optimized {

/// A refusal's text.
inline std::string found(const std::string& name, std::int64_t value, const std::string& want) {
  return name + ": found " + std::to_string(value) + ", want " + want;
}

/// Consecutive rows of consecutive requests that are scored together.
struct Chunk {
  bool decode; ///< scored in the pages, else against gathered keys
  std::int64_t first_request;
  std::int64_t requests;
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t longest;      ///< of its requests: columns of its logits
  std::int64_t keys = 0;     ///< of prefill: tokens of its requests
  std::int64_t first_cu = 0; ///< of prefill: where its requests + 1 bounds begin
  bool same_keys = false;    ///< of prefill: those of the chunk before
  std::int64_t next_n = 0;   ///< of decode: rows of each request where all have as many, else 0
};

struct StepPlan {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t padding = 0;              ///< rows at the end that are of no request
  std::vector<std::int32_t> row_lens;    ///< [tokens] keys that a row sees
  std::vector<std::int32_t> row_request; ///< [tokens] -1: padding
  std::vector<std::int32_t> ks;          ///< [tokens] first gathered key of a prefill row
  std::vector<std::int32_t> ke;          ///< [tokens] one past its last
  std::vector<std::int32_t> cu_seq_lens; ///< of all chunks of prefill, one after the other
  std::vector<Chunk> chunks;
  std::int64_t longest = 0; ///< of all requests
};

/// Entries that cu_seq_lens has at most: a chunk has a row, and a bound more than requests.
inline std::int64_t most_bounds(const LayerConfig& config) {
  return 2 * config.max_tokens + config.max_requests;
}

/// bad_input, with the value found, for lengths that disagree or are beyond the configuration.
Result<StepPlan> plan_step(const LayerConfig& config, std::int64_t tokens,
                           std::span<const std::int32_t> query_lens,
                           std::span<const std::int32_t> seq_lens);

} // namespace dsakit::optimized
