// Projections on the host device, through Eigen.
#pragma once

#include "dsakit/core/status.hpp"
#include "dsakit/optimized/projection.hpp"

namespace dsakit::optimized {

/// A row's bits depend on that row and the weight alone, neither on the other rows nor on the
/// number of threads.
Status project_on_host(const ProjectionParams& params);

} // namespace dsakit::optimized
