// index_cache_write: the cache is an input and, updated in place, the output (spec 2.4).
#include "dsakit/optimized/index_cache_write.hpp"

#include "adapters.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "index_pages.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

class IndexCacheWrite final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto contract = parse_index_key_quant(data.contract);
    DSAKIT_TRY(contract);
    const auto& inputs = data.tensors.inputs;
    const RecordedTensor& before = inputs.at("index_cache");
    const Tensor& index_k = inputs.at("index_k").tensor;
    const Tensor& slots = inputs.at("slot_mapping").tensor;
    const auto geometry = page_geometry(before, contract->pages);
    DSAKIT_TRY(geometry);

    Expected cache;
    cache.output = "index_cache";
    cache.value.tensor = before.tensor;
    cache.before = &before.tensor;
    DSAKIT_TRY(reference::index_cache_write(
        *contract, index_k.as<std::uint16_t>(), index_k.shape[0],
        {slots.as<std::int64_t>(), static_cast<std::size_t>(slots.elements())},
        {cache.value.tensor.as<std::uint8_t>() + geometry->offset, geometry->pages,
         geometry->stride}));
    return std::vector<Expected>{std::move(cache)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto contract = parse_index_key_quant(data.contract);
    DSAKIT_TRY(contract);
    DSAKIT_TRY(need_bf16(data.contract));
    if (contract->scale_kind != ScaleKind::ue8m0)
      return unsupported("scale_kind: found fp32, want ue8m0");
    const IndexPages& pages = contract->pages;
    const auto& inputs = data.tensors.inputs;
    const Tensor& cache = inputs.at("index_cache").tensor;
    const Tensor& index_k = inputs.at("index_k").tensor;
    const Tensor& slots = inputs.at("slot_mapping").tensor;
    const auto geometry = page_geometry(inputs.at("index_cache"), pages);
    DSAKIT_TRY(geometry);

    const auto device_k = DeviceBuffer::upload(device, index_k);
    DSAKIT_TRY(device_k);
    const auto device_slots = DeviceBuffer::upload(device, slots);
    DSAKIT_TRY(device_slots);
    const auto device_cache = DeviceBuffer::upload(device, cache);
    DSAKIT_TRY(device_cache);

    optimized::IndexCacheWriteParams params{};
    params.index_k = device_k->as<std::uint16_t>();
    params.slot_mapping = device_slots->as<std::int64_t>();
    params.cache = device_cache->as<std::uint8_t>() + geometry->offset;
    params.index_k_stride = reference::kIndexHeadDim;
    params.page_stride = geometry->stride;
    params.tokens = slots.elements();
    params.pages = geometry->pages;
    params.page_size = static_cast<std::int32_t>(pages.page_size.value);
    params.amax_floor = contract->index_k_floor;
    params.qmax = contract->qmax;
    params.encoding = pages.index_fp8_encoding;
    params.layout = pages.index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_cache", *device_cache, Tensor(cache.dtype, cache.shape)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_cache_write_adapter() {
  static const IndexCacheWrite adapter;
  return adapter;
}

} // namespace dsakit::harness
