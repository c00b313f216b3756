// Matrices of the reference, and the product whose order of sums is named.
#pragma once

#include <Eigen/Core>

namespace dsakit::reference {

template <class Value>
using Matrix = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// a * b in fp32 with the inner index ascending; every product and sum rounds.
inline Matrix<float> ordered_product(const Matrix<float>& a, const Matrix<float>& b) {
  Matrix<float> sums = Matrix<float>::Zero(a.rows(), b.cols());
  for (Eigen::Index row = 0; row < a.rows(); ++row)
    for (Eigen::Index i = 0; i < a.cols(); ++i)
      sums.row(row) += a(row, i) * b.row(i);
  return sums;
}

} // namespace dsakit::reference
