// The links of a group, and everything about a dataset but its payload.
#pragma once

#include <string>
#include <vector>

#include "dsakit/harness/recording.hpp"
#include "hdf5.hpp"

namespace dsakit::harness::hdf5 {

/// Names in a group, in order. bad_input for a link that is not a hard one.
Result<std::vector<std::string>> list(hid_t group, const std::string& path,
                                      const std::string& name);

/// Dtype, shape, axes, attributes. bad_input for elements, filters or a layout that no recording
/// has, and, `with_payload`, for storage that cannot hold it.
Result<TensorInfo> describe(hid_t dataset, const std::string& path, const std::string& object,
                            bool with_payload);

} // namespace dsakit::harness::hdf5
