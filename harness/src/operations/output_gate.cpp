// output_gate: the attention's values times the sigmoid of the gate projection (spec 1.11).
#include "dsakit/optimized/output_gate.hpp"

#include "adapters.hpp"
#include "dsakit/reference/dense.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

Result<reference::OutputGate> gate_of(const OperationData& data) {
  const auto rounding = parse_gate_rounding(data.contract);
  DSAKIT_TRY(rounding);
  const auto dtype = parse_activation_dtype(data.contract);
  DSAKIT_TRY(dtype);
  const Tensor& value = data.input("attn_value");
  return reference::OutputGate{value.as<std::uint16_t>(), data.input("gate").as<std::uint16_t>(),
                               value.elements(), *rounding, *dtype};
}

class OutputGate final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = gate_of(data);
    DSAKIT_TRY(in);
    const Tensor& value = data.input("attn_value");
    Expected gated;
    gated.output = "attn_gated";
    gated.value.tensor = Tensor(value.dtype, value.shape);
    gated.value.unrounded.resize(static_cast<std::size_t>(in->elements));
    std::vector<double> bound(gated.value.unrounded.size());
    DSAKIT_TRY(reference::output_gate(*in, gated.value.tensor.as<std::uint16_t>()));
    DSAKIT_TRY(reference::output_gate_exact(*in, gated.value.unrounded.data(), bound.data()));
    return std::vector<Expected>{std::move(gated)};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation) const override {
    const auto in = gate_of(data);
    DSAKIT_TRY(in);
    std::vector<double> exact(static_cast<std::size_t>(in->elements));
    std::vector<double> bound(exact.size());
    DSAKIT_TRY(reference::output_gate_exact(*in, exact.data(), bound.data()));
    return bound;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = gate_of(data);
    DSAKIT_TRY(in);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& value = data.input("attn_value");
    const auto device_value = DeviceBuffer::upload(device, value);
    DSAKIT_TRY(device_value);
    const auto gate = DeviceBuffer::upload(device, data.input("gate"));
    DSAKIT_TRY(gate);
    Tensor gated = poisoned(Dtype::bfloat16, value.shape);
    const auto device_gated = DeviceBuffer::upload(device, gated);
    DSAKIT_TRY(device_gated);

    const std::int64_t width = value.shape[1];
    optimized::OutputGateParams params{};
    params.attn_value = device_value->as<std::uint16_t>();
    params.gate = gate->as<std::uint16_t>();
    params.attn_gated = device_gated->as<std::uint16_t>();
    params.attn_value_stride = width;
    params.gate_stride = width;
    params.attn_gated_stride = width;
    params.rows = value.shape[0];
    params.width = static_cast<std::int32_t>(width);
    params.rounding = in->rounding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "attn_gated", *device_gated, std::move(gated)));
    return run;
  }
};

} // namespace

const OperationAdapter& output_gate_adapter() {
  static const OutputGate adapter;
  return adapter;
}

} // namespace dsakit::harness
