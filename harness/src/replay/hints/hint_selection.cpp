// Hints about positions and slots.
#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "failure.hpp"

namespace dsakit::harness {
namespace {

bool holds_ids(const Failure& f) {
  return f.wrong.dtype() == Dtype::int32 && f.wrong.shape().size() == 2;
}

/// Rows with a wrong element, ascending.
std::set<std::int64_t> wrong_rows(const Failure& f) {
  std::set<std::int64_t> rows;
  const std::int64_t width =
      f.wrong.shape().empty() ? 1 : f.wrong.right_tensor().elements() / f.wrong.shape()[0];
  for (const std::int64_t i : f.wrong.at())
    rows.insert(i / width);
  return rows;
}

/// Each wrong row holds the right ids in another order.
bool same_ids_in_another_order(const Failure& f) {
  const std::set<std::int64_t> rows = wrong_rows(f);
  const std::int64_t k = f.wrong.shape()[1];
  const auto sorted = [&](const Tensor& ids, std::int64_t row) {
    const std::int32_t* first = ids.as<std::int32_t>() + row * k;
    std::vector<std::int32_t> of_row(first, first + k);
    std::sort(of_row.begin(), of_row.end());
    return of_row;
  };
  return f.wrong.at().size() >= kEnough &&
         std::all_of(rows.begin(), rows.end(), [&](std::int64_t row) {
           return sorted(f.wrong.odd_tensor(), row) == sorted(f.wrong.right_tensor(), row);
         });
}

/// The first wrong row of a selection in which an id follows -1, which never is right: those that
/// are left over come last.
std::optional<std::int64_t> padding_before_ids(const Failure& f) {
  if (f.c.output != "topk_indices") return std::nullopt;
  const std::int64_t k = f.wrong.shape()[1];
  for (const std::int64_t row : wrong_rows(f)) {
    const std::int32_t* ids = f.wrong.odd_tensor().as<std::int32_t>() + row * k;
    const std::int32_t* padding = std::find(ids, ids + k, -1);
    if (std::any_of(padding, ids + k, [](std::int32_t id) { return id >= 0; })) return row;
  }
  return std::nullopt;
}

/// Each wrong row has places left over, and holds all of its right ids and others besides.
bool ids_beyond_the_right_ones(const Failure& f) {
  const std::int64_t k = f.wrong.shape()[1];
  const std::set<std::int64_t> rows = wrong_rows(f);
  return std::all_of(rows.begin(), rows.end(), [&](std::int64_t row) {
    const auto ids_of = [&](const Tensor& ids) {
      const std::int32_t* first = ids.as<std::int32_t>() + row * k;
      std::vector<std::int32_t> of_row;
      std::copy_if(first, first + k, std::back_inserter(of_row),
                   [](std::int32_t id) { return id != -1; });
      std::sort(of_row.begin(), of_row.end());
      return of_row;
    };
    const auto odd = ids_of(f.wrong.odd_tensor()), right = ids_of(f.wrong.right_tensor());
    return odd.size() > right.size() &&
           std::includes(odd.begin(), odd.end(), right.begin(), right.end());
  });
}

/// What stands where another id belongs has the same score.
bool same_scores(const Failure& f) {
  const Tensor& logits = f.data.input("logits");
  const std::int64_t k = f.wrong.shape()[1], columns = logits.shape[1];
  return f.wrong.nearly_all([&](std::int64_t i) {
    const auto odd = f.wrong.odd_tensor().as<std::int32_t>()[i];
    const auto right = f.wrong.right_tensor().as<std::int32_t>()[i];
    if (odd < 0 || odd >= columns || right < 0) return false;
    const float* row = logits.as<float>() + i / k * columns;
    return row[odd] == row[right]; // -0 and 0 as well: they rank as one
  });
}

/// Whether each row uses all k places; empty where the operation selects nothing.
std::vector<bool> rows_beyond_k(const OperationData& data) {
  std::vector<bool> beyond;
  const Tensor* lens = data.optional_input("row_lens");
  if (data.id.operation == "topk" && lens) {
    const std::int64_t k = data.output("topk_indices").tensor.shape[1];
    for (std::int64_t row = 0; row < lens->elements(); ++row)
      beyond.push_back(lens->as<std::int32_t>()[row] > k);
    return beyond;
  }
  const Tensor* ids = data.id.operation == "sparse_attention" ? data.optional_input("slots")
                      : data.id.operation == "topk_slots"     ? data.optional_input("topk_indices")
                                                              : nullptr;
  if (!ids) return beyond;
  const std::int64_t k = ids->shape[1];
  for (std::int64_t row = 0; row < ids->shape[0]; ++row) {
    const std::int32_t* first = ids->as<std::int32_t>() + row * k;
    beyond.push_back(std::all_of(first, first + k, [](std::int32_t id) { return id >= 0; }));
  }
  return beyond;
}

} // namespace

Hint selection(const Failure& f) {
  const WrongElements& wrong = f.wrong;
  if (f.c.output == "dcp_scores" && wrong.nearly_all([&](std::int64_t i) {
        return wrong.right(i) == -std::numeric_limits<double>::infinity();
      }))
    return f.whose_from() + " stand where there is nothing left (-inf): scores beyond the row";
  if (!holds_ids(f)) return {};
  // One is enough: nothing but -1 may stand there.
  if (wrong.nearly_all([&](std::int64_t i) { return wrong.right(i) == -1 && wrong.odd(i) == 0; },
                       1))
    return whose(f.c) + " are 0 where -1 belongs: token 0 is read in place of nothing";
  if (wrong.nearly_all([&](std::int64_t i) { return wrong.right(i) == -1; }, 1))
    return f.whose_from() + " stand where there is nothing left (-1): a stale tail";
  if (ids_beyond_the_right_ones(f))
    return f.whose_from() +
           " hold the right ids and others in the places of -1: a stale tail, sorted in";
  if (wrong.nearly_all([&](std::int64_t i) { return wrong.odd(i) == -1 && wrong.right(i) >= 0; }))
    return whose(f.c) + " are -1 where an id belongs: padding counts, or ids are lost";
  if (const auto row = padding_before_ids(f))
    return "in row " + std::to_string(*row) + " of " + whose(f.c) +
           " -1 stands before ids: padding counts as a candidate";
  if (f.data.id.operation == "topk" && same_scores(f))
    return whose(f.c) + " have the scores of the right ids: another rule for ties";
  if (same_ids_in_another_order(f)) return whose(f.c) + " are the right ids in another order";
  return {};
}

Hint rows_of_more_than_k(const Failure& f) {
  const std::vector<bool> beyond = rows_beyond_k(f.data);
  const std::set<std::int64_t> wrong = wrong_rows(f);
  const auto rows = static_cast<double>(beyond.size());
  const auto longer = static_cast<double>(std::count(beyond.begin(), beyond.end(), true));
  // How often so many rows, drawn from all of them, would all be among the longer ones.
  double by_chance = 1;
  double drawn = 0;
  for (const std::int64_t row : wrong) {
    if (static_cast<std::size_t>(row) >= beyond.size() || !beyond[static_cast<std::size_t>(row)])
      return {};
    by_chance *= (longer - drawn) / (rows - drawn);
    ++drawn;
  }
  if (wrong.empty() || by_chance >= kByChance) return {};
  return f.data.id.operation == "topk"
             ? "only rows of more than k keys are wrong: what is done where not every key is taken"
             : "only rows that use all k places are wrong: rows of k keys and more";
}

} // namespace dsakit::harness
