#include "layer/plan.hpp"

#include <algorithm>
#include <string>

namespace dsakit::optimized {
namespace {

Status check_lens(const LayerConfig& config, std::int64_t tokens,
                  std::span<const std::int32_t> query_lens,
                  std::span<const std::int32_t> seq_lens) {
  if (tokens < 0 || tokens > config.max_tokens)
    return bad_input(
        found("tokens", tokens, "0 to max_tokens = " + std::to_string(config.max_tokens)));
  const auto requests = static_cast<std::int64_t>(query_lens.size());
  if (requests > config.max_requests)
    return bad_input(found("query_lens entries", requests,
                           "at most max_requests = " + std::to_string(config.max_requests)));
  if (query_lens.size() != seq_lens.size())
    return bad_input(found("seq_lens entries", static_cast<std::int64_t>(seq_lens.size()),
                           std::to_string(requests) + " as query_lens has"));
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < query_lens.size(); ++b) {
    const std::string at = "[" + std::to_string(b) + "]";
    if (query_lens[b] < 0) return bad_input(found("query_lens" + at, query_lens[b], "at least 0"));
    if (seq_lens[b] < 0 || seq_lens[b] > config.max_model_len)
      return bad_input(found("seq_lens" + at, seq_lens[b],
                             "0 to max_model_len = " + std::to_string(config.max_model_len)));
    rows += query_lens[b];
  }
  if (rows > tokens)
    return bad_input(
        found("tokens", tokens, "at least the " + std::to_string(rows) + " of query_lens"));
  return {};
}

class Planner {
public:
  Planner(const LayerConfig& config, std::span<const std::int32_t> query_lens,
          std::span<const std::int32_t> seq_lens)
      : config_(config), query_lens_(query_lens), seq_lens_(seq_lens),
        requests_(static_cast<std::int64_t>(query_lens.size())) {}

  StepPlan run(std::int64_t tokens) {
    const auto rows = static_cast<std::size_t>(tokens);
    plan_.tokens = tokens;
    plan_.requests = requests_;
    plan_.row_lens.assign(rows, 0);
    plan_.row_request.assign(rows, -1);
    plan_.ks.assign(rows, 0);
    plan_.ke.assign(rows, 0);
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < requests_; ++b) {
      plan_.longest = std::max(plan_.longest, keys(b));
      for (std::int64_t i = 0; i < new_tokens(b); ++i, ++row) {
        const std::int64_t length = std::max<std::int64_t>(keys(b) - new_tokens(b) + i + 1, 0);
        plan_.row_lens[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(length);
        plan_.row_request[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(b);
      }
    }
    plan_.padding = tokens - row;
    cut();
    return std::move(plan_);
  }

private:
  std::int64_t new_tokens(std::int64_t b) const { return query_lens_[static_cast<std::size_t>(b)]; }
  std::int64_t keys(std::int64_t b) const { return seq_lens_[static_cast<std::size_t>(b)]; }
  bool decodes(std::int64_t b) const { return new_tokens(b) <= 1 + config_.num_speculative_tokens; }

  /// Greedy in order: a chunk takes the next request while it is of the same kind, all keys fit
  /// the gathered ones, and rows times keys fit the logits. A request that fits no chunk has its
  /// own, as many rows at a time as the logits hold.
  void cut() {
    const std::int64_t most_logits =
        config_.max_logits_bytes / static_cast<std::int64_t>(sizeof(float));
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < requests_;) {
      Chunk chunk{};
      chunk.decode = decodes(b);
      chunk.first_request = b;
      chunk.first_row = row;
      std::int64_t all_keys = 0;
      for (std::int64_t next = b; next < requests_ && decodes(next) == chunk.decode; ++next) {
        const std::int64_t more_keys = all_keys + keys(next);
        const std::int64_t more_rows = chunk.rows + new_tokens(next);
        if (more_keys > config_.max_total_seq_len || more_rows * more_keys > most_logits) break;
        all_keys = more_keys;
        chunk.rows = more_rows;
        ++chunk.requests;
      }
      if (chunk.requests > 0) {
        add(chunk);
        row += chunk.rows;
        b += chunk.requests;
        continue;
      }
      chunk.requests = 1;
      const std::int64_t at_once = std::max<std::int64_t>(1, most_logits / keys(b));
      for (std::int64_t left = new_tokens(b); left > 0; left -= chunk.rows, row += chunk.rows) {
        chunk.first_row = row;
        chunk.rows = std::min(at_once, left);
        add(chunk);
      }
      ++b;
    }
  }

  void add(Chunk chunk) {
    if (chunk.rows == 0) return;
    for (std::int64_t b = chunk.first_request; b < chunk.first_request + chunk.requests; ++b)
      chunk.longest = std::max(chunk.longest, keys(b));
    if (chunk.decode)
      set_next_n(chunk);
    else
      set_windows(chunk);
    plan_.chunks.push_back(chunk);
  }

  void set_next_n(Chunk& chunk) const {
    chunk.next_n = chunk.rows / chunk.requests;
    if (chunk.rows % chunk.requests != 0) chunk.next_n = 0;
    for (std::int64_t b = chunk.first_request; b < chunk.first_request + chunk.requests; ++b)
      if (new_tokens(b) != chunk.next_n) chunk.next_n = 0; // a part of one, too
  }

  void set_windows(Chunk& chunk) {
    if (!plan_.chunks.empty()) {
      const Chunk& before = plan_.chunks.back();
      chunk.same_keys = !before.decode && before.first_request == chunk.first_request &&
                        before.requests == chunk.requests;
    }
    chunk.first_cu = static_cast<std::int64_t>(plan_.cu_seq_lens.size());
    plan_.cu_seq_lens.push_back(0);
    for (std::int64_t b = chunk.first_request; b < chunk.first_request + chunk.requests; ++b) {
      chunk.keys += keys(b);
      plan_.cu_seq_lens.push_back(static_cast<std::int32_t>(chunk.keys));
    }
    for (std::int64_t row = chunk.first_row; row < chunk.first_row + chunk.rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      const std::int64_t request = plan_.row_request[r] - chunk.first_request;
      plan_.ks[r] = plan_.cu_seq_lens[static_cast<std::size_t>(chunk.first_cu + request)];
      plan_.ke[r] = plan_.ks[r] + plan_.row_lens[r];
    }
  }

  const LayerConfig& config_;
  std::span<const std::int32_t> query_lens_;
  std::span<const std::int32_t> seq_lens_;
  std::int64_t requests_;
  StepPlan plan_;
};

} // namespace

Result<StepPlan> plan_step(const LayerConfig& config, std::int64_t tokens,
                           std::span<const std::int32_t> query_lens,
                           std::span<const std::int32_t> seq_lens) {
  DSAKIT_TRY(check_lens(config, tokens, query_lens, seq_lens));
  return Planner(config, query_lens, seq_lens).run(tokens);
}

} // namespace dsakit::optimized
