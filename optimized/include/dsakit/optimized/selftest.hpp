// Every primitive of the device layer on a device, against plain C++: what to run first on a GPU
// that nobody has tried, before any kernel is blamed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/selftest_params.hpp"

namespace dsakit::optimized {

struct SelftestResult {
  std::string primitive; ///< "sum_of_16"
  std::size_t values;    ///< compared
  /// Where the first wrong value is, what was found and what was wanted; empty: all are right.
  std::string fault;
};

/// One result for each primitive. device_error where a kernel did not run: later ones are not
/// tried.
Result<std::vector<SelftestResult>> selftest(Device& device);

} // namespace dsakit::optimized
