// Values that tell nothing of the recorded ones but how they are distributed.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace dsakit::harness {

/// The problem with other values in its inputs: each drawn from all those of its tensor (of a
/// cache: of its codes, its scales, its rotary numbers), place by place, by a counter and the seed.
/// Ids, tables and lengths stay, and so does what is zero throughout a record. Scores that are
/// selected keep their order and nothing else. Outputs are not touched.
Problem scramble(const Problem& problem, std::uint64_t seed);

/// A window of 16 bytes of a tensor of values in `original` that `scrambled` holds as well, unless
/// the window repeats one word of 4 bytes.
bool shares_values(const Problem& original, const Problem& scrambled);

} // namespace dsakit::harness
