// What projections and absorptions share: one output of the activation dtype, exact and rounded.
#pragma once

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
    DSAKIT_TRY(exact(data, y.value.unrounded, bound));
    const Tensor& recorded = data.output(output_).tensor;
    y.value.tensor = Tensor(recorded.dtype, recorded.shape);
    round_to(y.value.tensor, y.value.unrounded);
    return std::vector<Expected>{std::move(y)};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation) const final {
    std::vector<double> values;
    std::vector<double> bound;
    DSAKIT_TRY(exact(data, values, bound));
    return bound;
  }

protected:
  const char* const output_;

private:
  /// Resizes both to the output's elements and fills them.
  virtual Status exact(const OperationData& data, std::vector<double>& values,
                       std::vector<double>& bound) const = 0;
};

} // namespace dsakit::harness
