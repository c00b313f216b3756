// Keys of logits, of a selection and of attention.
#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "../replay/names.hpp"
#include "axes.hpp"

namespace dsakit::harness {
namespace {

std::int32_t* ids_in(Tensor& tensor) {
  return tensor.as<std::int32_t>();
}
const std::int32_t* ids_in(const Tensor& tensor) {
  return tensor.as<std::int32_t>();
}

/// How many of `kept` lie before `position`.
std::int32_t before(const Indices& kept, std::int64_t position) {
  return static_cast<std::int32_t>(std::lower_bound(kept.begin(), kept.end(), position) -
                                   kept.begin());
}

/// The positions that the reference or a recorded producer selects.
std::set<std::int64_t> selected(const Problem& problem, std::int64_t positions) {
  std::set<std::int64_t> all;
  const auto note = [&](const Tensor& ids) {
    for (std::int64_t i = 0; i < ids.elements(); ++i)
      if (const std::int32_t id = ids_in(ids)[i]; id >= 0 && id < positions) all.insert(id);
  };
  if (const auto expected = find_adapter(problem.id.operation)->reference(problem.data()))
    for (const Expected& output : *expected)
      if (output.output == "topk_indices") note(output.value.tensor);
  for (const auto& [name, recorded] : problem.tensors.outputs)
    if (output_of(name, recorded.attributes) == "topk_indices") note(recorded.tensor);
  return all;
}

/// Columns in which some row has a slot.
Indices columns_with_slots(const Tensor& slots) {
  Indices columns;
  for (std::int64_t column = 0; column < slots.shape[1]; ++column)
    for (std::int64_t row = 0; row < slots.shape[0]; ++row)
      if (ids_in(slots)[row * slots.shape[1] + column] >= 0) {
        columns.push_back(column);
        break;
      }
  if (columns.empty()) columns.push_back(0);
  return columns;
}

} // namespace

ShrinkAxis prefill_keys() {
  return {"keys", [](const Problem& p) { return p.input("k_scale").shape[0]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            Problem smaller = p;
            const std::int64_t rows = p.input("ks").elements();
            Tensor& ks = smaller.input("ks");
            Tensor& ke = smaller.input("ke");
            const auto origin = [&](const Problem& of, std::int64_t row) {
              return of.has("column_origin") ? ids_in(of.input("column_origin"))[row] : 0;
            };
            std::int64_t columns = 1;
            for (std::int64_t row = 0; row < rows; ++row) {
              ids_in(ks)[row] = before(kept, ids_in(p.input("ks"))[row]);
              ids_in(ke)[row] = before(kept, ids_in(p.input("ke"))[row]);
              if (p.has("column_origin"))
                ids_in(smaller.input("column_origin"))[row] = before(kept, origin(p, row));
              columns = std::max<std::int64_t>(columns, ids_in(ke)[row] - origin(smaller, row));
            }
            for (auto& [name, recorded] : smaller.tensors.outputs) {
              const Tensor& old = p.tensors.outputs.at(name).tensor;
              Tensor logits(Dtype::float32, {rows, columns});
              std::fill_n(logits.as<float>(), logits.elements(),
                          -std::numeric_limits<float>::infinity());
              for (std::int64_t row = 0; row < rows; ++row)
                for (std::int64_t key = ids_in(ks)[row]; key < ids_in(ke)[row]; ++key)
                  logits.as<float>()[row * columns + key - origin(smaller, row)] =
                      old.as<float>()[row * old.shape[1] + kept[static_cast<std::size_t>(key)] -
                                      origin(p, row)];
              recorded.tensor = std::move(logits);
            }
            keep_extent(smaller, "keys", kept);
            return smaller;
          },
          [](const Problem& p, const Place& place) {
            if (place.at.empty()) return Indices{};
            const std::int64_t origin =
                p.has("column_origin") ? ids_in(p.input("column_origin"))[place.at[0]] : 0;
            return Indices{place.at[1] + origin};
          }};
}

ShrinkAxis scored_keys() {
  return {"keys", [](const Problem& p) { return p.input("logits").shape[1]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            const std::int64_t keys = p.input("logits").shape[1];
            const auto wanted = selected(p, keys);
            if (!std::includes(kept.begin(), kept.end(), wanted.begin(), wanted.end()))
              return std::nullopt;
            Problem smaller = p;
            keep_extent(smaller, "keys", kept);
            Tensor& lens = smaller.input("row_lens");
            for (std::int64_t row = 0; row < lens.elements(); ++row)
              ids_in(lens)[row] = before(kept, ids_in(lens)[row]);
            for (auto& [name, recorded] : smaller.tensors.outputs)
              if (output_of(name, recorded.attributes) == "topk_indices")
                renumber(recorded.tensor, kept, keys, [](std::int64_t) { return true; });
            return smaller;
          },
          [](const Problem& p, const Place&) {
            auto keys = selected(p, p.input("logits").shape[1]);
            if (keys.empty()) keys.insert(0);
            return Indices(keys.begin(), keys.end());
          }};
}

ShrinkAxis slot_columns() {
  return {"slots a row", [](const Problem& p) { return p.input("slots").shape[1]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            const Indices wanted = columns_with_slots(p.input("slots"));
            if (!std::includes(kept.begin(), kept.end(), wanted.begin(), wanted.end()))
              return std::nullopt;
            Problem smaller = p;
            keep(smaller.input("slots"), 1, kept);
            return smaller;
          },
          [](const Problem& p, const Place&) { return columns_with_slots(p.input("slots")); }};
}

ShrinkAxis position_columns() {
  return {"positions a row", [](const Problem& p) { return p.input("topk_indices").shape[1]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            // A compact list and its length depend on the whole row.
            if (p.data().find_output("compact_slots") || p.data().find_output("counts"))
              return std::nullopt;
            Problem smaller = p;
            keep_extent(smaller, "k", kept);
            return smaller;
          },
          [](const Problem&, const Place& place) {
            return place.at.size() == 2 ? Indices{place.at[1]} : Indices{};
          }};
}

ShrinkAxis attended_keys() {
  return {"keys", [](const Problem& p) { return p.input("slots").shape[1]; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            keep(smaller.input("slots"), 1, kept);
            return std::optional(std::move(smaller));
          },
          [](const Problem&, const Place&) { return Indices{0}; }};
}

/// Decode logits end behind the first wrong key.
std::optional<Problem> cut_row_ends(const Problem& problem, const Place& place) {
  if (place.at.empty() || place.at[1] + 1 >= extent_of(problem, "keys")) return std::nullopt;
  const std::int64_t keys = place.at[1] + 1;
  Problem smaller = problem;
  keep_extent(smaller, "keys", all_of(keys));
  Tensor& lens = smaller.input("row_lens");
  for (std::int64_t row = 0; row < lens.elements(); ++row)
    ids_in(lens)[row] = std::min(ids_in(lens)[row], static_cast<std::int32_t>(keys));
  return smaller;
}

/// Candidates that neither side selects become none.
std::optional<Problem> blank_candidates(const Problem& problem, const Place&) {
  Problem smaller = problem;
  Tensor& ids = smaller.input("rank_indices");
  Tensor& scores = smaller.input("rank_scores");
  const auto wanted = selected(problem, std::numeric_limits<std::int32_t>::max());
  bool changes = false;
  for (std::int64_t i = 0; i < ids.elements(); ++i)
    if (ids_in(ids)[i] >= 0 && !wanted.contains(ids_in(ids)[i])) {
      ids_in(ids)[i] = -1;
      scores.as<float>()[i] = -std::numeric_limits<float>::infinity();
      changes = true;
    }
  return changes ? std::optional(std::move(smaller)) : std::nullopt;
}

} // namespace dsakit::harness
