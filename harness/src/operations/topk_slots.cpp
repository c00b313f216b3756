// topk_slots: request-local positions to cache slots, of one rank under decode context parallelism
// (spec 5.1, 6).
#include "dsakit/optimized/topk_slots.hpp"

#include "adapters.hpp"
#include "dcp_rank.hpp"
#include "dsakit/reference/topk.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

struct Geometry {
  std::int64_t page_size;
  std::int64_t block_stride; ///< slots between pages, page_size where the recording does not say
  reference::DcpRank dcp;
};

Result<Geometry> geometry(const OperationData& data) {
  const auto page_size = parse_page_size(data.contract);
  DSAKIT_TRY(page_size);
  const auto dcp = rank_of(data, "slots");
  DSAKIT_TRY(dcp);
  return Geometry{*page_size, attribute(data, "slots", "block_stride", *page_size), *dcp};
}

bool wants_compact(const OperationData& data) {
  return data.find_output("compact_slots") || data.find_output("counts");
}

class TopkSlots final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = geometry(data);
    DSAKIT_TRY(in);
    const Tensor& indices = data.input("topk_indices");
    const Tensor& table = data.input("block_table");
    const std::int64_t rows = indices.shape[0], k = indices.shape[1];
    Expected slots, compact, counts;
    slots.output = "slots";
    slots.value.tensor = Tensor(Dtype::int32, indices.shape);
    compact.output = "compact_slots";
    compact.value.tensor = Tensor(Dtype::int32, indices.shape);
    counts.output = "counts";
    counts.value.tensor = Tensor(Dtype::int32, {rows});
    DSAKIT_TRY(reference::topk_slots(indices.as<std::int32_t>(), rows, k,
                                     {table.as<std::int32_t>(), table.shape[0], table.shape[1]},
                                     data.input("row_request").as<std::int32_t>(), in->page_size,
                                     in->block_stride, slots.value.tensor.as<std::int32_t>(),
                                     in->dcp));
    reference::compact_slots(slots.value.tensor.as<std::int32_t>(), rows, k,
                             compact.value.tensor.as<std::int32_t>(),
                             counts.value.tensor.as<std::int32_t>());
    std::vector<Expected> outputs;
    outputs.push_back(std::move(slots));
    outputs.push_back(std::move(compact));
    outputs.push_back(std::move(counts));
    return outputs;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = geometry(data);
    DSAKIT_TRY(in);
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
    const bool compacts = wants_compact(data);
    Tensor compact = poisoned(Dtype::int32, compacts ? indices.shape : Shape{0});
    const auto device_compact = DeviceBuffer::upload(device, compact);
    DSAKIT_TRY(device_compact);
    Tensor counts = poisoned(Dtype::int32, {compacts ? indices.shape[0] : 0});
    const auto device_counts = DeviceBuffer::upload(device, counts);
    DSAKIT_TRY(device_counts);

    optimized::TopkSlotsParams params{};
    params.topk_indices = device_indices->as<std::int32_t>();
    params.block_table = device_table->as<std::int32_t>();
    params.row_request = row_request->as<std::int32_t>();
    params.slots = device_slots->as<std::int32_t>();
    params.compact_slots = compacts ? device_compact->as<std::int32_t>() : nullptr;
    params.counts = compacts ? device_counts->as<std::int32_t>() : nullptr;
    params.rows = indices.shape[0];
    params.table_stride = table.shape[1];
    params.k = static_cast<std::int32_t>(indices.shape[1]);
    params.requests = static_cast<std::int32_t>(table.shape[0]);
    params.table_columns = static_cast<std::int32_t>(table.shape[1]);
    params.page_size = static_cast<std::int32_t>(in->page_size);
    params.block_stride = static_cast<std::int32_t>(in->block_stride);
    params.dcp_world = static_cast<std::int32_t>(in->dcp.world);
    params.dcp_interleave = static_cast<std::int32_t>(in->dcp.interleave);
    params.dcp_rank = static_cast<std::int32_t>(in->dcp.rank);

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "slots", *device_slots, std::move(slots)));
    if (!compacts) return run;
    DSAKIT_TRY(take_output(*run, "compact_slots", *device_compact, std::move(compact)));
    DSAKIT_TRY(take_output(*run, "counts", *device_counts, std::move(counts)));
    return run;
  }
};

} // namespace

const OperationAdapter& topk_slots_adapter() {
  static const TopkSlots adapter;
  return adapter;
}

} // namespace dsakit::harness
