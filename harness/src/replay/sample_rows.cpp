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
std::string_view row_axis(std::string_view operation) {
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

/// Keeps `rows` of that axis, before which only ranks may come.
void keep(Tensor& tensor, std::size_t axis, const std::vector<std::int64_t>& rows) {
  const std::int64_t outer = axis == 0 ? 1 : tensor.shape[0], all = tensor.shape[axis];
  const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(outer * all);
  std::byte* kept = tensor.bytes.data();
  for (std::int64_t rank = 0; rank < outer; ++rank)
    for (const std::int64_t row : rows) { // ascending, so that nothing is overwritten early
      std::memmove(kept,
                   tensor.bytes.data() + static_cast<std::size_t>(rank * all + row) * row_bytes,
                   row_bytes);
      kept += row_bytes;
    }
  tensor.bytes.resize(static_cast<std::size_t>(kept - tensor.bytes.data()));
  tensor.shape[axis] = static_cast<std::int64_t>(rows.size());
}

} // namespace

Result<RecordedOperation> sample_rows(RecordedOperation recorded, const Operation& operation,
                                      const RowSample& sample) {
  const std::string_view axis = row_axis(operation.name);
  if (sample.rows == 0 || axis.empty()) return recorded;

  std::int64_t rows = 0;
  const auto for_each_row_tensor = [&](const auto& visit) {
    for (auto* side : {&recorded.inputs, &recorded.outputs})
      for (auto& [name, tensor] : *side)
        for (const TensorRule& rule : kTensorRules)
          if (applies(rule, operation) && rule.tensor == output_of(name, tensor.attributes)) {
            const auto axes = split_names(rule.shape);
            for (std::size_t at = 0; at < axes.size(); ++at)
              if (axes[at] == axis) visit(tensor.tensor, at);
          }
  };
  for_each_row_tensor([&](const Tensor& tensor, std::size_t at) { rows = tensor.shape[at]; });
  if (rows <= sample.rows) return recorded;

  if (operation.name == "index_logits_decode" && !recorded.inputs.contains("row_request")) {
    const auto requests =
        row_requests(recorded, rows, recorded.inputs.at("block_table").tensor.shape[0]);
    DSAKIT_TRY(requests);
    RecordedTensor& row_request = recorded.inputs["row_request"];
    row_request.tensor = Tensor(Dtype::int32, {rows});
    std::copy(requests->begin(), requests->end(), row_request.tensor.as<std::int32_t>());
  }
  const auto kept = draw(rows, sample);
  for_each_row_tensor([&](Tensor& tensor, std::size_t at) { keep(tensor, at, kept); });
  return recorded;
}

} // namespace dsakit::harness
