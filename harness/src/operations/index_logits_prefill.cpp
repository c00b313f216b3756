// index_logits_prefill: FP8 indexer scores of gathered keys, a window a row (spec 2.7, 2.8).
#include "dsakit/optimized/index_logits_prefill.hpp"

#include "adapters.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "launch.hpp"
#include "logits.hpp"

namespace dsakit::harness {
namespace {

/// The inputs as the reference takes them.
struct Prefill {
  reference::IndexLogitsPrefill in;

  static Result<Prefill> load(const OperationData& data) {
    const auto encoding = parse_index_fp8_encoding(data.contract);
    DSAKIT_TRY(encoding);
    const Tensor& q = data.input("index_q_fp8");
    const Tensor* origin = data.optional_input("column_origin");
    Prefill prefill{};
    prefill.in.index_q_fp8 = q.as<std::uint8_t>();
    prefill.in.index_weights_folded = data.input("index_weights_folded").as<float>();
    prefill.in.k_fp8 = data.input("k_fp8").as<std::uint8_t>();
    prefill.in.k_scale = data.input("k_scale").as<float>();
    prefill.in.ks = data.input("ks").as<std::int32_t>();
    prefill.in.ke = data.input("ke").as<std::int32_t>();
    prefill.in.column_origin = origin ? origin->as<std::int32_t>() : nullptr;
    prefill.in.rows = q.shape[0];
    prefill.in.heads = q.shape[1];
    prefill.in.keys = data.input("k_scale").elements();
    prefill.in.columns = data.output("logits").tensor.shape[1];
    prefill.in.index_fp8_encoding = *encoding;
    return prefill;
  }
};

class IndexLogitsPrefill final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto prefill = Prefill::load(data);
    DSAKIT_TRY(prefill);
    std::vector<double> values(logit_count(prefill->in));
    DSAKIT_TRY(reference::index_logits_prefill<reference::Exact>(prefill->in, values.data()));
    return std::vector<Expected>{expected_logits(
        prefill->in, std::move(values), [&](std::int64_t i) { return in_window(prefill->in, i); })};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation accumulation) const override {
    const auto prefill = Prefill::load(data);
    DSAKIT_TRY(prefill);
    std::vector<double> bound(logit_count(prefill->in));
    DSAKIT_TRY(reference::index_logits_prefill_bound(prefill->in, accumulation, bound.data()));
    return bound;
  }

  std::vector<std::string> rounding_points(const OperationData&) const override {
    return logits_rounding_points();
  }

  Result<std::map<std::string, Tensor>>
  simulated(const OperationData& data, std::optional<std::size_t> switched) const override {
    const auto prefill = Prefill::load(data);
    DSAKIT_TRY(prefill);
    Tensor logits(Dtype::float32, {prefill->in.rows, prefill->in.columns});
    DSAKIT_TRY(reference::index_logits_prefill_rounded(prefill->in, logits_rounding(switched),
                                                       logits.as<float>()));
    return std::map<std::string, Tensor>{{"logits", std::move(logits)}};
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto prefill = Prefill::load(data);
    DSAKIT_TRY(prefill);
    const auto q = DeviceBuffer::upload(device, data.input("index_q_fp8"));
    DSAKIT_TRY(q);
    const auto k_fp8 = DeviceBuffer::upload(device, data.input("k_fp8"));
    DSAKIT_TRY(k_fp8);
    const auto k_scale = DeviceBuffer::upload(device, data.input("k_scale"));
    DSAKIT_TRY(k_scale);
    const auto weights = DeviceBuffer::upload(device, data.input("index_weights_folded"));
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

    optimized::IndexLogitsPrefillParams params{};
    params.q = q->as<std::uint8_t>();
    params.k_fp8 = k_fp8->as<std::uint8_t>();
    params.k_scale = k_scale->as<float>();
    params.weights = weights->as<float>();
    params.ks = ks->as<std::int32_t>();
    params.ke = ke->as<std::int32_t>();
    params.column_origin = origin ? column_origin->as<std::int32_t>() : nullptr;
    params.logits = logits->as<float>();
    params.q_stride = prefill->in.heads * reference::kIndexHeadDim;
    params.weights_stride = prefill->in.heads;
    params.logits_stride = prefill->in.columns;
    params.rows = prefill->in.rows;
    params.heads = static_cast<std::int32_t>(prefill->in.heads);
    params.keys = static_cast<std::int32_t>(prefill->in.keys);
    params.columns = static_cast<std::int32_t>(prefill->in.columns);
    params.encoding = prefill->in.index_fp8_encoding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "logits", *logits, untouched));
    note_beyond(*run, "logits", untouched,
                [&](std::int64_t i) { return in_window(prefill->in, i); });
    return run;
  }
};

} // namespace

const OperationAdapter& index_logits_prefill_adapter() {
  static const IndexLogitsPrefill adapter;
  return adapter;
}

} // namespace dsakit::harness
