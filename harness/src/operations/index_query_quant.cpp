// index_query_quant: indexer queries to e4m3 and their scales (spec 2.2). The kernel can fold the
// scales in the same launch; replay asks it for codes and scales alone.
#include "dsakit/optimized/index_query_quant.hpp"

#include "adapters.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/index_query.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

Dtype code_dtype(Fp8Encoding encoding) {
  return encoding == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn : Dtype::float8_e4m3fnuz;
}

class IndexQueryQuant final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto contract = parse_index_query_quant(data.contract);
    DSAKIT_TRY(contract);
    const Tensor& q = data.input("index_q");
    Expected codes;
    codes.output = "index_q_fp8";
    codes.value.tensor = Tensor(code_dtype(contract->index_fp8_encoding), q.shape);
    Expected scales;
    scales.output = "index_q_scale";
    scales.value.tensor = Tensor(Dtype::float32, {q.shape[0], q.shape[1]});
    DSAKIT_TRY(reference::index_query_quant(
        *contract, q.as<std::uint16_t>(), q.shape[0] * q.shape[1],
        codes.value.tensor.as<std::uint8_t>(), scales.value.tensor.as<float>()));
    std::vector<Expected> outputs;
    outputs.push_back(std::move(codes));
    outputs.push_back(std::move(scales));
    return outputs;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto contract = parse_index_query_quant(data.contract);
    DSAKIT_TRY(contract);
    DSAKIT_TRY(need_bf16(data.contract));
    if (contract->scale_kind != ScaleKind::ue8m0)
      return unsupported("scale_kind: found fp32, want ue8m0");
    const Tensor& q = data.input("index_q");
    const auto device_q = DeviceBuffer::upload(device, q);
    DSAKIT_TRY(device_q);
    Tensor codes = poisoned(code_dtype(contract->index_fp8_encoding), q.shape);
    const auto device_codes = DeviceBuffer::upload(device, codes);
    DSAKIT_TRY(device_codes);
    Tensor scales = poisoned(Dtype::float32, {q.shape[0], q.shape[1]});
    const auto device_scales = DeviceBuffer::upload(device, scales);
    DSAKIT_TRY(device_scales);

    optimized::IndexQueryQuantParams params{};
    params.index_q = device_q->as<std::uint16_t>();
    params.q_fp8 = device_codes->as<std::uint8_t>();
    params.q_scale = device_scales->as<float>();
    params.index_q_stride = q.shape[1] * reference::kIndexHeadDim;
    params.tokens = q.shape[0];
    params.heads = static_cast<std::int32_t>(q.shape[1]);
    params.amax_floor = contract->index_q_floor;
    params.qmax = contract->qmax;
    params.encoding = contract->index_fp8_encoding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_q_fp8", *device_codes, std::move(codes)));
    DSAKIT_TRY(take_output(*run, "index_q_scale", *device_scales, std::move(scales)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_query_quant_adapter() {
  static const IndexQueryQuant adapter;
  return adapter;
}

} // namespace dsakit::harness
