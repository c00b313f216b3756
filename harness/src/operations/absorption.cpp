// absorb_q and absorb_v: W_UK and W_UV of each head, beside one another in kv_b_proj (spec 1).
#include "adapters.hpp"
#include "dsakit/optimized/projection.hpp"
#include "dsakit/reference/dense.hpp"
#include "launch.hpp"
#include "projected.hpp"

namespace dsakit::harness {
namespace {

/// The extents of one operation; `absorbed` rows of a head's `head_rows` in the weight are its own.
struct Sizes {
  std::int64_t tokens, heads, head_rows, latent, pe, absorbed;
};

Sizes sizes_of(const OperationData& data) {
  const Tensor& weight = data.input("weight");
  const Tensor* q = data.optional_input("q");
  const Shape& x = q ? q->shape : data.input("latent").shape;
  Sizes sizes{x[0], x[1], weight.shape[0] / x[1], weight.shape[1], 0, 0};
  if (q) {
    sizes.pe = data.output("mla_query").tensor.shape[2] - sizes.latent;
    sizes.absorbed = x[2] - sizes.pe;
  } else {
    sizes.absorbed = data.output("attn_value").tensor.shape[1] / sizes.heads;
  }
  return sizes;
}

class AbsorbQ final : public Projected {
public:
  AbsorbQ() : Projected("mla_query") {}

  /// The latent part is a product a head; q_pe is copied beside it.
  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    DSAKIT_TRY(need_bf16(data.contract));
    const Sizes s = sizes_of(data);
    const auto q = DeviceBuffer::upload(device, data.input("q"));
    DSAKIT_TRY(q);
    const auto weight = upload_weight(device, data);
    DSAKIT_TRY(weight);
    Tensor query = poisoned(Dtype::bfloat16, data.output("mla_query").tensor.shape);
    const auto device_query = DeviceBuffer::upload(device, query);
    DSAKIT_TRY(device_query);

    const std::int64_t q_dim = s.absorbed + s.pe, query_dim = s.latent + s.pe;
    optimized::ProjectionParams params{};
    params.x = q->as<std::uint16_t>();
    params.weight = weight->as<std::uint16_t>();
    params.y = device_query->as<std::uint16_t>();
    params.x_batch_stride = q_dim;
    params.x_row_stride = s.heads * q_dim;
    params.weight_batch_stride = s.head_rows * s.latent;
    params.weight_out_stride = 1; // W_UK is summed over its rows
    params.weight_in_stride = s.latent;
    params.y_batch_stride = query_dim;
    params.y_row_stride = s.heads * query_dim;
    params.rows = s.tokens;
    params.in = s.absorbed;
    params.out = s.latent;
    params.batch = s.heads;
    auto run = project(data, device, params);
    DSAKIT_TRY(run);
    constexpr std::int64_t kBytes = 2;
    DSAKIT_TRY(device.copy_rows(device_query->as<std::uint16_t>() + s.latent, query_dim * kBytes,
                                q->as<std::uint16_t>() + s.absorbed, q_dim * kBytes, s.pe * kBytes,
                                s.tokens * s.heads));
    DSAKIT_TRY(take_output(*run, "mla_query", *device_query, std::move(query)));
    return run;
  }

private:
  Status exact(const OperationData& data, const reference::Weight& weight,
               std::vector<double>& values, std::vector<double>& bound) const override {
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Sizes s = sizes_of(data);
    values.resize(static_cast<std::size_t>(s.tokens * s.heads * (s.latent + s.pe)));
    bound.resize(values.size());
    return reference::absorb_q_exact({data.input("q").as<std::uint16_t>(),
                                      s.tokens,
                                      s.heads,
                                      {s.absorbed, s.pe, s.head_rows - s.absorbed, s.latent},
                                      weight,
                                      *dtype},
                                     values.data(), bound.data());
  }
};

class AbsorbV final : public Projected {
public:
  AbsorbV() : Projected("attn_value") {}

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    DSAKIT_TRY(need_bf16(data.contract));
    const Sizes s = sizes_of(data);
    const auto latent = DeviceBuffer::upload(device, data.input("latent"));
    DSAKIT_TRY(latent);
    const auto weight = upload_weight(device, data);
    DSAKIT_TRY(weight);
    Tensor value = poisoned(Dtype::bfloat16, data.output("attn_value").tensor.shape);
    const auto device_value = DeviceBuffer::upload(device, value);
    DSAKIT_TRY(device_value);

    optimized::ProjectionParams params{};
    params.x = latent->as<std::uint16_t>();
    params.weight = weight->as<std::uint16_t>() + (s.head_rows - s.absorbed) * s.latent;
    params.y = device_value->as<std::uint16_t>();
    params.x_batch_stride = s.latent;
    params.x_row_stride = s.heads * s.latent;
    params.weight_batch_stride = s.head_rows * s.latent;
    params.weight_out_stride = s.latent;
    params.weight_in_stride = 1;
    params.y_batch_stride = s.absorbed;
    params.y_row_stride = s.heads * s.absorbed;
    params.rows = s.tokens;
    params.in = s.latent;
    params.out = s.absorbed;
    params.batch = s.heads;
    auto run = project(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "attn_value", *device_value, std::move(value)));
    return run;
  }

private:
  Status exact(const OperationData& data, const reference::Weight& weight,
               std::vector<double>& values, std::vector<double>& bound) const override {
    const auto dtype = parse_activation_dtype(data.contract);
    DSAKIT_TRY(dtype);
    const Sizes s = sizes_of(data);
    values.resize(static_cast<std::size_t>(s.tokens * s.heads * s.absorbed));
    bound.resize(values.size());
    return reference::absorb_v_exact({data.input("latent").as<std::uint16_t>(),
                                      s.tokens,
                                      s.heads,
                                      {s.head_rows - s.absorbed, 0, s.absorbed, s.latent},
                                      weight,
                                      *dtype},
                                     values.data(), bound.data());
  }
};

} // namespace

const OperationAdapter& absorb_q_adapter() {
  static const AbsorbQ adapter;
  return adapter;
}
const OperationAdapter& absorb_v_adapter() {
  static const AbsorbV adapter;
  return adapter;
}

} // namespace dsakit::harness
