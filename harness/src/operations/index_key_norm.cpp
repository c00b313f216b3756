// index_key_norm: LayerNorm or RMSNorm of indexer keys (spec 1). The kernel can write the cache in
// the same launch; replay asks it for the keys alone.
#include "dsakit/optimized/index_key_norm.hpp"

#include "adapters.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/norms.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

/// The inputs as the reference takes them, parameters widened to fp32.
struct KeyNorm {
  std::vector<float> weight;
  std::vector<float> bias; ///< empty for rmsnorm
  reference::Norm norm;    ///< points into the vectors above

  static Result<KeyNorm> load(const OperationData& data) {
    const auto kind = parse_index_k_norm(data.contract);
    DSAKIT_TRY(kind);
    const auto rounding = parse_rmsnorm_rounding(data.contract);
    DSAKIT_TRY(rounding);
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    KeyNorm key_norm{widened(data.input("norm_weight")), {}, {}};
    if (*kind == IndexKNorm::layernorm) key_norm.bias = widened(data.input("norm_bias"));
    key_norm.norm.kind = *kind;
    key_norm.norm.rounding = *rounding;
    key_norm.norm.dtype = *dtype;
    key_norm.norm.eps = static_cast<float>(*parse_number(data.config.at("rms_norm_eps")));
    key_norm.norm.weight = key_norm.weight.data();
    key_norm.norm.bias = key_norm.bias.empty() ? nullptr : key_norm.bias.data();
    key_norm.norm.width = reference::kIndexHeadDim;
    return key_norm;
  }
};

class IndexKeyNorm final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = KeyNorm::load(data);
    DSAKIT_TRY(in);
    const Tensor& raw = data.input("index_k_raw");
    Expected index_k;
    index_k.output = "index_k";
    index_k.value.tensor = Tensor(raw.dtype, raw.shape);
    DSAKIT_TRY(reference::index_key_norm(in->norm, raw.as<std::uint16_t>(), raw.shape[0],
                                         index_k.value.tensor.as<std::uint16_t>()));
    index_k.value.unrounded.resize(static_cast<std::size_t>(raw.elements()));
    std::vector<double> bound(index_k.value.unrounded.size());
    DSAKIT_TRY(reference::apply_norm_exact(in->norm, raw.as<std::uint16_t>(), raw.shape[0],
                                           index_k.value.unrounded.data(), bound.data()));
    return std::vector<Expected>{std::move(index_k)};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation) const override {
    const auto in = KeyNorm::load(data);
    DSAKIT_TRY(in);
    const Tensor& raw = data.input("index_k_raw");
    std::vector<double> exact(static_cast<std::size_t>(raw.elements()));
    std::vector<double> bound(exact.size());
    DSAKIT_TRY(reference::apply_norm_exact(in->norm, raw.as<std::uint16_t>(), raw.shape[0],
                                           exact.data(), bound.data()));
    return bound;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = KeyNorm::load(data);
    DSAKIT_TRY(in);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& raw = data.input("index_k_raw");
    const auto device_raw = DeviceBuffer::upload(device, raw);
    DSAKIT_TRY(device_raw);
    const auto weight = DeviceBuffer::upload(device, in->weight);
    DSAKIT_TRY(weight);
    const auto bias = DeviceBuffer::upload(device, in->bias);
    DSAKIT_TRY(bias);
    Tensor index_k = poisoned(raw.dtype, raw.shape);
    const auto device_index_k = DeviceBuffer::upload(device, index_k);
    DSAKIT_TRY(device_index_k);

    optimized::IndexKeyNormParams params{};
    params.index_k_raw = device_raw->as<std::uint16_t>();
    params.weight = weight->as<float>();
    params.bias = in->bias.empty() ? nullptr : bias->as<float>();
    params.index_k = device_index_k->as<std::uint16_t>();
    params.index_k_raw_stride = reference::kIndexHeadDim;
    params.tokens = raw.shape[0];
    params.eps = in->norm.eps;
    params.norm = in->norm.kind;
    params.rounding = in->norm.rounding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_k", *device_index_k, std::move(index_k)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_key_norm_adapter() {
  static const IndexKeyNorm adapter;
  return adapter;
}

} // namespace dsakit::harness
