// What projections and absorptions share: one output of the activation dtype, exact and rounded.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "dsakit/harness/operations.hpp"
#include "launch.hpp"

namespace dsakit::harness {

class Projected : public OperationAdapter {
public:
  explicit Projected(const char* output) : output_(output) {}

  Result<std::vector<Expected>> reference(const OperationData& data) const final {
    std::vector<double> bound;
    Expected y;
    y.output = output_;
    DSAKIT_TRY(exact(data, weight_of(data), y.value.unrounded, bound));
    const Tensor& recorded = data.output(output_).tensor;
    y.value.tensor = Tensor(recorded.dtype, recorded.shape);
    round_to(y.value.tensor, y.value.unrounded);
    return std::vector<Expected>{std::move(y)};
  }

  /// fp32: as the libraries of our devices, which take an fp8 weight as bf16. What that rounding
  /// makes of the output is computed, and added to the bound of the widened weight.
  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation accumulation) const final {
    reference::Weight weight = weight_of(data);
    std::vector<double> values;
    std::vector<double> bound;
    DSAKIT_TRY(exact(data, weight, values, bound));
    if (accumulation != Accumulation::fp32 || weight.format == WeightFormat::bf16) return bound;
    std::vector<std::uint16_t> bf16(static_cast<std::size_t>(weight.outputs * weight.inputs));
    DSAKIT_TRY(reference::weight_dequant(weight, bf16.data()));
    weight = {WeightFormat::bf16, weight.encoding, bf16.data(), nullptr,
              weight.outputs,     weight.inputs};
    std::vector<double> widened;
    DSAKIT_TRY(exact(data, weight, widened, bound));
    for (std::size_t i = 0; i < bound.size(); ++i)
      if (const double rounded = std::abs(widened[i] - values[i]); !std::isnan(rounded))
        bound[i] += rounded; // NaN: the same infinity, or NaN, in both
    return bound;
  }

protected:
  const char* const output_;

private:
  /// With that weight in place of the recorded one. Resizes both to the output's elements and
  /// fills them.
  virtual Status exact(const OperationData& data, const reference::Weight& weight,
                       std::vector<double>& values, std::vector<double>& bound) const = 0;
};

} // namespace dsakit::harness
