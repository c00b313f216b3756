// In which directions the problem of an operation can be made smaller.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "problem.hpp"

namespace dsakit::harness {

/// The first element that is wrong.
struct Place {
  std::string output;           ///< canonical
  std::vector<std::int64_t> at; ///< empty: unknown
};

/// Positions of which some are enough.
struct ShrinkAxis {
  std::string name; ///< "rows"
  std::function<std::int64_t(const Problem&)> extent;
  /// With those positions alone; nothing where that is no problem. What is recorded stays right or
  /// wrong as it was.
  std::function<std::optional<Problem>(const Problem&, const Indices&)> keep;
  /// Positions that are likely to be enough; empty: unknown.
  std::function<Indices(const Problem&, const Place&)> guess;
};

/// Something that can be left out, or not.
using Tidying = std::function<std::optional<Problem>(const Problem&, const Place&)>;

/// In the order in which they are best tried.
std::vector<ShrinkAxis> axes_of(const Problem& problem);
std::vector<Tidying> tidyings_of(const Problem& problem);
/// What outputs are sums over: with fewer positions the right output is another one, so that
/// nothing recorded can be compared with it. The shapes of outputs stay.
std::vector<ShrinkAxis> sums_of(const Problem& problem);

/// An extent of kTensorRules along which elements do not depend on one another.
ShrinkAxis extent_axis(const std::string& extent);

// dense.cpp
ShrinkAxis output_columns();         ///< of a projection
ShrinkAxis index_query_heads();      ///< of index_q_proj
ShrinkAxis absorbed_heads();         ///< of absorb_q and absorb_v
ShrinkAxis latent_columns();         ///< of absorb_q
ShrinkAxis value_columns();          ///< of absorb_v
ShrinkAxis rows_of_the_other_half(); ///< of kv_b: W_UV for absorb_q, W_UK for absorb_v

// pages.cpp
ShrinkAxis written_tokens(); ///< of a cache write
ShrinkAxis written_pages();  ///< of a cache write
ShrinkAxis requests();       ///< of what has a block_table
ShrinkAxis gathered_requests();
ShrinkAxis table_columns(); ///< of index_logits_decode and the gather: pages of every request
ShrinkAxis read_pages();    ///< of a pool that is only read
std::optional<Problem> blank_unwritten(const Problem& problem, const Place& place);
std::optional<Problem> pack_slots(const Problem& problem, const Place& place);
std::optional<Problem> name_row_requests(const Problem& problem, const Place& place);

// keys.cpp
ShrinkAxis prefill_keys();
ShrinkAxis scored_keys();      ///< of topk: those that nothing selects
ShrinkAxis slot_columns();     ///< of sparse_attention: -1 in every row
ShrinkAxis position_columns(); ///< of topk_slots
ShrinkAxis attended_keys();    ///< of sparse_attention, a sum
std::optional<Problem> cut_row_ends(const Problem& problem, const Place& place);
std::optional<Problem> blank_candidates(const Problem& problem, const Place& place);

} // namespace dsakit::harness
