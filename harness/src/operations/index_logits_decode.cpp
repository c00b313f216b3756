// index_logits_decode: FP8 indexer scores over the paged cache (spec 2.8).
#include "dsakit/optimized/index_logits_decode.hpp"

#include <algorithm>

#include "adapters.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "index_pages.hpp"
#include "launch.hpp"
#include "logits.hpp"

namespace dsakit::harness {
namespace {

/// The inputs as the reference takes them.
struct Decode {
  IndexPages pages;
  PageGeometry geometry;
  std::vector<std::int32_t> row_request;
  reference::IndexLogitsDecode in; ///< row_request points into the vector above

  static Result<Decode> load(const OperationData& data) {
    const auto pages = parse_index_pages(data.contract);
    DSAKIT_TRY(pages);
    const auto& inputs = data.tensors.inputs;
    const auto geometry = page_geometry(inputs.at("index_cache"), *pages);
    DSAKIT_TRY(geometry);
    const Tensor& q = inputs.at("index_q_fp8").tensor;
    const Tensor& table = inputs.at("block_table").tensor;
    auto row_request = row_requests(data.tensors, q.shape[0], table.shape[0]);
    DSAKIT_TRY(row_request);

    Decode decode{*pages, *geometry, std::move(*row_request), {}};
    decode.in.index_q_fp8 = q.as<std::uint8_t>();
    decode.in.index_weights_folded = inputs.at("index_weights_folded").tensor.as<float>();
    decode.in.cache = {inputs.at("index_cache").tensor.as<std::uint8_t>() + geometry->offset,
                       geometry->pages, geometry->stride};
    decode.in.block_table = {table.as<std::int32_t>(), table.shape[0], table.shape[1]};
    decode.in.row_lens = inputs.at("row_lens").tensor.as<std::int32_t>();
    decode.in.row_request = decode.row_request.data();
    decode.in.rows = q.shape[0];
    decode.in.heads = q.shape[1];
    decode.in.columns = 0;
    for (std::int64_t row = 0; row < decode.in.rows; ++row)
      decode.in.columns = std::max<std::int64_t>(decode.in.columns, decode.in.row_lens[row]);
    // Recorded logits may be wider than the longest row.
    for (const auto& [name, output] : data.tensors.outputs)
      decode.in.columns = std::max(decode.in.columns, output.tensor.shape.at(1));
    return decode;
  }
};

class IndexLogitsDecode final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto decode = Decode::load(data);
    DSAKIT_TRY(decode);
    std::vector<double> values(logit_count(decode->in));
    DSAKIT_TRY(
        reference::index_logits_decode<reference::Exact>(decode->pages, decode->in, values.data()));
    return std::vector<Expected>{expected_logits(
        decode->in, std::move(values), [&](std::int64_t i) { return in_row(decode->in, i); })};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation accumulation) const override {
    const auto decode = Decode::load(data);
    DSAKIT_TRY(decode);
    std::vector<double> bound(logit_count(decode->in));
    DSAKIT_TRY(reference::index_logits_decode_bound(decode->pages, decode->in, accumulation,
                                                    bound.data()));
    return bound;
  }

  std::vector<std::string> rounding_points(const OperationData&) const override {
    return logits_rounding_points();
  }

  Result<std::map<std::string, Tensor>>
  simulated(const OperationData& data, std::optional<std::size_t> switched) const override {
    const auto decode = Decode::load(data);
    DSAKIT_TRY(decode);
    Tensor logits(Dtype::float32, {decode->in.rows, decode->in.columns});
    DSAKIT_TRY(reference::index_logits_decode_rounded(
        decode->pages, decode->in, logits_rounding(switched), logits.as<float>()));
    return std::map<std::string, Tensor>{{"logits", std::move(logits)}};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto decode = Decode::load(data);
    DSAKIT_TRY(decode);
    const auto& inputs = data.tensors.inputs;
    const auto q = DeviceBuffer::upload(device, inputs.at("index_q_fp8").tensor);
    DSAKIT_TRY(q);
    const auto cache = DeviceBuffer::upload(device, inputs.at("index_cache").tensor);
    DSAKIT_TRY(cache);
    const auto weights = DeviceBuffer::upload(device, inputs.at("index_weights_folded").tensor);
    DSAKIT_TRY(weights);
    const auto block_table = DeviceBuffer::upload(device, inputs.at("block_table").tensor);
    DSAKIT_TRY(block_table);
    const auto row_lens = DeviceBuffer::upload(device, inputs.at("row_lens").tensor);
    DSAKIT_TRY(row_lens);
    const auto row_request =
        DeviceBuffer::upload(device, reinterpret_cast<const std::byte*>(decode->row_request.data()),
                             decode->row_request.size() * sizeof(std::int32_t));
    DSAKIT_TRY(row_request);
    const Tensor untouched = poisoned(Dtype::float32, {decode->in.rows, decode->in.columns});
    const auto device_logits = DeviceBuffer::upload(device, untouched);
    DSAKIT_TRY(device_logits);

    optimized::IndexLogitsDecodeParams params{};
    params.q = q->as<std::uint8_t>();
    params.cache = cache->as<std::uint8_t>() + decode->geometry.offset;
    params.weights = weights->as<float>();
    params.block_table = block_table->as<std::int32_t>();
    params.row_lens = row_lens->as<std::int32_t>();
    params.row_request = row_request->as<std::int32_t>();
    params.logits = device_logits->as<float>();
    params.q_stride = decode->in.heads * reference::kIndexHeadDim;
    params.weights_stride = decode->in.heads;
    params.logits_stride = decode->in.columns;
    params.page_stride = decode->geometry.stride;
    params.table_stride = decode->in.block_table.columns;
    params.rows = decode->in.rows;
    params.pages = decode->geometry.pages;
    params.heads = static_cast<std::int32_t>(decode->in.heads);
    params.requests = static_cast<std::int32_t>(decode->in.block_table.requests);
    params.table_columns = static_cast<std::int32_t>(decode->in.block_table.columns);
    params.next_n = 1; // not read: row_request is given
    params.columns = static_cast<std::int32_t>(decode->in.columns);
    params.page_size = static_cast<std::int32_t>(decode->pages.page_size.value);
    params.encoding = decode->pages.index_fp8_encoding;
    params.layout = decode->pages.index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "logits", *device_logits, untouched));
    note_beyond(*run, "logits", untouched, [&](std::int64_t i) { return in_row(decode->in, i); });
    return run;
  }
};

} // namespace

const OperationAdapter& index_logits_decode_adapter() {
  static const IndexLogitsDecode adapter;
  return adapter;
}

} // namespace dsakit::harness
