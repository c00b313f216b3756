// The adapter of an operation that exists in FP8 and in MXFP4: the one of what was recorded.
#pragma once

#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

class ByFormat final : public OperationAdapter {
public:
  ByFormat(const OperationAdapter& fp8, const OperationAdapter& mxfp4) : fp8_(fp8), mxfp4_(mxfp4) {}

  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    return of(data).reference(data);
  }
  Result<std::vector<double>> bound(const OperationData& data, std::string_view output,
                                    Accumulation accumulation) const override {
    return of(data).bound(data, output, accumulation);
  }
  Result<Mask> valid_set(const OperationData& data, const Tensor& output,
                         const std::vector<double>& band) const override {
    return of(data).valid_set(data, output, band);
  }
  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    return of(data).run(data, device);
  }

private:
  const OperationAdapter& of(const OperationData& data) const {
    return data.operation().format == "mxfp4" ? mxfp4_ : fp8_;
  }

  const OperationAdapter& fp8_;
  const OperationAdapter& mxfp4_;
};

template <const OperationAdapter& (*fp8)(), const OperationAdapter& (*mxfp4)()>
const OperationAdapter& by_format() {
  static const ByFormat adapter(fp8(), mxfp4());
  return adapter;
}

} // namespace dsakit::harness
