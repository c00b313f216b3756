// What the text, the markdown and the JUnit XML of a bisection say in the same words.
#pragma once

#include <string>

#include "dsakit/harness/bisect.hpp"

namespace dsakit::harness {

/// For people: what files and their names hold is escaped.
Bisection printable(Bisection bisection);
/// "by itself"; "because of its inputs"
std::string cause_of(const Parting& parting);
/// The cause, and which of both files the reference calls wrong.
std::string why_it_parts(const Parting& parting, const Bisection& bisection);
/// "rows 3 to 4 of 8"
std::string where(const WrongRows& rows);
/// "dsakit 1.0 bisect a.h5 against b.h5 on ...": what was asked, and of what device.
std::string asked(const Bisection& bisection);
/// By how much the error is larger where kernels feed kernels, largest first; at most `most`, in
/// causal order.
std::vector<const Growth*> largest_growth(const Bisection& bisection, std::size_t most);

} // namespace dsakit::harness
