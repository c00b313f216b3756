// index_logits_decode in MXFP4: scores over the paged cache (spec 3.3).
#include "dsakit/optimized/index_logits_decode.hpp"

#include "adapters.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "index_pages.hpp"
#include "launch.hpp"
#include "logits.hpp"

namespace dsakit::harness {
namespace {

/// The inputs as the reference takes them.
struct DecodeMxfp4 {
  Mxfp4Pages pages;
  PageGeometry geometry;
  std::vector<std::int32_t> row_request;
  reference::IndexLogitsDecodeMxfp4 in; ///< row_request points into the vector above

  static Result<DecodeMxfp4> load(const OperationData& data) {
    const auto pages = parse_mxfp4_pages(data.contract);
    DSAKIT_TRY(pages);
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const auto geometry = page_geometry(data.tensors.inputs.at("index_cache"), *pages);
    DSAKIT_TRY(geometry);
    const Tensor& q = data.input("index_q_packed");
    const Tensor& table = data.input("block_table");
    auto row_request = row_requests(data.tensors, q.shape[0], table.shape[0]);
    DSAKIT_TRY(row_request);

    DecodeMxfp4 decode{*pages, *geometry, std::move(*row_request), {}};
    decode.in.index_q_packed = q.as<std::uint8_t>();
    decode.in.index_q_scale = data.input("index_q_scale").as<std::uint8_t>();
    decode.in.index_weights = data.input("index_weights").as<std::uint16_t>();
    decode.in.cache = {data.input("index_cache").as<std::uint8_t>() + geometry->offset,
                       geometry->pages, geometry->stride};
    decode.in.block_table = {table.as<std::int32_t>(), table.shape[0], table.shape[1]};
    decode.in.row_lens = data.input("row_lens").as<std::int32_t>();
    decode.in.row_request = decode.row_request.data();
    decode.in.rows = q.shape[0];
    decode.in.heads = q.shape[1];
    decode.in.columns = data.output("logits").tensor.shape.at(1);
    decode.in.activation_dtype = *dtype;
    return decode;
  }
};

class IndexLogitsDecodeMxfp4 final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto decode = DecodeMxfp4::load(data);
    DSAKIT_TRY(decode);
    std::vector<double> values(logit_count(decode->in));
    DSAKIT_TRY(reference::index_logits_decode_mxfp4<reference::Exact>(decode->pages, decode->in,
                                                                      values.data()));
    return std::vector<Expected>{expected_logits(
        decode->in, std::move(values), [&](std::int64_t i) { return in_row(decode->in, i); })};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation accumulation) const override {
    const auto decode = DecodeMxfp4::load(data);
    DSAKIT_TRY(decode);
    std::vector<double> bound(logit_count(decode->in));
    DSAKIT_TRY(reference::index_logits_decode_mxfp4_bound(decode->pages, decode->in, accumulation,
                                                          bound.data()));
    return bound;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto decode = DecodeMxfp4::load(data);
    DSAKIT_TRY(decode);
    DSAKIT_TRY(need_bf16(data.contract));
    const auto q_packed = DeviceBuffer::upload(device, data.input("index_q_packed"));
    DSAKIT_TRY(q_packed);
    const auto q_scale = DeviceBuffer::upload(device, data.input("index_q_scale"));
    DSAKIT_TRY(q_scale);
    const auto cache = DeviceBuffer::upload(device, data.input("index_cache"));
    DSAKIT_TRY(cache);
    const auto weights = DeviceBuffer::upload(device, data.input("index_weights"));
    DSAKIT_TRY(weights);
    const auto block_table = DeviceBuffer::upload(device, data.input("block_table"));
    DSAKIT_TRY(block_table);
    const auto row_lens = DeviceBuffer::upload(device, data.input("row_lens"));
    DSAKIT_TRY(row_lens);
    const auto row_request =
        DeviceBuffer::upload(device, reinterpret_cast<const std::byte*>(decode->row_request.data()),
                             decode->row_request.size() * sizeof(std::int32_t));
    DSAKIT_TRY(row_request);
    const Tensor untouched = poisoned(Dtype::float32, {decode->in.rows, decode->in.columns});
    const auto logits = DeviceBuffer::upload(device, untouched);
    DSAKIT_TRY(logits);

    optimized::IndexLogitsDecodeMxfp4Params params{};
    params.q_packed = q_packed->as<std::uint8_t>();
    params.q_scale = q_scale->as<std::uint8_t>();
    params.cache = cache->as<std::uint8_t>() + decode->geometry.offset;
    params.weights = weights->as<std::uint16_t>();
    params.block_table = block_table->as<std::int32_t>();
    params.row_lens = row_lens->as<std::int32_t>();
    params.row_request = row_request->as<std::int32_t>();
    params.logits = logits->as<float>();
    params.q_stride = decode->in.heads * reference::kMxfp4Bytes;
    params.q_scale_stride = decode->in.heads * reference::kMxfp4Groups;
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
    params.weight_scale = reference::mxfp4_weight_scale(decode->in.heads);
    params.layout = decode->pages.index_page_layout;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "logits", *logits, untouched));
    note_beyond(*run, "logits", untouched, [&](std::int64_t i) { return in_row(decode->in, i); });
    return run;
  }
};

} // namespace

const OperationAdapter& index_logits_decode_mxfp4_adapter() {
  static const IndexLogitsDecodeMxfp4 adapter;
  return adapter;
}

} // namespace dsakit::harness
