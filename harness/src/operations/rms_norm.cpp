// q_norm and kv_norm: RMSNorm of columns of qkv_a, or of a tensor of those alone (spec 1).
#include "dsakit/optimized/rms_norm.hpp"

#include "adapters.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/dense.hpp"
#include "dsakit/reference/norms.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

constexpr std::int64_t kPeColumns = 64; // the last columns of qkv_a: k_pe, which no norm takes

class RmsNorm final : public OperationAdapter {
public:
  /// `last`: the norm takes the columns before k_pe, else the first ones.
  RmsNorm(const char* x, const char* y, bool last) : x_(x), y_(y), last_(last) {}

  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = load(data);
    DSAKIT_TRY(in);
    Expected y;
    y.output = y_;
    y.value.tensor = Tensor(in->x->dtype, {in->rows, in->norm.width});
    y.value.unrounded.resize(in->columns.size());
    std::vector<double> bound(in->columns.size());
    DSAKIT_TRY(reference::apply_norm(in->norm, in->columns.data(), in->rows,
                                     y.value.tensor.as<std::uint16_t>()));
    DSAKIT_TRY(reference::apply_norm_exact(in->norm, in->columns.data(), in->rows,
                                           y.value.unrounded.data(), bound.data()));
    return std::vector<Expected>{std::move(y)};
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view,
                                    Accumulation) const override {
    const auto in = load(data);
    DSAKIT_TRY(in);
    std::vector<double> exact(in->columns.size());
    std::vector<double> bound(in->columns.size());
    DSAKIT_TRY(reference::apply_norm_exact(in->norm, in->columns.data(), in->rows, exact.data(),
                                           bound.data()));
    return bound;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = load(data);
    DSAKIT_TRY(in);
    DSAKIT_TRY(need_bf16(data.contract));
    const auto x = DeviceBuffer::upload(device, *in->x);
    DSAKIT_TRY(x);
    const auto weight = DeviceBuffer::upload(device, in->weight);
    DSAKIT_TRY(weight);
    Tensor y = poisoned(Dtype::bfloat16, {in->rows, in->norm.width});
    const auto device_y = DeviceBuffer::upload(device, y);
    DSAKIT_TRY(device_y);

    optimized::RmsNormParams params{};
    params.x = x->as<std::uint16_t>() + in->first;
    params.weight = weight->as<float>();
    params.y = device_y->as<std::uint16_t>();
    params.x_stride = in->x->shape[1];
    params.y_stride = in->norm.width;
    params.rows = in->rows;
    params.width = static_cast<std::int32_t>(in->norm.width);
    params.eps = in->norm.eps;
    params.rounding = in->norm.rounding;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, y_, *device_y, std::move(y)));
    return run;
  }

private:
  struct Input {
    const Tensor* x; ///< [rows, columns]
    std::int64_t rows;
    std::int64_t first;                 ///< column of x that the norm begins with
    std::vector<std::uint16_t> columns; ///< [rows, width]: those of the norm alone
    std::vector<float> weight;
    reference::Norm norm; ///< points into `weight`
  };

  Result<Input> load(const OperationData& data) const {
    const auto rounding = parse_rmsnorm_rounding(data.contract);
    DSAKIT_TRY(rounding);
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Tensor* qkv_a = data.optional_input("qkv_a");
    Input in{};
    in.x = qkv_a ? qkv_a : &data.input(x_);
    in.rows = in.x->shape[0];
    in.weight = widened(data.input("norm_weight"));
    in.norm.kind = IndexKNorm::rmsnorm;
    in.norm.rounding = *rounding;
    in.norm.dtype = *dtype;
    in.norm.eps = static_cast<float>(*parse_number(data.config.at("rms_norm_eps")));
    in.norm.weight = in.weight.data();
    in.norm.width = static_cast<std::int64_t>(in.weight.size());
    in.first = qkv_a && last_ ? in.x->shape[1] - kPeColumns - in.norm.width : 0;
    in.columns.resize(static_cast<std::size_t>(in.rows * in.norm.width));
    reference::take_columns(in.x->as<std::uint16_t>(), in.rows, in.x->shape[1], in.first,
                            in.norm.width, in.columns.data());
    return in;
  }

  const char* x_;
  const char* y_;
  bool last_;
};

} // namespace

const OperationAdapter& q_norm_adapter() {
  static const RmsNorm adapter("q_c_raw", "index_q_input", false);
  return adapter;
}
const OperationAdapter& kv_norm_adapter() {
  static const RmsNorm adapter("kv_c_raw", "kv_c", true);
  return adapter;
}

} // namespace dsakit::harness
