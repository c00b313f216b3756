// Matrices of the reference, and the product whose order of sums is named.
#pragma once

#include <Eigen/Core>

namespace dsakit::reference {

template <class Value>
using Matrix = Eigen::Matrix<Value, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Of add_ordered_product: Rows x Columns sums, which stay in registers.
template <int Rows, int Columns>
void add_ordered_tile(const Eigen::Ref<const Matrix<float>>& a,
                      const Eigen::Ref<const Matrix<float>>& b, Eigen::Index row,
                      Eigen::Index column, Matrix<float>& sums) {
  Eigen::Array<float, 1, Columns> tile[Rows];
  for (int r = 0; r < Rows; ++r)
    tile[r] = sums.row(row + r).segment<Columns>(column);
  for (Eigen::Index i = 0; i < a.cols(); ++i)
    for (int r = 0; r < Rows; ++r)
      tile[r] += a(row + r, i) * b.row(i).segment<Columns>(column).array();
  for (int r = 0; r < Rows; ++r)
    sums.row(row + r).segment<Columns>(column) = tile[r];
}

/// sums += a * b in fp32 with the inner index ascending; every product and sum rounds.
inline void add_ordered_product(const Eigen::Ref<const Matrix<float>>& a,
                                const Eigen::Ref<const Matrix<float>>& b, Matrix<float>& sums) {
  constexpr int kRows = 4, kColumns = 16;
  Eigen::Index column = 0;
  for (; column + kColumns <= b.cols(); column += kColumns) {
    Eigen::Index row = 0;
    for (; row + kRows <= a.rows(); row += kRows)
      add_ordered_tile<kRows, kColumns>(a, b, row, column, sums);
    for (; row < a.rows(); ++row)
      add_ordered_tile<1, kColumns>(a, b, row, column, sums);
  }
  const Eigen::Index rest = b.cols() - column;
  for (Eigen::Index row = 0; rest > 0 && row < a.rows(); ++row)
    for (Eigen::Index i = 0; i < a.cols(); ++i)
      sums.row(row).tail(rest) += a(row, i) * b.row(i).tail(rest);
}

/// a * b, as add_ordered_product sums.
inline Matrix<float> ordered_product(const Eigen::Ref<const Matrix<float>>& a,
                                     const Eigen::Ref<const Matrix<float>>& b) {
  Matrix<float> sums = Matrix<float>::Zero(a.rows(), b.cols());
  add_ordered_product(a, b, sums);
  return sums;
}

} // namespace dsakit::reference
