#include "gathered_rows.hpp"

#include <algorithm>

namespace dsakit::harness {

std::int64_t gathered_rows(const OperationData& data) {
  if (const Tensor* row_request = data.optional_input("row_request"))
    return row_request->elements();
  if (const Tensor* k_scale = data.optional_input("k_scale")) return k_scale->shape.at(0);
  if (!data.tensors.outputs.empty()) return data.tensors.outputs.begin()->second.tensor.shape.at(0);
  const Tensor& cu_seq_lens = data.input("cu_seq_lens");
  return cu_seq_lens.as<std::int32_t>()[cu_seq_lens.elements() - 1];
}

RowKind row_kind(const OperationData& data, std::int64_t page_size, std::int64_t row) {
  const Tensor& table = data.input("block_table");
  const auto* cu_seq_lens = data.input("cu_seq_lens").as<std::int32_t>();
  const std::int64_t requests = table.shape[0];
  const Tensor* row_request = data.optional_input("row_request");
  const std::int64_t request =
      row_request
          ? row_request->as<std::int32_t>()[row]
          : std::upper_bound(cu_seq_lens, cu_seq_lens + requests + 1, row) - cu_seq_lens - 1;
  if (request < 0 || request >= requests || row < cu_seq_lens[request] ||
      row >= cu_seq_lens[request + 1])
    return RowKind::skipped;
  const std::int64_t column = (row - cu_seq_lens[request]) / page_size;
  if (column >= table.shape[1]) return RowKind::bad_page;
  const std::int32_t page = table.as<std::int32_t>()[request * table.shape[1] + column];
  const std::int64_t pages = data.input("index_cache").shape.at(0);
  return page >= 0 && page < pages ? RowKind::copied : RowKind::bad_page;
}

} // namespace dsakit::harness
