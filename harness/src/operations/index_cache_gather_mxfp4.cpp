// index_cache_gather in MXFP4: packed keys and their groups' scales out of the pages (spec 3.2).
#include "dsakit/optimized/index_cache_gather.hpp"

#include "adapters.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "gathered_rows.hpp"
#include "index_pages.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

/// What the contract says, and the outputs as they are before: recorded, or poison.
struct GatherMxfp4 {
  Mxfp4Pages pages;
  PageGeometry geometry;
  Tensor k_packed;
  Tensor k_scale;

  static Result<GatherMxfp4> load(const OperationData& data) {
    const auto pages = parse_mxfp4_pages(data.contract);
    DSAKIT_TRY(pages);
    const auto geometry = page_geometry(data.tensors.inputs.at("index_cache"), *pages);
    DSAKIT_TRY(geometry);
    const std::int64_t rows = gathered_rows(data);
    GatherMxfp4 gather{*pages, *geometry,
                       poisoned(Dtype::float4_e2m1fn_x2, {rows, reference::kMxfp4Bytes}),
                       poisoned(Dtype::float8_e8m0fnu, {rows, reference::kMxfp4Groups})};
    if (const Tensor* before = data.optional_input("k_packed"))
      gather.k_packed.bytes = before->bytes;
    if (const Tensor* before = data.optional_input("k_scale")) gather.k_scale.bytes = before->bytes;
    return gather;
  }

  std::int64_t rows() const { return k_scale.shape[0]; }
};

class IndexCacheGatherMxfp4 final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto gather = GatherMxfp4::load(data);
    DSAKIT_TRY(gather);
    const Tensor& table = data.input("block_table");
    const Tensor& cu_seq_lens = data.input("cu_seq_lens");
    const Tensor* row_request = data.optional_input("row_request");

    Expected k_packed;
    k_packed.output = "k_packed";
    k_packed.value.tensor = gather->k_packed;
    k_packed.before = data.optional_input("k_packed");
    Expected k_scale;
    k_scale.output = "k_scale";
    k_scale.value.tensor = gather->k_scale;
    k_scale.before = data.optional_input("k_scale");
    for (std::int64_t row = 0; row < gather->rows(); ++row) {
      const RowKind kind = row_kind(data, gather->pages.page_size, row);
      // As in FP8: upstream may leave the bytes of a bad page (spec 11).
      k_packed.may_be_left.insert(k_packed.may_be_left.end(), reference::kMxfp4Bytes,
                                  kind != RowKind::copied);
      k_scale.may_be_left.insert(k_scale.may_be_left.end(), reference::kMxfp4Groups,
                                 kind == RowKind::skipped);
    }

    const std::span<const std::int32_t> requests =
        row_request ? std::span(row_request->as<std::int32_t>(),
                                static_cast<std::size_t>(row_request->elements()))
                    : std::span<const std::int32_t>{};
    DSAKIT_TRY(reference::index_cache_gather_mxfp4(
        gather->pages,
        {data.input("index_cache").as<std::uint8_t>() + gather->geometry.offset,
         gather->geometry.pages, gather->geometry.stride},
        {table.as<std::int32_t>(), table.shape[0], table.shape[1]},
        {cu_seq_lens.as<std::int32_t>(), static_cast<std::size_t>(cu_seq_lens.elements())},
        requests, gather->rows(), k_packed.value.tensor.as<std::uint8_t>(),
        k_scale.value.tensor.as<std::uint8_t>()));
    std::vector<Expected> outputs;
    outputs.push_back(std::move(k_packed));
    outputs.push_back(std::move(k_scale));
    return outputs;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    auto gather = GatherMxfp4::load(data);
    DSAKIT_TRY(gather);
    const Tensor& table = data.input("block_table");
    const auto cache = DeviceBuffer::upload(device, data.input("index_cache"));
    DSAKIT_TRY(cache);
    const auto block_table = DeviceBuffer::upload(device, table);
    DSAKIT_TRY(block_table);
    const auto cu_seq_lens = DeviceBuffer::upload(device, data.input("cu_seq_lens"));
    DSAKIT_TRY(cu_seq_lens);
    const Tensor* requests = data.optional_input("row_request");
    const auto row_request = DeviceBuffer::upload(device, requests ? *requests : Tensor{});
    DSAKIT_TRY(row_request);
    const auto k_packed = DeviceBuffer::upload(device, gather->k_packed);
    DSAKIT_TRY(k_packed);
    const auto k_scale = DeviceBuffer::upload(device, gather->k_scale);
    DSAKIT_TRY(k_scale);

    optimized::IndexCacheGatherMxfp4Params params{};
    params.cache = cache->as<std::uint8_t>() + gather->geometry.offset;
    params.block_table = block_table->as<std::int32_t>();
    params.cu_seq_lens = cu_seq_lens->as<std::int32_t>();
    params.row_request = requests ? row_request->as<std::int32_t>() : nullptr;
    params.k_packed = k_packed->as<std::uint8_t>();
    params.k_scale = k_scale->as<std::uint8_t>();
    params.page_stride = gather->geometry.stride;
    params.table_stride = table.shape[1];
    params.rows = gather->rows();
    params.pages = gather->geometry.pages;
    params.requests = static_cast<std::int32_t>(table.shape[0]);
    params.table_columns = static_cast<std::int32_t>(table.shape[1]);
    params.page_size = static_cast<std::int32_t>(gather->pages.page_size.value);
    params.layout = gather->pages.index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "k_packed", *k_packed, std::move(gather->k_packed)));
    DSAKIT_TRY(take_output(*run, "k_scale", *k_scale, std::move(gather->k_scale)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_cache_gather_mxfp4_adapter() {
  static const IndexCacheGatherMxfp4 adapter;
  return adapter;
}

} // namespace dsakit::harness
