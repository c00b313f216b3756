// index_cache_gather: keys and scales out of the paged cache (spec 2.6).
#include "dsakit/optimized/index_cache_gather.hpp"

#include "adapters.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "gathered_rows.hpp"
#include "index_pages.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

/// The inputs, and the outputs as they are before the operation: recorded, or poison.
struct Gather {
  const RecordedOperation& tensors;
  PageGeometry geometry;
  IndexPages pages;
  Tensor k_fp8;
  Tensor k_scale;

  const Tensor& input(const char* name) const { return tensors.inputs.at(name).tensor; }
  const Tensor* optional_input(const char* name) const {
    const auto found = tensors.inputs.find(name);
    return found == tensors.inputs.end() ? nullptr : &found->second.tensor;
  }
  std::int64_t rows() const { return k_scale.elements(); }
  std::int64_t requests() const { return input("block_table").shape[0]; }

  static Result<Gather> load(const OperationData& data) {
    const auto pages = parse_index_pages(data.contract);
    DSAKIT_TRY(pages);
    const auto geometry = page_geometry(data.tensors.inputs.at("index_cache"), *pages);
    DSAKIT_TRY(geometry);
    Gather gather{data.tensors, *geometry, *pages, {}, {}};
    const Tensor* k_fp8 = gather.optional_input("k_fp8");
    const Tensor* k_scale = gather.optional_input("k_scale");
    const std::int64_t rows = gathered_rows(data);
    const Dtype code = pages->index_fp8_encoding == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn
                                                                        : Dtype::float8_e4m3fnuz;
    gather.k_fp8 = poisoned(code, {rows, reference::kIndexHeadDim});
    gather.k_scale = poisoned(Dtype::float32, {rows});
    if (k_fp8) gather.k_fp8.bytes = k_fp8->bytes;
    if (k_scale) gather.k_scale.bytes = k_scale->bytes;
    return gather;
  }
};

class IndexCacheGather final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto gather = Gather::load(data);
    DSAKIT_TRY(gather);
    const Tensor& table = gather->input("block_table");
    const Tensor& cu_seq_lens = gather->input("cu_seq_lens");
    const Tensor* row_request = gather->optional_input("row_request");

    Expected k_fp8;
    k_fp8.output = "k_fp8";
    k_fp8.value.tensor = gather->k_fp8;
    k_fp8.before = gather->optional_input("k_fp8");
    Expected k_scale;
    k_scale.output = "k_scale";
    k_scale.value.tensor = gather->k_scale;
    k_scale.before = gather->optional_input("k_scale");
    for (std::int64_t row = 0; row < gather->rows(); ++row) {
      const RowKind kind = row_kind(data, gather->pages.page_size, row);
      // Upstream writes scale 0 for a bad page and leaves the bytes (spec 11).
      k_fp8.may_be_left.insert(k_fp8.may_be_left.end(), reference::kIndexHeadDim,
                               kind != RowKind::copied);
      k_scale.may_be_left.push_back(kind == RowKind::skipped);
    }

    const std::span<const std::int32_t> requests =
        row_request ? std::span(row_request->as<std::int32_t>(),
                                static_cast<std::size_t>(row_request->elements()))
                    : std::span<const std::int32_t>{};
    DSAKIT_TRY(reference::index_cache_gather(
        gather->pages,
        {gather->input("index_cache").as<std::uint8_t>() + gather->geometry.offset,
         gather->geometry.pages, gather->geometry.stride},
        {table.as<std::int32_t>(), table.shape[0], table.shape[1]},
        {cu_seq_lens.as<std::int32_t>(), static_cast<std::size_t>(cu_seq_lens.elements())},
        requests, gather->rows(), k_fp8.value.tensor.as<std::uint8_t>(),
        k_scale.value.tensor.as<float>()));
    std::vector<Expected> outputs;
    outputs.push_back(std::move(k_fp8));
    outputs.push_back(std::move(k_scale));
    return outputs;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    auto gather = Gather::load(data);
    DSAKIT_TRY(gather);
    const Tensor& table = gather->input("block_table");
    const auto cache = DeviceBuffer::upload(device, gather->input("index_cache"));
    DSAKIT_TRY(cache);
    const auto block_table = DeviceBuffer::upload(device, table);
    DSAKIT_TRY(block_table);
    const auto cu_seq_lens = DeviceBuffer::upload(device, gather->input("cu_seq_lens"));
    DSAKIT_TRY(cu_seq_lens);
    const Tensor* requests = gather->optional_input("row_request");
    const auto row_request = DeviceBuffer::upload(device, requests ? *requests : Tensor{});
    DSAKIT_TRY(row_request);
    const auto k_fp8 = DeviceBuffer::upload(device, gather->k_fp8);
    DSAKIT_TRY(k_fp8);
    const auto k_scale = DeviceBuffer::upload(device, gather->k_scale);
    DSAKIT_TRY(k_scale);

    optimized::IndexCacheGatherParams params{};
    params.cache = cache->as<std::uint8_t>() + gather->geometry.offset;
    params.block_table = block_table->as<std::int32_t>();
    params.cu_seq_lens = cu_seq_lens->as<std::int32_t>();
    params.row_request = requests ? row_request->as<std::int32_t>() : nullptr;
    params.k_fp8 = k_fp8->as<std::uint8_t>();
    params.k_scale = k_scale->as<float>();
    params.page_stride = gather->geometry.stride;
    params.table_stride = table.shape[1];
    params.rows = gather->rows();
    params.pages = gather->geometry.pages;
    params.requests = static_cast<std::int32_t>(gather->requests());
    params.table_columns = static_cast<std::int32_t>(table.shape[1]);
    params.page_size = static_cast<std::int32_t>(gather->pages.page_size.value);
    params.layout = gather->pages.index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "k_fp8", *k_fp8, std::move(gather->k_fp8)));
    DSAKIT_TRY(take_output(*run, "k_scale", *k_scale, std::move(gather->k_scale)));
    return run;
  }
};

} // namespace

const OperationAdapter& index_cache_gather_adapter() {
  static const IndexCacheGather adapter;
  return adapter;
}

} // namespace dsakit::harness
