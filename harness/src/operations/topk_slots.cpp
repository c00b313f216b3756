// topk_slots: request-local positions to cache slots (spec 5.1).
#include "dsakit/optimized/topk_slots.hpp"

#include <cstdlib>

#include "adapters.hpp"
#include "dsakit/reference/topk.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

/// Slots between pages: an attribute of the recorded slots, page_size without it.
std::int64_t block_stride(const OperationData& data, std::int64_t page_size) {
  const Attributes& attributes = data.output("slots").attributes;
  const auto found = attributes.find("block_stride");
  return found == attributes.end() ? page_size : std::strtoll(found->second.c_str(), nullptr, 10);
}

class TopkSlots final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto page_size = parse_page_size(data.contract);
    DSAKIT_TRY(page_size);
    const Tensor& indices = data.input("topk_indices");
    const Tensor& table = data.input("block_table");
    Expected slots;
    slots.output = "slots";
    slots.value.tensor = Tensor(Dtype::int32, indices.shape);
    DSAKIT_TRY(reference::topk_slots(indices.as<std::int32_t>(), indices.shape[0], indices.shape[1],
                                     {table.as<std::int32_t>(), table.shape[0], table.shape[1]},
                                     data.input("row_request").as<std::int32_t>(), *page_size,
                                     block_stride(data, *page_size),
                                     slots.value.tensor.as<std::int32_t>()));
    return std::vector<Expected>{std::move(slots)};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto page_size = parse_page_size(data.contract);
    DSAKIT_TRY(page_size);
    const Tensor& indices = data.input("topk_indices");
    const Tensor& table = data.input("block_table");
    const auto device_indices = DeviceBuffer::upload(device, indices);
    DSAKIT_TRY(device_indices);
    const auto device_table = DeviceBuffer::upload(device, table);
    DSAKIT_TRY(device_table);
    const auto row_request = DeviceBuffer::upload(device, data.input("row_request"));
    DSAKIT_TRY(row_request);
    Tensor slots = poisoned(Dtype::int32, indices.shape);
    const auto device_slots = DeviceBuffer::upload(device, slots);
    DSAKIT_TRY(device_slots);

    optimized::TopkSlotsParams params{};
    params.topk_indices = device_indices->as<std::int32_t>();
    params.block_table = device_table->as<std::int32_t>();
    params.row_request = row_request->as<std::int32_t>();
    params.slots = device_slots->as<std::int32_t>();
    params.rows = indices.shape[0];
    params.table_stride = table.shape[1];
    params.k = static_cast<std::int32_t>(indices.shape[1]);
    params.requests = static_cast<std::int32_t>(table.shape[0]);
    params.table_columns = static_cast<std::int32_t>(table.shape[1]);
    params.page_size = static_cast<std::int32_t>(*page_size);
    params.block_stride = static_cast<std::int32_t>(block_stride(data, *page_size));

    auto run = launch(device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "slots", *device_slots, std::move(slots)));
    return run;
  }
};

} // namespace

const OperationAdapter& topk_slots_adapter() {
  static const TopkSlots adapter;
  return adapter;
}

} // namespace dsakit::harness
