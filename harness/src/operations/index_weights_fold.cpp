// index_weights_fold: the queries' scales into the head weights (spec 2.3).
#include "dsakit/optimized/index_weights_fold.hpp"

#include <cmath>

#include "adapters.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/index_query.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

class IndexWeightsFold final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto fold = parse_weight_fold(data.contract);
    DSAKIT_TRY(fold);
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Tensor& weights = data.input("index_weights");
    Expected folded;
    folded.output = "index_weights_folded";
    folded.value.tensor = Tensor(Dtype::float32, weights.shape);
    DSAKIT_TRY(reference::index_weights_fold(
        *fold, *dtype, weights.as<std::uint16_t>(), data.input("index_q_scale").as<float>(),
        weights.shape[0], weights.shape[1], folded.value.tensor.as<float>()));
    return std::vector<Expected>{std::move(folded)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto fold = parse_weight_fold(data.contract);
    DSAKIT_TRY(fold);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& weights = data.input("index_weights");
    const auto device_weights = DeviceBuffer::upload(device, weights);
    DSAKIT_TRY(device_weights);
    const auto q_scale = DeviceBuffer::upload(device, data.input("index_q_scale"));
    DSAKIT_TRY(q_scale);
    Tensor folded = poisoned(Dtype::float32, weights.shape);
    const auto device_folded = DeviceBuffer::upload(device, folded);
    DSAKIT_TRY(device_folded);

    const std::int64_t heads = weights.shape[1];
    optimized::IndexWeightsFoldParams params{};
    params.weights = device_weights->as<std::uint16_t>();
    params.q_scale = q_scale->as<float>();
    params.folded = device_folded->as<float>();
    params.weights_stride = heads;
    params.tokens = weights.shape[0];
    params.heads = static_cast<std::int32_t>(heads);
    params.head_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads)));
    params.softmax_scale =
        static_cast<float>(1 / std::sqrt(static_cast<double>(reference::kIndexHeadDim)));
    params.weight_fold = *fold;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_weights_folded", *device_folded, std::move(folded)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_weights_fold_adapter() {
  static const IndexWeightsFold adapter;
  return adapter;
}

} // namespace dsakit::harness
