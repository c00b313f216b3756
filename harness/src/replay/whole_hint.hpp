// The hint of a recording of which shrink left a small part: a pattern needs more elements than
// that may have, and what a few elements look like may be wrong.
#pragma once

#include <string>

#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

/// Key of the provenance of a small recording: "TENSOR: HINT", or "TENSOR: none".
inline constexpr const char* kWholeHint = "hint";

/// Nothing in it is not in `of_the_whole` too, counts and places aside.
bool is_part_of_hint(const std::string& hint, const std::string& of_the_whole);

/// `found`, but where the whole recording had another hint for that tensor, that one.
std::string hint_as_of_the_whole(const Attributes& provenance, const std::string& tensor,
                                 const std::string& found);

} // namespace dsakit::harness
