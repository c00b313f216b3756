// Comparison of whole tensors: the first difference is shown, the others are counted.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "support/same_bits.hpp"

namespace dsakit::testing {

/// Bit for bit; NaN is NaN whatever its payload. `columns`: extent of the last axis.
template <class T>
void expect_same(const std::string& what, const std::vector<T>& got, const std::vector<T>& want,
                 std::size_t columns) {
  ASSERT_EQ(got.size(), want.size()) << what;
  std::size_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    bool same = same_bits(got[i], want[i]);
    if constexpr (std::is_floating_point_v<T>)
      same = same || (std::isnan(got[i]) && std::isnan(want[i]));
    if (!same && ++different == 1)
      ADD_FAILURE() << what << "[" << i / columns << ", " << i % columns << "]: got " << +got[i]
                    << ", want " << +want[i];
  }
  EXPECT_EQ(different, 0u) << what;
}

/// |got - want| <= bound in each element; NaN and infinities must agree.
inline void expect_within(const std::string& what, const std::vector<float>& got,
                          const std::vector<double>& want, const std::vector<double>& bound,
                          std::size_t columns) {
  ASSERT_EQ(got.size(), want.size()) << what;
  ASSERT_EQ(got.size(), bound.size()) << what;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = got[i];
    const bool right = std::isnan(want[i])   ? std::isnan(value)
                       : std::isinf(want[i]) ? value == want[i]
                                             : std::fabs(value - want[i]) <= bound[i];
    if (!right && ++wrong == 1)
      ADD_FAILURE() << what << "[" << i / columns << ", " << i % columns << "]: got " << value
                    << ", want " << want[i] << " within " << bound[i];
  }
  EXPECT_EQ(wrong, 0u) << what;
}

} // namespace dsakit::testing
