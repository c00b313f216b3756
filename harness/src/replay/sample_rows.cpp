#include "sample_rows.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "../operations/index_pages.hpp"
#include "../recording/tensor_rules.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

/// The extent that counts independent rows; empty where there is none.
std::string_view row_extent(std::string_view operation) {
  if (operation == "index_key_norm") return "tokens";
  if (operation == "index_cache_write" || operation == "mla_cache_write" ||
      operation == "index_cache_gather")
    return {};
  return "rows";
}

std::vector<std::int64_t> draw(std::int64_t rows, const RowSample& sample) {
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(rows));
  std::iota(drawn.begin(), drawn.end(), 0);
  std::mt19937_64 random(sample.seed);
  for (std::int64_t i = 0; i < sample.rows; ++i) { // the first sample.rows of a shuffle
    const auto left = static_cast<std::uint64_t>(rows - i);
    std::swap(drawn[static_cast<std::size_t>(i)],
              drawn[static_cast<std::size_t>(i) + static_cast<std::size_t>(random() % left)]);
  }
  drawn.resize(static_cast<std::size_t>(sample.rows));
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

/// Calls visit(tensor, axis) for each tensor that has rows.
template <class Recorded, class Visit>
void for_each_row_tensor(Recorded& recorded, const Operation& operation, const Visit& visit) {
  for (auto* side : {&recorded.inputs, &recorded.outputs})
    for (auto& [name, tensor] : *side)
      if (const auto axis = row_axis(operation, output_of(name, tensor.attributes)))
        visit(tensor.tensor, *axis);
}

/// row_request, where a choice of rows needs it and the recording says it by the rows' order.
Result<std::optional<RecordedTensor>> requests_of_rows(const RecordedOperation& recorded,
                                                       const Operation& operation) {
  if (operation.name != "index_logits_decode" || recorded.inputs.contains("row_request"))
    return std::optional<RecordedTensor>();
  const std::int64_t rows = independent_rows(recorded, operation);
  const auto requests =
      row_requests(recorded, rows, recorded.inputs.at("block_table").tensor.shape[0]);
  DSAKIT_TRY(requests);
  RecordedTensor row_request;
  row_request.tensor = Tensor(Dtype::int32, {rows});
  std::copy(requests->begin(), requests->end(), row_request.tensor.as<std::int32_t>());
  return std::optional(std::move(row_request));
}

} // namespace

std::int64_t independent_rows(const RecordedOperation& recorded, const Operation& operation) {
  std::int64_t rows = 0;
  for_each_row_tensor(recorded, operation,
                      [&](const Tensor& tensor, std::size_t axis) { rows = tensor.shape[axis]; });
  return rows;
}

std::optional<std::size_t> row_axis(const Operation& operation, const std::string& tensor) {
  const std::string_view extent = row_extent(operation.name);
  for (const TensorRule& rule : kTensorRules)
    if (!extent.empty() && applies(rule, operation) && rule.tensor == tensor) {
      const auto axes = split_names(rule.shape);
      const auto found = std::find(axes.begin(), axes.end(), extent);
      if (found != axes.end()) return static_cast<std::size_t>(found - axes.begin());
    }
  return std::nullopt;
}

Tensor of_axis(const Tensor& tensor, std::size_t axis, const std::vector<std::int64_t>& rows) {
  const std::int64_t outer = axis == 0 ? 1 : tensor.shape[0], all = tensor.shape[axis];
  const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(outer * all);
  Shape shape = tensor.shape;
  shape[axis] = std::ssize(rows);
  Tensor result(tensor.dtype, std::move(shape));
  std::byte* to = result.bytes.data();
  for (std::int64_t rank = 0; rank < outer; ++rank)
    for (const std::int64_t row : rows) {
      std::memcpy(to, tensor.bytes.data() + static_cast<std::size_t>(rank * all + row) * row_bytes,
                  row_bytes);
      to += row_bytes;
    }
  return result;
}

Result<RecordedOperation> keep_rows(const RecordedOperation& recorded, const Operation& operation,
                                    const std::vector<std::int64_t>& rows) {
  auto requests = requests_of_rows(recorded, operation);
  DSAKIT_TRY(requests);
  RecordedOperation result;
  const auto keep = [&](const auto& from, auto& to) {
    for (const auto& [name, tensor] : from)
      if (const auto axis = row_axis(operation, output_of(name, tensor.attributes)))
        to[name] = {of_axis(tensor.tensor, *axis, rows), tensor.axes, tensor.attributes};
      else
        to[name] = tensor;
  };
  keep(recorded.inputs, result.inputs);
  keep(recorded.outputs, result.outputs);
  if (*requests) result.inputs["row_request"].tensor = of_axis((*requests)->tensor, 0, rows);
  return result;
}

Result<RecordedOperation> sample_rows(RecordedOperation recorded, const Operation& operation,
                                      const RowSample& sample) {
  const std::int64_t rows = independent_rows(recorded, operation);
  if (sample.rows == 0 || rows <= sample.rows) return recorded;
  auto requests = requests_of_rows(recorded, operation);
  DSAKIT_TRY(requests);
  if (*requests) recorded.inputs["row_request"] = std::move(**requests);
  const auto drawn = draw(rows, sample);
  for_each_row_tensor(recorded, operation, [&](Tensor& tensor, std::size_t axis) {
    tensor = of_axis(tensor, axis, drawn);
  });
  return recorded;
}

} // namespace dsakit::harness
