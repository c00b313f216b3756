// A projection's weight as a matrix.
#pragma once

#include "dsakit/reference/dense.hpp"
#include "matrix.hpp"

namespace dsakit::reference {

/// bad_input for a weight that lacks its values or its scales.
Status check_weight(const Weight& weight);

/// Rows [first, first + count) of W; the product with the scale rounds to Value.
template <class Value>
Matrix<Value> dequantise(const Weight& weight, std::int64_t first, std::int64_t count);

extern template Matrix<float> dequantise<float>(const Weight&, std::int64_t, std::int64_t);
extern template Matrix<double> dequantise<double>(const Weight&, std::int64_t, std::int64_t);

} // namespace dsakit::reference
