// Projections and absorptions: rows of a weight are columns of an output.
#include <utility>

#include "../replay/names.hpp"
#include "axes.hpp"
#include "dsakit/reference/dense.hpp"

namespace dsakit::harness {
namespace {

Tensor& only_output(Problem& problem) {
  return problem.tensors.outputs.begin()->second.tensor;
}
const Tensor& only_output(const Problem& problem) {
  return problem.tensors.outputs.begin()->second.tensor;
}

/// Cuts the scales of blocks of 128: nothing where a block of kept positions had several.
bool keep_blocks(Tensor& scale, std::size_t axis, const Indices& kept) {
  Indices blocks;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::int64_t block = kept[i] / reference::kWeightBlock;
    if (i % reference::kWeightBlock == 0) blocks.push_back(block);
    if (blocks.back() != block) return false;
  }
  keep(scale, axis, blocks);
  return true;
}

bool keep_weight_rows(Problem& problem, const Indices& kept) {
  keep(problem.input("weight"), 0, kept);
  if (!problem.has("weight_scale")) return true;
  Tensor& scale = problem.input("weight_scale");
  if (scale.shape.size() == 2) return keep_blocks(scale, 0, kept);
  keep(scale, 0, kept);
  return true;
}

bool keep_weight_columns(Problem& problem, const Indices& kept) {
  keep(problem.input("weight"), 1, kept);
  if (!problem.has("weight_scale") || problem.input("weight_scale").shape.size() != 2) return true;
  return keep_blocks(problem.input("weight_scale"), 1, kept);
}

std::optional<Problem> if_possible(bool possible, Problem&& problem) {
  return possible ? std::optional(std::move(problem)) : std::nullopt;
}

/// first, first + 1, ...
void append(Indices& indices, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    indices.push_back(first + i);
}

/// Rows of a head in kv_b: W_UK, then W_UV, of which the operation takes one.
struct Head {
  std::int64_t heads, rows, taken; ///< rows of the head, and those that are taken
  bool takes_first;                ///< absorb_q takes W_UK

  std::int64_t first_taken() const { return takes_first ? 0 : rows - taken; }
  std::int64_t first_other() const { return takes_first ? taken : 0; }
};

Head head_of(const Problem& problem) {
  const bool of_q = problem.has("q");
  const Tensor& x = problem.input(of_q ? "q" : "latent");
  const Tensor& y = only_output(problem);
  const std::int64_t heads = x.shape[1];
  const Tensor& weight = problem.input("weight");
  const std::int64_t taken =
      of_q ? x.shape[2] - (y.shape[2] - weight.shape[1]) : y.shape[1] / heads;
  return {heads, weight.shape[0] / heads, taken, of_q};
}

} // namespace

ShrinkAxis output_columns() {
  return {"outputs", [](const Problem& p) { return p.input("weight").shape[0]; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const bool possible = keep_weight_rows(smaller, kept);
            Tensor& y = only_output(smaller);
            const bool has_heads = y.shape.size() == 3;
            y.shape = {y.shape[0], p.input("weight").shape[0]};
            keep(y, 1, kept);
            if (has_heads) y.shape = {y.shape[0], 1, y.shape[1]};
            return if_possible(possible, std::move(smaller));
          },
          [](const Problem& p, const Place& place) -> Indices {
            if (place.at.size() == 2) return {place.at[1]};
            if (place.at.size() == 3) return {place.at[1] * only_output(p).shape[2] + place.at[2]};
            return {};
          }};
}

ShrinkAxis index_query_heads() {
  return {"heads", [](const Problem& p) { return only_output(p).shape[1]; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const std::int64_t dim = only_output(p).shape[2];
            Indices rows;
            for (const std::int64_t head : kept)
              append(rows, head * dim, dim);
            const bool possible = keep_weight_rows(smaller, rows);
            keep(only_output(smaller), 1, kept);
            return if_possible(possible, std::move(smaller));
          },
          [](const Problem&, const Place& place) {
            return place.at.empty() ? Indices{} : Indices{place.at[1]};
          }};
}

ShrinkAxis absorbed_heads() {
  return {"heads", [](const Problem& p) { return head_of(p).heads; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const Head head = head_of(p);
            Indices rows, columns;
            for (const std::int64_t h : kept) {
              append(rows, h * head.rows, head.rows);
              append(columns, h * head.taken, head.taken);
            }
            const bool possible = keep_weight_rows(smaller, rows);
            keep(smaller.input(head.takes_first ? "q" : "latent"), 1, kept);
            keep(only_output(smaller), 1, head.takes_first ? kept : columns);
            return if_possible(possible, std::move(smaller));
          },
          [](const Problem& p, const Place& place) {
            const Head head = head_of(p);
            if (place.at.empty()) return Indices{};
            return Indices{head.takes_first ? place.at[1] : place.at[1] / head.taken};
          }};
}

ShrinkAxis latent_columns() {
  return {"latent columns", [](const Problem& p) { return p.input("weight").shape[1]; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const std::int64_t latent = p.input("weight").shape[1];
            const bool possible = keep_weight_columns(smaller, kept);
            Tensor& y = only_output(smaller);
            Indices columns = kept;
            append(columns, latent, y.shape[2] - latent); // q_pe beside it
            keep(y, 2, columns);
            return if_possible(possible, std::move(smaller));
          },
          [](const Problem& p, const Place& place) {
            if (place.at.empty()) return Indices{};
            return Indices{place.at[2] < p.input("weight").shape[1] ? place.at[2] : 0};
          }};
}

ShrinkAxis value_columns() {
  return {"value columns", [](const Problem& p) { return head_of(p).taken; },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const Head head = head_of(p);
            Indices rows, columns;
            for (std::int64_t h = 0; h < head.heads; ++h) {
              append(rows, h * head.rows, head.rows - head.taken);
              for (const std::int64_t value : kept) {
                rows.push_back(h * head.rows + head.first_taken() + value);
                columns.push_back(h * head.taken + value);
              }
            }
            const bool possible = keep_weight_rows(smaller, rows);
            keep(only_output(smaller), 1, columns);
            return if_possible(possible, std::move(smaller));
          },
          [](const Problem& p, const Place& place) {
            return place.at.empty() ? Indices{} : Indices{place.at[1] % head_of(p).taken};
          }};
}

ShrinkAxis rows_of_the_other_half() {
  return {"weight rows not used",
          [](const Problem& p) {
            const Head head = head_of(p);
            return head.rows - head.taken;
          },
          [](const Problem& p, const Indices& kept) {
            Problem smaller = p;
            const Head head = head_of(p);
            Indices rows;
            for (std::int64_t h = 0; h < head.heads; ++h) {
              const std::int64_t first = h * head.rows;
              if (head.takes_first) append(rows, first, head.taken);
              for (const std::int64_t other : kept)
                rows.push_back(first + head.first_other() + other);
              if (!head.takes_first) append(rows, first + head.first_taken(), head.taken);
            }
            return if_possible(keep_weight_rows(smaller, rows), std::move(smaller));
          },
          [](const Problem&, const Place&) { return Indices{0}; }};
}

} // namespace dsakit::harness
