// Recorded outputs of inputs that are no longer the recorded ones.
#pragma once

#include "../replay/trial.hpp"
#include "problem.hpp"

namespace dsakit::harness {

/// What is the same of an error when values change.
enum class Carried : std::uint8_t {
  ratio, ///< of wrong and right, as of a wrong scale
  gates, ///< the difference in units of its gate: what failed fails
};

/// Makes the outputs of `to`, which have the shapes of those of `from`, the reference's; if `pair`
/// judges a recorded tensor, with the errors that it has in `from`, element by element, since its
/// producer cannot be run again: numbers as `carried` says, other wrong bits inverted again, which
/// is also how a number held to the reference's very bits differs by other than a ratio. False
/// where the reference takes no such problem.
bool mend_outputs(const Pair& pair, Gate gate, Carried carried, const Problem& from, Problem& to);

} // namespace dsakit::harness
