#include "structure.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "hdf5.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

/// The id tensors of one operation, loaded when asked for.
class Ids {
public:
  Ids(const OperationTensors& op, const TensorLookup& payload) : op_(op), payload_(payload) {}

  const TensorInfo* info(Side side, std::string_view name) const {
    const auto& tensors = side == Side::inputs ? op_.inputs : op_.outputs;
    for (const TensorInfo& tensor : tensors)
      if (tensor.name() == name) return &tensor;
    return nullptr;
  }

  Result<Tensor> input(std::string_view name) const { return payload_(*info(Side::inputs, name)); }

  Status fail(std::string_view name, const std::string& coordinate, const std::string& found,
              const std::string& want) const {
    return hdf5::fail(op_.path, object_path(op_.id, Side::inputs, name),
                      coordinate + ": found " + found + ", want " + want);
  }

private:
  const OperationTensors& op_;
  const TensorLookup& payload_;
};

std::string at(std::int64_t i) {
  return to_string(Shape{i});
}
std::string at(std::int64_t i, std::int64_t j) {
  return to_string(Shape{i, j});
}
std::string range(std::int64_t low, std::int64_t high) {
  return std::to_string(low) + " to " + std::to_string(high);
}

std::span<const std::int32_t> int32s(const Tensor& tensor) {
  return {tensor.as<std::int32_t>(), tensor.bytes.size() / sizeof(std::int32_t)};
}

Status check_write(const Ids& ids, std::int64_t page_size) {
  auto slots = ids.input("slot_mapping");
  if (!slots) return slots.status();
  const std::int64_t tokens = slots->elements();
  const TensorInfo& index_k = *ids.info(Side::inputs, "index_k");
  if (index_k.shape[0] < tokens)
    return ids.fail("index_k", "axis 0", std::to_string(index_k.shape[0]) + " rows",
                    "at least the " + std::to_string(tokens) + " of slot_mapping");
  const std::int64_t pool = ids.info(Side::inputs, "index_cache")->shape[0] * page_size;
  std::set<std::int64_t> taken; // of two tokens in one slot either may stay: nothing to compare
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t slot = slots->as<std::int64_t>()[t];
    if (slot < -1 || slot >= pool)
      return ids.fail("slot_mapping", at(t), "slot " + std::to_string(slot), range(-1, pool - 1));
    if (slot >= 0 && !taken.insert(slot).second)
      return ids.fail("slot_mapping", at(t), "slot " + std::to_string(slot) + " again",
                      "each slot at most once");
  }
  return {};
}

/// block_table[request, column], the entry that a row uses. -1 is padding, which gives zeros or
/// -inf; below that, or past the pool, nothing is right.
Status check_entry(const Ids& ids, std::int64_t request, std::int64_t column, std::int64_t page,
                   std::int64_t pages) {
  if (page >= -1 && page < pages) return {};
  return ids.fail("block_table", at(request, column), "page " + std::to_string(page),
                  range(-1, pages - 1));
}

Status check_gather(const Ids& ids, const OperationTensors& op, std::int64_t page_size,
                    const TensorLookup& payload) {
  auto table = ids.input("block_table");
  if (!table) return table.status();
  auto cu_seq_lens = ids.input("cu_seq_lens");
  if (!cu_seq_lens) return cu_seq_lens.status();
  const auto* cu = cu_seq_lens->as<std::int32_t>();
  for (std::int64_t b = 0; b < cu_seq_lens->elements(); ++b)
    if (const std::int64_t least = b ? cu[b - 1] : 0; cu[b] < least)
      return ids.fail("cu_seq_lens", at(b), std::to_string(cu[b]),
                      "at least " + std::to_string(least));

  // The recording itself shows what a bad page gives: k_scale 0. Any producer's will do. A page
  // whose rows are mostly 0 was bad to the producer as well; one that is not is a mismatch to
  // report.
  const TensorInfo* k_scale = nullptr;
  for (const TensorInfo& output : op.outputs)
    if (output.output() == "k_scale") k_scale = &output;
  auto scale = payload(*k_scale);
  if (!scale) return scale.status();

  Tensor row_request;
  if (ids.info(Side::inputs, "row_request")) {
    auto loaded = ids.input("row_request");
    if (!loaded) return loaded.status();
    row_request = std::move(*loaded);
  }
  const std::int64_t rows = k_scale->shape[0];
  const auto of_row = gather_requests(int32s(*cu_seq_lens), int32s(row_request), rows);
  const std::int64_t columns = table->shape[1];
  const std::int64_t pages = ids.info(Side::inputs, "index_cache")->shape[0];
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> excess; // of rows that are not 0
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int64_t b = of_row[static_cast<std::size_t>(j)];
    if (b < 0) continue;
    const std::int64_t column = (j - cu[b]) / page_size;
    if (column >= columns)
      return ids.fail("cu_seq_lens", at(b + 1), std::to_string(cu[b + 1] - cu[b]) + " tokens",
                      "at most the " + std::to_string(columns * page_size) + " of block_table");
    const std::int64_t page = table->as<std::int32_t>()[b * columns + column];
    if (page < -1)
      return ids.fail("block_table", at(b, column), "page " + std::to_string(page),
                      range(0, pages - 1));
    if (page < 0 || page >= pages) excess[{b, column}] += scale->as<float>()[j] != 0 ? 1 : -1;
  }
  for (const auto& [place, count] : excess)
    if (const auto [b, column] = place; count >= 0)
      return ids.fail("block_table", at(b, column),
                      "page " + std::to_string(table->as<std::int32_t>()[b * columns + column]),
                      range(0, pages - 1) + " (its rows' k_scale is not 0)");
  return {};
}

Status check_logits(const Ids& ids, const OperationTensors& op, std::int64_t page_size) {
  auto table = ids.input("block_table");
  if (!table) return table.status();
  auto row_lens = ids.input("row_lens");
  if (!row_lens) return row_lens.status();
  const std::int64_t rows = row_lens->elements();
  const std::int64_t requests = table->shape[0];
  const std::int64_t columns = table->shape[1];
  const std::int64_t pages = ids.info(Side::inputs, "index_cache")->shape[0];
  const std::int64_t keys = op.outputs.front().shape[1];

  Tensor row_request;
  if (ids.info(Side::inputs, "row_request")) {
    auto loaded = ids.input("row_request");
    if (!loaded) return loaded.status();
    row_request = std::move(*loaded);
  } else if (requests == 0 ? rows != 0 : rows % requests != 0) {
    return ids.fail("row_request", "is missing", std::to_string(rows) + " rows",
                    "a multiple of the " + std::to_string(requests) + " rows of block_table");
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t b =
        row_request.shape.empty() ? r / (rows / requests) : row_request.as<std::int32_t>()[r];
    if (b < 0 || b >= requests)
      return ids.fail("row_request", at(r), std::to_string(b), range(0, requests - 1));
    const std::int64_t length = row_lens->as<std::int32_t>()[r];
    if (length > keys)
      return ids.fail("row_lens", at(r), std::to_string(length),
                      "at most the " + std::to_string(keys) + " columns of logits");
    if (length > columns * page_size)
      return ids.fail("row_lens", at(r), std::to_string(length),
                      "at most the " + std::to_string(columns * page_size) +
                          " tokens of a row of block_table");
    for (std::int64_t column = 0; column * page_size < length; ++column)
      DSAKIT_TRY(
          check_entry(ids, b, column, table->as<std::int32_t>()[b * columns + column], pages));
  }
  return {};
}

} // namespace

std::vector<std::int64_t> gather_requests(std::span<const std::int32_t> cu_seq_lens,
                                          std::span<const std::int32_t> row_request,
                                          std::int64_t rows) {
  std::vector<std::int64_t> of_row(static_cast<std::size_t>(rows), -1);
  const auto requests = static_cast<std::int64_t>(cu_seq_lens.size()) - 1;
  for (std::int64_t b = 0; b < requests; ++b) {
    const auto i = static_cast<std::size_t>(b);
    const std::int64_t begin = std::max(cu_seq_lens[i], 0);
    const std::int64_t end = std::min<std::int64_t>(cu_seq_lens[i + 1], rows);
    for (std::int64_t j = begin; j < end; ++j)
      if (row_request.empty() || row_request[static_cast<std::size_t>(j)] == b)
        of_row[static_cast<std::size_t>(j)] = b;
  }
  return of_row;
}

Status check_ids(const OperationTensors& op, const ContractValues& contract,
                 const TensorLookup& payload) {
  const Ids ids(op, payload);
  const auto page_size = [&] { return *parse_page_size(contract); };
  if (op.id.operation == "index_cache_write") return check_write(ids, page_size());
  if (op.id.operation == "index_cache_gather") return check_gather(ids, op, page_size(), payload);
  if (op.id.operation == "index_logits_decode") return check_logits(ids, op, page_size());
  return {};
}

} // namespace dsakit::harness
