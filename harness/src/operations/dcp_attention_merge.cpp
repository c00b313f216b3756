// dcp_attention_merge: one attention of what every rank attended to (spec 6).
#include "dsakit/optimized/dcp_attention_merge.hpp"

#include <algorithm>

#include "adapters.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/formats.hpp"
#include "launch.hpp"

namespace dsakit::harness {
namespace {

Result<reference::DcpAttention> merge_of(const OperationData& data) {
  const auto lse_base = parse_lse_base(data.contract);
  DSAKIT_TRY(lse_base);
  const Tensor& latent = data.input("rank_latent");
  return reference::DcpAttention{
      latent.bytes.data(), latent.dtype,    data.input("rank_lse").as<float>(),
      latent.shape[0],     latent.shape[1], latent.shape[2],
      latent.shape[3],     *lse_base};
}

/// One value an element of each output.
struct Outputs {
  explicit Outputs(const reference::DcpAttention& in)
      : latent(static_cast<std::size_t>(in.rows * in.heads * in.dim)),
        lse(static_cast<std::size_t>(in.rows * in.heads)),
        corrected(static_cast<std::size_t>(in.world) * latent.size()) {}

  std::vector<double> latent, lse, corrected;
};

Expected expected(const char* output, std::vector<double> exact, Dtype dtype, Shape shape) {
  Expected out;
  out.output = output;
  out.value.tensor = Tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto value = static_cast<float>(exact[i]);
    if (dtype == Dtype::bfloat16)
      out.value.tensor.as<std::uint16_t>()[i] = reference::float_to_bf16(value);
    else
      out.value.tensor.as<float>()[i] = value;
  }
  out.value.unrounded = std::move(exact);
  return out;
}

class DcpAttentionMerge final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = merge_of(data);
    DSAKIT_TRY(in);
    Outputs exact(*in);
    DSAKIT_TRY(reference::dcp_attention_merge_exact(*in, exact.latent.data(), exact.lse.data(),
                                                    exact.corrected.data()));
    const Tensor& rank_latent = data.input("rank_latent");
    std::vector<Expected> outputs;
    outputs.push_back(expected("latent", std::move(exact.latent), Dtype::bfloat16,
                               {in->rows, in->heads, in->dim}));
    outputs.push_back(expected("lse", std::move(exact.lse), Dtype::float32, {in->rows, in->heads}));
    outputs.push_back(
        expected("corrected", std::move(exact.corrected), rank_latent.dtype, rank_latent.shape));
    return outputs;
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view output,
                                    Accumulation accumulation) const override {
    const auto in = merge_of(data);
    DSAKIT_TRY(in);
    Outputs bound(*in);
    DSAKIT_TRY(reference::dcp_attention_merge_bound(*in, accumulation, bound.latent.data(),
                                                    bound.lse.data(), bound.corrected.data()));
    return output == "lse" ? bound.lse : output == "latent" ? bound.latent : bound.corrected;
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = merge_of(data);
    DSAKIT_TRY(in);
    const Tensor& rank_latent = data.input("rank_latent");
    const auto device_rank_latent = DeviceBuffer::upload(device, rank_latent);
    DSAKIT_TRY(device_rank_latent);
    const auto rank_lse = DeviceBuffer::upload(device, data.input("rank_lse"));
    DSAKIT_TRY(rank_lse);
    Tensor latent = poisoned(Dtype::bfloat16, {in->rows, in->heads, in->dim});
    const auto device_latent = DeviceBuffer::upload(device, latent);
    DSAKIT_TRY(device_latent);
    Tensor lse = poisoned(Dtype::float32, {in->rows, in->heads});
    const auto device_lse = DeviceBuffer::upload(device, lse);
    DSAKIT_TRY(device_lse);
    const bool wants_corrected = data.find_output("corrected") != nullptr;
    Tensor corrected = poisoned(rank_latent.dtype, wants_corrected ? rank_latent.shape : Shape{0});
    const auto device_corrected = DeviceBuffer::upload(device, corrected);
    DSAKIT_TRY(device_corrected);

    optimized::DcpAttentionMergeParams params{};
    params.rank_latent = device_rank_latent->as<void>();
    params.rank_lse = rank_lse->as<float>();
    params.latent = device_latent->as<std::uint16_t>();
    params.lse = device_lse->as<float>();
    params.corrected = wants_corrected ? device_corrected->as<void>() : nullptr;
    params.latent_rank_stride = in->rows * in->heads * in->dim;
    params.lse_rank_stride = in->rows * in->heads;
    params.rows = in->rows;
    params.world = static_cast<std::int32_t>(in->world);
    params.heads = static_cast<std::int32_t>(in->heads);
    params.dim = static_cast<std::int32_t>(in->dim);
    params.latent_dtype = rank_latent.dtype == Dtype::bfloat16 ? optimized::RankLatentDtype::bf16
                                                               : optimized::RankLatentDtype::fp32;
    params.lse_base = in->lse_base;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "latent", *device_latent, std::move(latent)));
    DSAKIT_TRY(take_output(*run, "lse", *device_lse, std::move(lse)));
    if (wants_corrected)
      DSAKIT_TRY(take_output(*run, "corrected", *device_corrected, std::move(corrected)));
    return run;
  }
};

} // namespace

const OperationAdapter& dcp_attention_merge_adapter() {
  static const DcpAttentionMerge adapter;
  return adapter;
}

} // namespace dsakit::harness
