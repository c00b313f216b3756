// sparse_attention: MLA over the selected records of the cache (spec 5.2 to 5.4).
#include "dsakit/optimized/sparse_attention.hpp"

#include <algorithm>

#include "adapters.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "launch.hpp"
#include "mla_pages.hpp"

namespace dsakit::harness {
namespace {

/// Rows of bf16: the reference alone reads them.
bool is_dense(const OperationData& data) {
  return data.operation().format == "bf16_576";
}

/// Cache, encoding and base of fp8_ds_mla.
Status load_records(const OperationData& data, reference::SparseAttention& in) {
  const auto encoding = parse_mla_fp8_encoding(data.contract);
  DSAKIT_TRY(encoding);
  const auto scale_read = parse_mla_scale_read(data.contract.at("mla_scale_read"));
  DSAKIT_TRY(scale_read);
  const auto lse_base = parse_lse_base(data.contract);
  DSAKIT_TRY(lse_base);
  in.cache = mla_pages<const std::uint8_t>(data.input("mla_cache"));
  in.mla_fp8_encoding = *encoding;
  in.mla_scale_read = *scale_read;
  in.lse_base = *lse_base;
  return {};
}

Result<reference::SparseAttention> attention_of(const OperationData& data) {
  const Tensor& q = data.input("mla_query");
  const Tensor& slots = data.input("slots");
  reference::SparseAttention in{};
  in.mla_query = q.as<std::uint16_t>();
  if (is_dense(data)) {
    in.mla_record = reference::MlaRecord::bf16_576;
    in.cache = dense_rows(data.input("mla_cache"));
  } else {
    DSAKIT_TRY(load_records(data, in));
  }
  in.slots = slots.as<std::int32_t>();
  in.tokens = q.shape[0];
  in.heads = q.shape[1];
  in.k = slots.shape[1];
  // Kernels take it as fp32, whatever the digits in /config.
  in.softmax_scale = static_cast<float>(*parse_number(data.config.at("softmax_scale")));
  return in;
}

std::size_t rows_of(const reference::SparseAttention& in) {
  return static_cast<std::size_t>(in.tokens * in.heads);
}

class SparseAttention final : public OperationAdapter {
public:
  Result<std::vector<Expected>> reference(const OperationData& data) const override {
    const auto in = attention_of(data);
    DSAKIT_TRY(in);
    Expected latent;
    latent.output = "latent";
    latent.value.unrounded.resize(rows_of(*in) * reference::kMlaLatent);
    latent.value.tensor = Tensor(Dtype::bfloat16, {in->tokens, in->heads, reference::kMlaLatent});
    Expected lse;
    lse.output = "lse";
    lse.value.unrounded.resize(rows_of(*in));
    lse.value.tensor = Tensor(Dtype::float32, {in->tokens, in->heads});
    DSAKIT_TRY(reference::sparse_attention_exact(*in, latent.value.unrounded.data(),
                                                 lse.value.unrounded.data()));
    std::transform(latent.value.unrounded.begin(), latent.value.unrounded.end(),
                   latent.value.tensor.as<std::uint16_t>(), [](double value) {
                     return reference::float_to_bf16(static_cast<float>(value));
                   });
    std::transform(lse.value.unrounded.begin(), lse.value.unrounded.end(),
                   lse.value.tensor.as<float>(),
                   [](double value) { return static_cast<float>(value); });
    std::vector<Expected> outputs;
    outputs.push_back(std::move(latent));
    outputs.push_back(std::move(lse));
    return outputs;
  }

  Result<std::vector<double>> bound(const OperationData& data, std::string_view output,
                                    Accumulation accumulation) const override {
    const auto in = attention_of(data);
    DSAKIT_TRY(in);
    if (accumulation == Accumulation::sm90_wgmma_fp8)
      return bad_input("sparse_attention " + std::string(output) +
                       ": found accumulation sm90_wgmma_fp8, want exact | fp32");
    std::vector<double> latent(rows_of(*in) * reference::kMlaLatent);
    std::vector<double> lse(rows_of(*in));
    DSAKIT_TRY((accumulation == Accumulation::exact
                    ? reference::sparse_attention_exact_bound
                    : reference::sparse_attention_bound)(*in, latent.data(), lse.data()));
    return output == "lse" ? lse : latent;
  }

  std::vector<std::string> rounding_points(const OperationData&) const override {
    return {"probability not rounded to bf16", "score rounded to bf16",
            "probability rounded to bf16 in the sum, too", "weighted sum rounded to bf16"};
  }

  Result<std::map<std::string, Tensor>>
  simulated(const OperationData& data, std::optional<std::size_t> switched) const override {
    const auto in = attention_of(data);
    DSAKIT_TRY(in);
    Tensor latent(Dtype::bfloat16, {in->tokens, in->heads, reference::kMlaLatent});
    Tensor lse(Dtype::float32, {in->tokens, in->heads});
    DSAKIT_TRY(reference::sparse_attention(
        *in, latent.as<std::uint16_t>(), lse.as<float>(),
        {switched != 0u, switched == 1u, switched == 2u, switched == 3u}));
    return std::map<std::string, Tensor>{{"latent", std::move(latent)}, {"lse", std::move(lse)}};
  }

  std::string reference_only(const OperationData& data) const override {
    return is_dense(data) ? "no kernel reads mla_record bf16_576" : "";
  }

  Result<KernelRun> run(const OperationData& data, optimized::Device& device) const override {
    const auto in = attention_of(data);
    DSAKIT_TRY(in);
    const auto q = DeviceBuffer::upload(device, data.input("mla_query"));
    DSAKIT_TRY(q);
    const auto cache = DeviceBuffer::upload(device, data.input("mla_cache"));
    DSAKIT_TRY(cache);
    const auto slots = DeviceBuffer::upload(device, data.input("slots"));
    DSAKIT_TRY(slots);
    Tensor latent = poisoned(Dtype::bfloat16, {in->tokens, in->heads, reference::kMlaLatent});
    const auto device_latent = DeviceBuffer::upload(device, latent);
    DSAKIT_TRY(device_latent);
    Tensor lse = poisoned(Dtype::float32, {in->tokens, in->heads});
    const auto device_lse = DeviceBuffer::upload(device, lse);
    DSAKIT_TRY(device_lse);

    optimized::SparseAttentionParams params{};
    params.q = q->as<std::uint16_t>();
    params.cache = cache->as<std::uint8_t>();
    params.slots = slots->as<std::int32_t>();
    params.latent = device_latent->as<std::uint16_t>();
    params.lse = device_lse->as<float>();
    params.q_token_stride = in->heads * (reference::kMlaLatent + reference::kMlaPe);
    params.slots_stride = in->k;
    params.page_stride = in->cache.page_stride;
    params.record_stride = in->cache.record_stride;
    params.tokens = in->tokens;
    params.pages = in->cache.pages;
    params.heads = static_cast<std::int32_t>(in->heads);
    params.k = static_cast<std::int32_t>(in->k);
    params.page_size = static_cast<std::int32_t>(in->cache.page_size);
    params.softmax_scale = static_cast<float>(in->softmax_scale);
    params.encoding = in->mla_fp8_encoding;
    params.scale_read = in->mla_scale_read;
    params.lse_base = in->lse_base;

    auto run = launch(data, device, params);
    DSAKIT_TRY(run);
    DSAKIT_TRY(take_output(*run, "latent", *device_latent, std::move(latent)));
    DSAKIT_TRY(take_output(*run, "lse", *device_lse, std::move(lse)));
    return run;
  }
};

} // namespace

const OperationAdapter& sparse_attention_adapter() {
  static const SparseAttention adapter;
  return adapter;
}

} // namespace dsakit::harness
