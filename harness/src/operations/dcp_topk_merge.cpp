// dcp_topk_merge: the k best of what all ranks selected (spec 6).
#include "dsakit/optimized/dcp_topk_merge.hpp"

#include "adapters.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

class DcpTopkMerge final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto order = parse_topk_order(data.contract);
    DSAKIT_TRY(order);
    const Tensor& indices = data.input("rank_indices");
    const auto& [world, rows, k] = extents(indices);
    Expected merged;
    merged.output = "topk_indices";
    merged.value.tensor = Tensor(Dtype::int32, {rows, k});
    reference::dcp_topk_merge(data.input("rank_scores").as<float>(), indices.as<std::int32_t>(),
                              world, rows, k, *order, merged.value.tensor.as<std::int32_t>());
    return std::vector<Expected>{std::move(merged)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto order = parse_topk_order(data.contract);
    DSAKIT_TRY(order);
    const auto& [world, rows, k] = extents(data.input("rank_indices"));
    const auto scores = DeviceBuffer::upload(device, data.input("rank_scores"));
    DSAKIT_TRY(scores);
    const auto indices = DeviceBuffer::upload(device, data.input("rank_indices"));
    DSAKIT_TRY(indices);
    Tensor merged = poisoned(Dtype::int32, {rows, k});
    const auto device_merged = DeviceBuffer::upload(device, merged);
    DSAKIT_TRY(device_merged);

    optimized::DcpTopkMergeParams params{};
    params.rank_scores = scores->as<float>();
    params.rank_indices = indices->as<std::int32_t>();
    params.topk_indices = device_merged->as<std::int32_t>();
    params.rank_stride = rows * k;
    params.rows = rows;
    params.world = static_cast<std::int32_t>(world);
    params.k = static_cast<std::int32_t>(k);
    params.order = *order;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "topk_indices", *device_merged, std::move(merged)));
    return run;
  }

private:
  struct Extents {
    std::int64_t world, rows, k;
  };
  static Extents extents(const Tensor& indices) {
    return {indices.shape[0], indices.shape[1], indices.shape[2]};
  }
};

} // namespace

const OperationAdapter& dcp_topk_merge_adapter() {
  static const DcpTopkMerge adapter;
  return adapter;
}

} // namespace dsakit::harness
