#include "weight.hpp"

#include <algorithm>
#include <string>

#include "dsakit/reference/formats.hpp"
#include "fp8_table.hpp"

namespace dsakit::reference {

Status check_weight(const Weight& weight) {
  const bool needs_scales = weight.format != WeightFormat::bf16;
  if (!weight.values || (needs_scales && !weight.scales))
    return bad_input("weight [" + std::to_string(weight.outputs) + ", " +
                     std::to_string(weight.inputs) + "] of format " +
                     std::string(name(weight.format)) + ": found no " +
                     (weight.values ? "scales" : "values"));
  return {};
}

template <class Value>
Matrix<Value> dequantise(const Weight& weight, std::int64_t first, std::int64_t count) {
  Matrix<Value> matrix(count, weight.inputs);
  const std::int64_t begin = first * weight.inputs;
  if (weight.format == WeightFormat::bf16) {
    const auto* bits = static_cast<const std::uint16_t*>(weight.values) + begin;
    for (Eigen::Index i = 0; i < matrix.size(); ++i)
      matrix.data()[i] = bf16_to_float(bits[i]);
    return matrix;
  }
  const auto* codes = static_cast<const std::uint8_t*>(weight.values) + begin;
  const std::array<float, 256>& value_of = fp8_table(weight.encoding);
  const std::int64_t block_columns = (weight.inputs + kWeightBlock - 1) / kWeightBlock;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t row = first + r;
    for (std::int64_t i = 0; i < weight.inputs; ++i) {
      const std::int64_t scale = weight.format == WeightFormat::fp8_channel
                                     ? row
                                     : row / kWeightBlock * block_columns + i / kWeightBlock;
      matrix(r, i) = static_cast<Value>(value_of[codes[r * weight.inputs + i]]) *
                     static_cast<Value>(weight.scales[scale]);
    }
  }
  return matrix;
}

Status weight_dequant(const Weight& weight, std::uint16_t* bf16) {
  DSAKIT_TRY(check_weight(weight));
  const Matrix<float> values = dequantise<float>(weight, 0, weight.outputs);
  std::transform(values.data(), values.data() + values.size(), bf16, float_to_bf16);
  return {};
}

template Matrix<float> dequantise<float>(const Weight&, std::int64_t, std::int64_t);
template Matrix<double> dequantise<double>(const Weight&, std::int64_t, std::int64_t);

} // namespace dsakit::reference
