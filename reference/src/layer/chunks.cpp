#include <algorithm>

#include "dsakit/reference/layer.hpp"

namespace dsakit::reference {

std::vector<PrefillChunk> split_prefill(std::span<const std::int32_t> query_lens,
                                        std::span<const std::int32_t> seq_lens,
                                        std::int64_t max_keys, std::int64_t max_logits) {
  std::vector<PrefillChunk> chunks;
  const std::int64_t requests = std::ssize(query_lens);
  const auto at = [](std::span<const std::int32_t> lens, std::int64_t b) {
    return static_cast<std::int64_t>(lens[static_cast<std::size_t>(b)]);
  };
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < requests;) {
    const std::int64_t first = b;
    std::int64_t rows = 0, keys = 0;
    while (b < requests && keys + at(seq_lens, b) <= max_keys &&
           (rows + at(query_lens, b)) * (keys + at(seq_lens, b)) <= max_logits) {
      rows += at(query_lens, b);
      keys += at(seq_lens, b);
      ++b;
    }
    if (b > first) {
      if (rows > 0) chunks.push_back({first, b, row, row + rows});
      row += rows;
      continue;
    }
    const std::int64_t step = std::max<std::int64_t>(1, max_logits / at(seq_lens, b));
    const std::int64_t end = row + at(query_lens, b);
    for (; row < end; row += step)
      chunks.push_back({b, b + 1, row, std::min(row + step, end)});
    row = end;
    ++b;
  }
  return chunks;
}

} // namespace dsakit::reference
