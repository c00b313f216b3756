// What a problem has to do at least, and what bounds it on a device.
#pragma once

#include "problem.hpp"

namespace dsakit::harness {

/// Every byte that has to be read or written, once, and the operations of the matrix products.
BenchWork work_of(const BenchProblem& problem);

/// Which of the device's rates the work needs longest at; none where no rate of it is known.
/// `device`: as it describes itself.
std::optional<BenchLimit> limit_of(const BenchProblem& problem, const BenchWork& work,
                                   const std::string& device);

} // namespace dsakit::harness
