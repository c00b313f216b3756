// Quantised outputs taken apart: codes, scales, and the values that they make (design 8).
#pragma once

#include <optional>
#include <string>

#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// Codes in the order of their scales: each scale is of as many codes.
struct Parts {
  Tensor codes;  ///< fp8 or pairs of fp4
  Tensor scales; ///< float32 or e8m0
};

/// The output that holds the scales of `output`; empty where it is none, or holds its own.
std::string scales_output(const std::string& output);

/// The recorded scales of the same producer; nullptr where there are none.
const Tensor* find_scales(const RecordedOperation& recorded, const std::string& tensor,
                          const std::string& output);

/// An output of an operation: a cache has both parts inside; codes need `scales`. None where it is
/// not quantised or a part is missing.
std::optional<Parts> take_apart(const OperationData& data, const std::string& output,
                                const Tensor& tensor, const Tensor* scales);

/// Both sides have the same shapes. `mask` is of codes; empty: all are compared. A scale is
/// compared where one of its codes is.
ReportQuantised compare_parts(const Parts& got, const Parts& want, const Mask& mask);

} // namespace dsakit::harness
