#include "reducer.hpp"

#include <algorithm>

namespace dsakit::harness {
namespace {

constexpr std::size_t kMostPieces = 64; // so that a long axis ends after some hundred trials

/// Piece `i` of `n`, or everything else.
Indices piece(const Indices& all, std::size_t i, std::size_t n, bool complement) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(all.size() * i / n);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(all.size() * (i + 1) / n);
  if (!complement) return {begin, end};
  Indices rest(all.begin(), begin);
  rest.insert(rest.end(), end, all.end());
  return rest;
}

/// The first piece, or complement of one, that fails.
std::optional<Indices> find_failing(const Indices& all, std::size_t n, bool complement,
                                    const std::function<bool(const Indices&)>& fails) {
  for (std::size_t i = 0; i < n; ++i)
    if (Indices part = piece(all, i, n, complement); fails(part)) return part;
  return std::nullopt;
}

} // namespace

Indices minimal(Indices all, const std::function<bool(const Indices&)>& fails) {
  std::size_t pieces = 2;
  while (all.size() > 1) {
    pieces = std::min(pieces, all.size());
    if (auto part = find_failing(all, pieces, false, fails)) {
      all = std::move(*part);
      pieces = 2;
    } else if (auto rest = pieces > 2 ? find_failing(all, pieces, true, fails) : std::nullopt) {
      all = std::move(*rest);
      --pieces;
    } else {
      if (pieces >= std::min(all.size(), kMostPieces)) break;
      pieces = std::min(2 * pieces, kMostPieces);
    }
  }
  return all;
}

bool Reducer::accept(std::optional<Problem> candidate) {
  if (!candidate || !check(*candidate)) return false;
  ++trials_;
  auto outcome = trial_.run(candidate->data(), pair_);
  const bool same =
      outcome && outcome->fails && outcome->kernel_status.code() == outcome_.kernel_status.code();
  if (same) {
    problem_ = std::move(*candidate);
    outcome_ = std::move(*outcome);
  }
  if (progress_) progress_(trials_, problem_.bytes());
  return same;
}

Place Reducer::place() const {
  Place place{pair_.output, {}};
  if (outcome_.comparison && outcome_.comparison->first)
    place.at = coordinates(outcome_.shape, *outcome_.comparison->first);
  return place;
}

void Reducer::cut(
    const ShrinkAxis& axis,
    const std::function<std::optional<Problem>(const Problem&, const Indices&)>& keep) {
  const std::int64_t extent = axis.extent(problem_);
  if (extent <= 1) return;
  const Problem whole = problem_;
  Indices kept = all_of(extent);
  const Indices likely = axis.guess(whole, place());
  if (!likely.empty() && likely.size() < kept.size() && accept(keep(whole, likely))) kept = likely;
  kept = minimal(std::move(kept), [&](const Indices& some) { return accept(keep(whole, some)); });

  const auto now = static_cast<std::int64_t>(kept.size());
  if (now == extent) return;
  const auto known = std::find_if(extents_.begin(), extents_.end(),
                                  [&](const auto& e) { return e.name == axis.name; });
  if (known == extents_.end())
    extents_.push_back({axis.name, extent, now});
  else
    known->to = now;
}

void Reducer::reduce() {
  for (std::int64_t before = problem_.bytes() + 1; problem_.bytes() < before;) {
    before = problem_.bytes();
    for (const ShrinkAxis& axis : axes_of(problem_))
      cut(axis, axis.keep);
    for (const Tidying& tidy : tidyings_of(problem_))
      accept(tidy(problem_, place()));
  }
}

void Reducer::reduce_sums(const std::function<bool(const Problem&, Problem&)>& mend) {
  for (const ShrinkAxis& axis : sums_of(problem_))
    cut(axis, [&](const Problem& from, const Indices& kept) {
      auto smaller = axis.keep(from, kept);
      return smaller && mend(from, *smaller) ? std::move(smaller) : std::nullopt;
    });
}

std::vector<Shrunk::Extent> Reducer::extents() const {
  return extents_;
}

} // namespace dsakit::harness
