// Both sides of a comparison, from plain numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dsakit/harness/compare.hpp"

namespace dsakit::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline harness::Values floats(const std::vector<float>& values, Shape shape = {}) {
  harness::Values side;
  side.tensor = Tensor(Dtype::float32,
                       shape.empty() ? Shape{static_cast<std::int64_t>(values.size())} : shape);
  std::memcpy(side.tensor.bytes.data(), values.data(), values.size() * sizeof(float));
  return side;
}

inline harness::Values codes(Dtype dtype, const std::vector<std::uint8_t>& bytes) {
  harness::Values side;
  side.tensor = Tensor(dtype, {static_cast<std::int64_t>(bytes.size())});
  std::memcpy(side.tensor.bytes.data(), bytes.data(), bytes.size());
  return side;
}

} // namespace dsakit::testing
