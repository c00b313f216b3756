// index_logits_prefill in MXFP4: scores of gathered keys, a window a row (spec 3.3).
#include "dsakit/optimized/index_logits_prefill.hpp"

#include "adapters.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "launch.hpp"
#include "logits.hpp"

namespace dsakit::harness {
namespace {

/// The inputs as the reference takes them.
struct PrefillMxfp4 {
  reference::IndexLogitsPrefillMxfp4 in;

  static Result<PrefillMxfp4> load(const OperationData& data) {
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Tensor& q = data.input("index_q_packed");
    const Tensor* origin = data.optional_input("column_origin");
    PrefillMxfp4 prefill{};
    prefill.in.index_q_packed = q.as<std::uint8_t>();
    prefill.in.index_q_scale = data.input("index_q_scale").as<std::uint8_t>();
    prefill.in.index_weights = data.input("index_weights").as<std::uint16_t>();
    prefill.in.k_packed = data.input("k_packed").as<std::uint8_t>();
    prefill.in.k_scale = data.input("k_scale").as<std::uint8_t>();
    prefill.in.ks = data.input("ks").as<std::int32_t>();
    prefill.in.ke = data.input("ke").as<std::int32_t>();
    prefill.in.column_origin = origin ? origin->as<std::int32_t>() : nullptr;
    prefill.in.rows = q.shape[0];
    prefill.in.heads = q.shape[1];
    prefill.in.keys = data.input("k_packed").shape[0];
    prefill.in.columns = data.output("logits").tensor.shape.at(1);
    prefill.in.activation_dtype = *dtype;
    return prefill;
  }
};

class IndexLogitsPrefillMxfp4 final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto prefill = PrefillMxfp4::load(data);
    DSAKIT_TRY(prefill);
    std::vector<double> values(logit_count(prefill->in));
    DSAKIT_TRY(reference::index_logits_prefill_mxfp4<reference::Exact>(prefill->in, values.data()));
    return std::vector<Expected>{expected_logits(
        prefill->in, std::move(values), [&](std::int64_t i) { return in_window(prefill->in, i); })};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation accumulation) const override {
    const auto prefill = PrefillMxfp4::load(data);
    DSAKIT_TRY(prefill);
    std::vector<double> bound(logit_count(prefill->in));
    DSAKIT_TRY(
        reference::index_logits_prefill_mxfp4_bound(prefill->in, accumulation, bound.data()));
    return bound;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto prefill = PrefillMxfp4::load(data);
    DSAKIT_TRY(prefill);
    DSAKIT_TRY(need_bf16(data.contract));
    const auto q_packed = DeviceBuffer::upload(device, data.input("index_q_packed"));
    DSAKIT_TRY(q_packed);
    const auto q_scale = DeviceBuffer::upload(device, data.input("index_q_scale"));
    DSAKIT_TRY(q_scale);
    const auto k_packed = DeviceBuffer::upload(device, data.input("k_packed"));
    DSAKIT_TRY(k_packed);
    const auto k_scale = DeviceBuffer::upload(device, data.input("k_scale"));
    DSAKIT_TRY(k_scale);
    const auto weights = DeviceBuffer::upload(device, data.input("index_weights"));
    DSAKIT_TRY(weights);
    const auto ks = DeviceBuffer::upload(device, data.input("ks"));
    DSAKIT_TRY(ks);
    const auto ke = DeviceBuffer::upload(device, data.input("ke"));
    DSAKIT_TRY(ke);
    const Tensor* origin = data.optional_input("column_origin");
    const auto column_origin = DeviceBuffer::upload(device, origin ? *origin : Tensor{});
    DSAKIT_TRY(column_origin);
    const Tensor untouched = poisoned(Dtype::float32, {prefill->in.rows, prefill->in.columns});
    const auto logits = DeviceBuffer::upload(device, untouched);
    DSAKIT_TRY(logits);

    optimized::IndexLogitsPrefillMxfp4Params params{};
    params.q_packed = q_packed->as<std::uint8_t>();
    params.q_scale = q_scale->as<std::uint8_t>();
    params.k_packed = k_packed->as<std::uint8_t>();
    params.k_scale = k_scale->as<std::uint8_t>();
    params.weights = weights->as<std::uint16_t>();
    params.ks = ks->as<std::int32_t>();
    params.ke = ke->as<std::int32_t>();
    params.column_origin = origin ? column_origin->as<std::int32_t>() : nullptr;
    params.logits = logits->as<float>();
    params.q_stride = prefill->in.heads * reference::kMxfp4Bytes;
    params.q_scale_stride = prefill->in.heads * reference::kMxfp4Groups;
    params.weights_stride = prefill->in.heads;
    params.logits_stride = prefill->in.columns;
    params.rows = prefill->in.rows;
    params.heads = static_cast<std::int32_t>(prefill->in.heads);
    params.keys = static_cast<std::int32_t>(prefill->in.keys);
    params.columns = static_cast<std::int32_t>(prefill->in.columns);
    params.weight_scale = reference::mxfp4_weight_scale(prefill->in.heads);

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "logits", *logits, untouched));
    note_beyond(*run, "logits", untouched,
                [&](std::int64_t i) { return in_window(prefill->in, i); });
    return run;
  }
};

} // namespace

const OperationAdapter& index_logits_prefill_mxfp4_adapter() {
  static const IndexLogitsPrefillMxfp4 adapter;
  return adapter;
}

} // namespace dsakit::harness
