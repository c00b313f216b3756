// index_query_quant in MXFP4: packed e2m1 codes and a scale for each group of 32 (spec 3.1).
#include "dsakit/optimized/index_query_quant.hpp"

#include "adapters.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

Shape packed_shape(const Tensor& q) {
  return {q.shape[0], q.shape[1], reference::kMxfp4Bytes};
}
Shape scale_shape(const Tensor& q) {
  return {q.shape[0], q.shape[1], reference::kMxfp4Groups};
}

class IndexQueryQuantMxfp4 final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto contract = parse_mxfp4_quant(data.contract);
    DSAKIT_TRY(contract);
    const Tensor& q = data.input("index_q");
    Expected packed;
    packed.output = "index_q_packed";
    packed.value.tensor = Tensor(Dtype::float4_e2m1fn_x2, packed_shape(q));
    Expected scale;
    scale.output = "index_q_scale";
    scale.value.tensor = Tensor(Dtype::float8_e8m0fnu, scale_shape(q));
    DSAKIT_TRY(reference::index_query_quant_mxfp4(
        *contract, q.as<std::uint16_t>(), q.shape[0] * q.shape[1],
        packed.value.tensor.as<std::uint8_t>(), scale.value.tensor.as<std::uint8_t>()));
    std::vector<Expected> outputs;
    outputs.push_back(std::move(packed));
    outputs.push_back(std::move(scale));
    return outputs;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto contract = parse_mxfp4_quant(data.contract);
    DSAKIT_TRY(contract);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& q = data.input("index_q");
    const auto device_q = DeviceBuffer::upload(device, q);
    DSAKIT_TRY(device_q);
    Tensor packed = poisoned(Dtype::float4_e2m1fn_x2, packed_shape(q));
    const auto device_packed = DeviceBuffer::upload(device, packed);
    DSAKIT_TRY(device_packed);
    Tensor scale = poisoned(Dtype::float8_e8m0fnu, scale_shape(q));
    const auto device_scale = DeviceBuffer::upload(device, scale);
    DSAKIT_TRY(device_scale);

    optimized::IndexQueryQuantMxfp4Params params{};
    params.index_q = device_q->as<std::uint16_t>();
    params.q_packed = device_packed->as<std::uint8_t>();
    params.q_scale = device_scale->as<std::uint8_t>();
    params.index_q_stride = q.shape[1] * reference::kIndexHeadDim;
    params.tokens = q.shape[0];
    params.heads = static_cast<std::int32_t>(q.shape[1]);
    params.hadamard = contract->hadamard == Hadamard::query_and_key;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_q_packed", *device_packed, std::move(packed)));
    DSAKIT_TRY(take_output(*run, "index_q_scale", *device_scale, std::move(scale)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_query_quant_mxfp4_adapter() {
  static const IndexQueryQuantMxfp4 adapter;
  return adapter;
}

} // namespace dsakit::harness
