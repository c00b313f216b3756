// index_cache_write in MXFP4: the cache is an input and, updated in place, the output (spec 3.2).
#include "dsakit/optimized/index_cache_write.hpp"

#include "adapters.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "index_pages.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

class IndexCacheWriteMxfp4 final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto quant = parse_mxfp4_quant(data.contract);
    DSAKIT_TRY(quant);
    const auto pages = parse_mxfp4_pages(data.contract);
    DSAKIT_TRY(pages);
    const RecordedTensor& before = data.tensors.inputs.at("index_cache");
    const Tensor& index_k = data.input("index_k");
    const Tensor& slots = data.input("slot_mapping");
    const auto geometry = page_geometry(before, *pages);
    DSAKIT_TRY(geometry);

    Expected cache;
    cache.output = "index_cache";
    cache.value.tensor = before.tensor;
    cache.before = &before.tensor;
    DSAKIT_TRY(reference::index_cache_write_mxfp4(
        *pages, *quant, index_k.as<std::uint16_t>(), index_k.shape[0],
        {slots.as<std::int64_t>(), static_cast<std::size_t>(slots.elements())},
        {cache.value.tensor.as<std::uint8_t>() + geometry->offset, geometry->pages,
         geometry->stride}));
    return std::vector<Expected>{std::move(cache)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto quant = parse_mxfp4_quant(data.contract);
    DSAKIT_TRY(quant);
    const auto pages = parse_mxfp4_pages(data.contract);
    DSAKIT_TRY(pages);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& cache = data.input("index_cache");
    const Tensor& slots = data.input("slot_mapping");
    const auto geometry = page_geometry(data.tensors.inputs.at("index_cache"), *pages);
    DSAKIT_TRY(geometry);

    const auto device_k = DeviceBuffer::upload(device, data.input("index_k"));
    DSAKIT_TRY(device_k);
    const auto device_slots = DeviceBuffer::upload(device, slots);
    DSAKIT_TRY(device_slots);
    const auto device_cache = DeviceBuffer::upload(device, cache);
    DSAKIT_TRY(device_cache);

    optimized::IndexCacheWriteMxfp4Params params{};
    params.index_k = device_k->as<std::uint16_t>();
    params.slot_mapping = device_slots->as<std::int64_t>();
    params.cache = device_cache->as<std::uint8_t>() + geometry->offset;
    params.index_k_stride = reference::kIndexHeadDim;
    params.page_stride = geometry->stride;
    params.tokens = slots.elements();
    params.pages = geometry->pages;
    params.page_size = static_cast<std::int32_t>(pages->page_size.value);
    params.hadamard = quant->hadamard == Hadamard::query_and_key;
    params.layout = pages->index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "index_cache", *device_cache, Tensor(cache.dtype, cache.shape)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_cache_write_mxfp4_adapter() {
  static const IndexCacheWriteMxfp4 adapter;
  return adapter;
}

} // namespace dsakit::harness
