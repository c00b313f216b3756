// The projections of the layer: y = x W^T, by the library of the device (spec 1).
#include "dsakit/optimized/projection.hpp"

#include "adapters.hpp"
#include "dsakit/reference/dense.hpp"
#include "launch.hpp"
#include "projected.hpp"

namespace dsakit::harness {
namespace {

/// x [rows, in] and weight [out, in] to y, whose axes after the first are those of out.
class ProjectionAdapter final : public Projected {
public:
  /// `other_x`: the name of x in layers without the operation before.
  ProjectionAdapter(const char* x, const char* y, const char* other_x = nullptr)
      : Projected(y), x_(x), other_x_(other_x) {}

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& weight = data.input("weight");
    const auto device_x = DeviceBuffer::upload(device, x_of(data));
    DSAKIT_TRY(device_x);
    const auto device_weight = upload_weight(device, data);
    DSAKIT_TRY(device_weight);
    Tensor y = poisoned(Dtype::bfloat16, data.output(output_).tensor.shape);
    const auto device_y = DeviceBuffer::upload(device, y);
    DSAKIT_TRY(device_y);

    auto run = project(data, device,
                       optimized::projection(device_x->as<std::uint16_t>(),
                                             device_weight->as<std::uint16_t>(),
                                             device_y->as<std::uint16_t>(), x_of(data).shape[0],
                                             weight.shape[1], weight.shape[0]));
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, output_, *device_y, std::move(y)));
    return run;
  }

private:
  const Tensor& x_of(const OperationData& data) const {
    const Tensor* x = data.optional_input(x_);
    return x ? *x : data.input(other_x_);
  }

  Status exact(const OperationData& data, const reference::Weight& weight,
               std::vector<double>& values, std::vector<double>& bound) const override {
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Tensor& x = x_of(data);
    values.resize(static_cast<std::size_t>(x.shape[0] * weight.outputs));
    bound.resize(values.size());
    return reference::project_exact({x.as<std::uint16_t>(), x.shape[0], weight, *dtype},
                                    values.data(), bound.data());
  }

  const char* x_;
  const char* other_x_;
};

} // namespace

const OperationAdapter& qkv_a_proj_adapter() {
  static const ProjectionAdapter adapter("hidden_states", "qkv_a");
  return adapter;
}
const OperationAdapter& q_b_proj_adapter() {
  static const ProjectionAdapter adapter("index_q_input", "q");
  return adapter;
}
const OperationAdapter& index_q_proj_adapter() {
  static const ProjectionAdapter adapter("index_q_input", "index_q");
  return adapter;
}
const OperationAdapter& index_k_proj_adapter() {
  static const ProjectionAdapter adapter("hidden_states", "index_k_raw");
  return adapter;
}
const OperationAdapter& index_w_proj_adapter() {
  static const ProjectionAdapter adapter("hidden_states", "index_weights");
  return adapter;
}
const OperationAdapter& gate_proj_adapter() {
  static const ProjectionAdapter adapter("hidden_states", "gate");
  return adapter;
}
const OperationAdapter& o_proj_adapter() {
  static const ProjectionAdapter adapter("attn_gated", "output", "attn_value");
  return adapter;
}

} // namespace dsakit::harness
