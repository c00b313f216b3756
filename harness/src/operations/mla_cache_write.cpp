// mla_cache_write: the cache is an input and, updated in place, the output (spec 4).
#include "dsakit/optimized/mla_cache_write.hpp"

#include "adapters.hpp"
#include "launch.hpp"
#include "mla_pages.hpp"

namespace dsakit::harness {
namespace {

class MlaCacheWrite final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto contract = parse_mla_quant(data.contract);
    DSAKIT_TRY(contract);
    const Tensor& kv_c = data.input("kv_c");
    const Tensor& slots = data.input("slot_mapping");
    Expected cache;
    cache.output = "mla_cache";
    cache.before = &data.input("mla_cache");
    cache.value.tensor = *cache.before;
    DSAKIT_TRY(reference::mla_cache_write(
        *contract, kv_c.as<std::uint16_t>(), data.input("k_pe").as<std::uint16_t>(), kv_c.shape[0],
        {slots.as<std::int64_t>(), static_cast<std::size_t>(slots.elements())},
        mla_pages<std::uint8_t>(cache.value.tensor)));
    return std::vector<Expected>{std::move(cache)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto contract = parse_mla_quant(data.contract);
    DSAKIT_TRY(contract);
    DSAKIT_TRY(need_bf16(data.contract));
    const Tensor& cache = data.input("mla_cache");
    const auto kv_c = DeviceBuffer::upload(device, data.input("kv_c"));
    DSAKIT_TRY(kv_c);
    const auto k_pe = DeviceBuffer::upload(device, data.input("k_pe"));
    DSAKIT_TRY(k_pe);
    const auto slots = DeviceBuffer::upload(device, data.input("slot_mapping"));
    DSAKIT_TRY(slots);
    const auto device_cache = DeviceBuffer::upload(device, cache);
    DSAKIT_TRY(device_cache);
    const auto pages = mla_pages<const std::uint8_t>(cache);

    optimized::MlaCacheWriteParams params{};
    params.kv_c = kv_c->as<std::uint16_t>();
    params.k_pe = k_pe->as<std::uint16_t>();
    params.slot_mapping = slots->as<std::int64_t>();
    params.cache = device_cache->as<std::uint8_t>();
    params.kv_c_stride = reference::kMlaLatent;
    params.k_pe_stride = reference::kMlaPe;
    params.page_stride = pages.page_stride;
    params.record_stride = pages.record_stride;
    params.tokens = data.input("slot_mapping").elements();
    params.pages = pages.pages;
    params.page_size = static_cast<std::int32_t>(pages.page_size);
    params.qmax = contract->qmax;
    params.encoding = contract->mla_fp8_encoding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "mla_cache", *device_cache, Tensor(cache.dtype, cache.shape)));
    return run;
  }
};

} // namespace

const OperationAdapter& mla_cache_write_adapter() {
  static const MlaCacheWrite adapter;
  return adapter;
}

} // namespace dsakit::harness
