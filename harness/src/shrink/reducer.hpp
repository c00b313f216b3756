// Delta debugging of one problem.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "../replay/trial.hpp"
#include "axes.hpp"
#include "dsakit/harness/shrink.hpp"

namespace dsakit::harness {

/// Holds the smallest problem so far that fails in `pair`, and what that comparison said of it.
class Reducer {
public:
  Reducer(const Trial& trial, Pair pair, Problem problem, Outcome outcome,
          const ShrinkProgress& progress)
      : trial_(trial), pair_(std::move(pair)), problem_(std::move(problem)),
        outcome_(std::move(outcome)), progress_(progress) {}

  /// Until nothing more can go.
  void reduce();
  /// Along what outputs are sums of: `mend` makes what is recorded fit the smaller problem.
  void reduce_sums(const std::function<bool(const Problem& from, Problem& to)>& mend);
  /// Takes the candidate's place if it is a problem and fails.
  bool accept(std::optional<Problem> candidate);

  const Problem& problem() const { return problem_; }
  const Outcome& outcome() const { return outcome_; }
  const Pair& pair() const { return pair_; }
  std::int64_t trials() const { return trials_; }
  std::vector<Shrunk::Extent> extents() const;

private:
  Place place() const;
  void cut(const ShrinkAxis& axis,
           const std::function<std::optional<Problem>(const Problem&, const Indices&)>& keep);

  const Trial& trial_;
  Pair pair_;
  Problem problem_;
  Outcome outcome_;
  const ShrinkProgress& progress_;
  std::int64_t trials_ = 0;
  std::vector<Shrunk::Extent> extents_;
};

/// A subset of `all` for which `fails` still says yes, as it does for all of them: none of its
/// pieces, and nothing without one of them, does (Zeller and Hildebrandt, "Simplifying and
/// isolating failure-inducing input", 2002). A piece is an index where few are left, or a 64th.
Indices minimal(Indices all, const std::function<bool(const Indices&)>& fails);

} // namespace dsakit::harness
