#include "structure.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "dsakit/reference/context_parallel.hpp"
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

/// Slots of a cache that is written with rows of `rows`.
Status check_write(const Ids& ids, std::string_view rows, std::string_view cache,
                   std::int64_t page_size) {
  auto slots = ids.input("slot_mapping");
  if (!slots) return slots.status();
  const std::int64_t tokens = slots->elements();
  const TensorInfo& written = *ids.info(Side::inputs, rows);
  if (written.shape[0] < tokens)
    return ids.fail(rows, "axis 0", std::to_string(written.shape[0]) + " rows",
                    "at least the " + std::to_string(tokens) + " of slot_mapping");
  const std::int64_t pool = ids.info(Side::inputs, cache)->shape[0] * page_size;
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

/// The scale of a gathered row, fp32 or four e8m0 bytes, is not what a bad page gives.
bool has_scale(const Tensor& scale, std::int64_t row) {
  if (scale.dtype == Dtype::float32) return scale.as<float>()[row] != 0;
  const auto* groups = scale.as<std::uint8_t>() + row * 4;
  return std::any_of(groups, groups + 4, [](std::uint8_t byte) { return byte != 0; });
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
  if (const std::int64_t last = cu_seq_lens->elements() - 1; cu[last] > rows)
    return ids.fail("cu_seq_lens", at(last), std::to_string(cu[last]),
                    "at most the " + std::to_string(rows) + " gathered rows");
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
    if (page < 0 || page >= pages) excess[{b, column}] += has_scale(*scale, j) ? 1 : -1;
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

/// Windows [ks, ke) of rows that have one: keys that exist, in columns that exist.
Status check_windows(const Ids& ids, const OperationTensors& op) {
  auto ks = ids.input("ks");
  if (!ks) return ks.status();
  auto ke = ids.input("ke");
  if (!ke) return ke.status();
  Tensor origin(Dtype::int32, ks->shape);
  if (ids.info(Side::inputs, "column_origin")) {
    auto loaded = ids.input("column_origin");
    if (!loaded) return loaded.status();
    origin = std::move(*loaded);
  }
  const std::int64_t keys = ids.info(Side::inputs, "k_scale")->shape[0];
  const std::int64_t columns = op.outputs.front().shape[1];
  for (std::int64_t r = 0; r < ks->elements(); ++r) {
    const std::int64_t first = ks->as<std::int32_t>()[r], end = ke->as<std::int32_t>()[r];
    if (first >= end) continue;
    if (first < 0) return ids.fail("ks", at(r), std::to_string(first), range(0, keys - 1));
    if (end > keys) return ids.fail("ke", at(r), std::to_string(end), range(0, keys));
    const std::int64_t column = origin.as<std::int32_t>()[r];
    if (column > first)
      return ids.fail("column_origin", at(r), std::to_string(column),
                      "at most the first key, " + std::to_string(first));
    if (end - column > columns)
      return ids.fail("ke", at(r), std::to_string(end - column) + " columns",
                      "at most the " + std::to_string(columns) + " of logits");
  }
  return {};
}

Status check_row_lens(const Ids& ids) {
  auto row_lens = ids.input("row_lens");
  if (!row_lens) return row_lens.status();
  const std::int64_t keys = ids.info(Side::inputs, "logits")->shape[1];
  for (std::int64_t r = 0; r < row_lens->elements(); ++r)
    if (const std::int64_t length = row_lens->as<std::int32_t>()[r]; length > keys)
      return ids.fail("row_lens", at(r), std::to_string(length),
                      "at most the " + std::to_string(keys) + " columns of logits");
  return {};
}

/// Whose slots they are.
std::int64_t rank_of_slots(const OperationTensors& op) {
  for (const TensorInfo& output : op.outputs)
    if (const auto rank = output.attributes.find("dcp_rank"); rank != output.attributes.end())
      return std::strtoll(rank->second.c_str(), nullptr, 10); // check_operation saw to its digits
  return 0;
}

/// Positions, where the recording says how long their rows are, and their entries of the table.
/// Without that anything may stand there: what has no slot becomes -1 by definition (spec 5.1). The
/// table holds a rank's share, of which the first rank's is the largest.
Status check_positions(const Ids& ids, std::int64_t page_size, reference::DcpRank dcp) {
  if (!ids.info(Side::inputs, "row_lens")) return {};
  auto row_lens = ids.input("row_lens");
  if (!row_lens) return row_lens.status();
  auto indices = ids.input("topk_indices");
  if (!indices) return indices.status();
  auto row_request = ids.input("row_request");
  if (!row_request) return row_request.status();
  auto block_table = ids.input("block_table");
  if (!block_table) return block_table.status();
  const Shape& table = block_table->shape;
  const std::int64_t k = indices->shape[1];
  for (std::int64_t r = 0; r < indices->shape[0]; ++r) {
    const std::int64_t length = row_lens->as<std::int32_t>()[r];
    if (reference::dcp_local_length({dcp.world, dcp.interleave, 0}, length) > table[1] * page_size)
      return ids.fail("row_lens", at(r), std::to_string(length),
                      "at most the " + std::to_string(table[1] * page_size) +
                          " tokens of a row of block_table");
    const std::int64_t request = row_request->as<std::int32_t>()[r];
    if (length > 0 && (request < 0 || request >= table[0]))
      return ids.fail("row_request", at(r), std::to_string(request), range(0, table[0] - 1));
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t position = indices->as<std::int32_t>()[r * k + i];
      if (position == -1) continue;
      if (position < 0 || position >= length)
        return ids.fail("topk_indices", at(r, i), "position " + std::to_string(position),
                        range(-1, std::max<std::int64_t>(length, 0) - 1));
      if (reference::dcp_owner(dcp, position) != dcp.rank) continue;
      const std::int64_t column = reference::dcp_local_index(dcp, position) / page_size;
      if (const std::int64_t page = block_table->as<std::int32_t>()[request * table[1] + column];
          page < -1)
        return ids.fail("block_table", at(request, column), "page " + std::to_string(page),
                        "-1 or a page");
    }
  }
  return {};
}

/// Candidates of all ranks: a position is held by one of them.
Status check_candidates(const Ids& ids) {
  auto indices = ids.input("rank_indices");
  if (!indices) return indices.status();
  const Shape& shape = indices->shape;
  for (std::int64_t row = 0; row < shape[1]; ++row) {
    std::set<std::int32_t> taken;
    for (std::int64_t rank = 0; rank < shape[0]; ++rank)
      for (std::int64_t i = 0; i < shape[2]; ++i) {
        const std::int32_t position =
            indices->as<std::int32_t>()[(rank * shape[1] + row) * shape[2] + i];
        const std::string where = to_string(Shape{rank, row, i});
        if (position < -1)
          return ids.fail("rank_indices", where, "position " + std::to_string(position),
                          "-1 or a position");
        if (position >= 0 && !taken.insert(position).second)
          return ids.fail("rank_indices", where, "position " + std::to_string(position) + " again",
                          "each position of a row at most once");
      }
  }
  return {};
}

Status check_slots(const Ids& ids) {
  auto slots = ids.input("slots");
  if (!slots) return slots.status();
  const Shape& cache = ids.info(Side::inputs, "mla_cache")->shape; // its last axis is a record
  const std::int64_t pool =
      std::accumulate(cache.begin(), cache.end() - 1, std::int64_t{1}, std::multiplies<>());
  const std::int64_t k = slots->shape[1];
  for (std::int64_t i = 0; i < slots->elements(); ++i)
    if (const std::int64_t slot = slots->as<std::int32_t>()[i]; slot < -1 || slot >= pool)
      return ids.fail("slots", at(i / k, i % k), "slot " + std::to_string(slot),
                      range(-1, pool - 1));
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
  const std::string& operation = op.id.operation;
  if (operation == "index_cache_write")
    return check_write(ids, "index_k", "index_cache", page_size());
  if (operation == "index_cache_gather") return check_gather(ids, op, page_size(), payload);
  if (operation == "index_logits_prefill") return check_windows(ids, op);
  if (operation == "index_logits_decode") return check_logits(ids, op, page_size());
  if (operation == "topk") return check_row_lens(ids);
  if (operation == "mla_cache_write") return check_write(ids, "kv_c", "mla_cache", page_size());
  if (operation == "dcp_topk_merge") return check_candidates(ids);
  if (operation == "topk_slots")
    return check_positions(
        ids, page_size(),
        {*parse_dcp_world(contract), *parse_dcp_interleave(contract), rank_of_slots(op)});
  if (operation == "sparse_attention") return check_slots(ids);
  return {};
}

} // namespace dsakit::harness
