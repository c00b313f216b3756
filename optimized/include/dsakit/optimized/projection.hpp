// The projections of the layer, and the absorption of W_UK and W_UV (spec 1). They need no kernel
// of ours: Device::project goes through Eigen, hipBLASLt or cuBLASLt.
#pragma once

#include <cstdint>

#include "dsakit/core/status.hpp"

namespace dsakit::optimized {

/// y[b,r,o] = bf16(sum_i x[b,r,i] * weight[b,o,i]), summed in fp32; strides in ELEMENTS.
/// A projection has one batch, an absorption one a head. One of the weight's two inner strides
/// is 1.
struct ProjectionParams {
  const std::uint16_t* x;      // [batch, rows, in] bf16
  const std::uint16_t* weight; // [batch, out, in] bf16
  std::uint16_t* y;            // [batch, rows, out] bf16; overlaps neither x nor weight
  std::int64_t x_batch_stride;
  std::int64_t x_row_stride; // at least in
  std::int64_t weight_batch_stride;
  std::int64_t weight_out_stride; // at least in, or 1
  std::int64_t weight_in_stride;  // 1, or at least out
  std::int64_t y_batch_stride;
  std::int64_t y_row_stride; // at least out
  std::int64_t rows;         // 0: the library is loaded, nothing else
  std::int64_t in;           // at least 1; so the next two
  std::int64_t out;
  std::int64_t batch;
};

/// The weight lies as [out, in]; else it lies as [in, out].
inline bool weight_rows_are_outputs(const ProjectionParams& p) {
  return p.weight_in_stride == 1 && p.weight_out_stride >= p.in;
}

/// One matrix: contiguous x [rows, in], weight [out, in] and y [rows, out].
inline ProjectionParams projection(const std::uint16_t* x, const std::uint16_t* weight,
                                   std::uint16_t* y, std::int64_t rows, std::int64_t in,
                                   std::int64_t out) {
  return {x, weight, y, 0, in, 0, in, 1, 0, out, rows, in, out, 1};
}

/// unsupported, with the value found, for what the comments above rule out.
Status check_projection(const ProjectionParams& params);

} // namespace dsakit::optimized
