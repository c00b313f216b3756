// Rows of indexer problems, in either format: which keys they gather or score.
#pragma once

#include <algorithm>

#include "draw.hpp"

namespace dsakit::testing {

inline std::int64_t draw_heads(Draw& d) {
  return d.any<std::int64_t>({1, 2, 3, 8, 12, 16, 17, 32, 33, 64});
}

/// Requests of a gather, up to 60 keys each, and rows past them that belong to none.
inline std::int64_t draw_gathered_rows(harness::RecordedOperation& op, std::int64_t page_size,
                                       std::int64_t pages, Draw& d) {
  const std::int64_t requests = d.between(1, 4), columns = d.between(1, 3);
  std::vector<std::int32_t> cu_seq_lens = {0}, row_request;
  for (std::int64_t b = 0; b < requests; ++b) {
    const std::int64_t most = std::min<std::int64_t>(columns * page_size, 60);
    cu_seq_lens.push_back(cu_seq_lens.back() + static_cast<std::int32_t>(d.count(most)));
  }
  const std::int64_t rows = cu_seq_lens.back() + d.below(4); // of no request: stay
  op.inputs["block_table"] =
      tiny::tensor(Dtype::int32, {requests, columns}, page_table(requests * columns, pages, 8, d));
  op.inputs["cu_seq_lens"] = tiny::tensor(Dtype::int32, {requests + 1}, cu_seq_lens);
  if (d.one_in(2)) {
    for (std::int64_t b = 0; b < requests; ++b)
      row_request.resize(static_cast<std::size_t>(cu_seq_lens[static_cast<std::size_t>(b + 1)]),
                         static_cast<std::int32_t>(b));
    row_request.resize(static_cast<std::size_t>(rows), -1);
    op.inputs["row_request"] = tiny::tensor(Dtype::int32, {rows}, row_request);
  }
  return rows;
}

/// Windows of rows in prefill; returns the columns that the logits need.
inline std::int64_t draw_windows(harness::RecordedOperation& op, std::int64_t rows,
                                 std::int64_t keys, Draw& d) {
  std::vector<std::int32_t> ks, ke, origin;
  std::int64_t columns = 1;
  const bool moved = d.one_in(2); // with column_origin
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t first = d.below(keys + 1), end = d.between(first, keys);
    if (d.one_in(8)) std::swap(first, end); // an empty window
    if (d.one_in(12)) first = -3, end = -4; // and one that does not exist
    ks.push_back(static_cast<std::int32_t>(first));
    ke.push_back(static_cast<std::int32_t>(end));
    origin.push_back(
        moved ? static_cast<std::int32_t>(d.below(std::max<std::int64_t>(first, 0) + 1)) : 0);
    if (first < end) columns = std::max(columns, end - origin.back());
  }
  op.inputs["ks"] = tiny::tensor(Dtype::int32, {rows}, ks);
  op.inputs["ke"] = tiny::tensor(Dtype::int32, {rows}, ke);
  if (moved) op.inputs["column_origin"] = tiny::tensor(Dtype::int32, {rows}, origin);
  return columns + d.below(4);
}

/// Rows of decode over pages of page_size tokens.
struct DecodeShape {
  std::int64_t rows;
  std::int64_t columns; ///< of logits
  std::int64_t pages;
};

inline DecodeShape draw_decode_rows(harness::RecordedOperation& op, std::int64_t page_size,
                                    Draw& d) {
  const std::int64_t requests = d.between(1, 3), columns = d.between(1, 3);
  const std::int64_t pages = requests * columns + 1;
  const bool mapped = d.one_in(2); // with row_request
  const std::int64_t rows = mapped ? d.count(8) : requests * d.below(4);
  std::vector<std::int32_t> row_lens, row_request;
  std::int64_t longest = 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t most = std::min<std::int64_t>(columns * page_size, 150);
    row_lens.push_back(d.one_in(12) ? -1 : static_cast<std::int32_t>(d.count(most)));
    row_request.push_back(static_cast<std::int32_t>(d.below(requests)));
    longest = std::max<std::int64_t>(longest, row_lens.back());
  }
  op.inputs["block_table"] =
      tiny::tensor(Dtype::int32, {requests, columns}, page_table(requests * columns, pages, 12, d));
  op.inputs["row_lens"] = tiny::tensor(Dtype::int32, {rows}, row_lens);
  if (mapped) op.inputs["row_request"] = tiny::tensor(Dtype::int32, {rows}, row_request);
  return {rows, longest + d.below(4), pages};
}

} // namespace dsakit::testing
