// layer: a decode step of KimiK3DSAAttention, one rank of 8 of Kimi K3.1 (12 heads), FP8 indexer.
#include <algorithm>
#include <map>
#include <numeric>

#include "bench/device_memory.hpp"
#include "dsakit/optimized/layer.hpp"

namespace {

using namespace dsakit;

constexpr std::int64_t kPage = 64;

/// Sizes of the model on a GPU; host lanes take a layer of 4 heads and a narrow model.
optimized::LayerConfig layer_config(bool whole, std::int64_t context, std::int64_t requests) {
  return {.hidden_size = whole ? 7168 : 256,
          .heads = whole ? 12 : 4,
          .q_lora_rank = whole ? 1536 : 128,
          .qk_nope_head_dim = 128,
          .v_head_dim = 128,
          .index_num_heads = whole ? 32 : 16,
          .index_topk = whole ? 2048 : 128,
          .index_k_norm = IndexKNorm::layernorm,
          .mla_use_output_gate = true,
          .rms_norm_eps = 1e-5f,
          .softmax_scale = 0.07216878f,
          .max_tokens = requests,
          .max_requests = requests,
          .max_model_len = context,
          .max_total_seq_len = context,
          .max_logits_bytes = requests * context * 4 * requests,
          .num_speculative_tokens = 0,
          .native_decode = false,
          .attention_splits = 4};
}

LayerContract layer_contract() {
  const IndexPages pages{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, kPage};
  const auto bf16 = ActivationDtype::bf16;
  return {Fp8Indexer{{pages, bf16, ScaleKind::ue8m0, 1e-4f, 448.0f},
                     {Fp8Encoding::e4m3fn, bf16, ScaleKind::ue8m0, 1e-10f, 448.0f},
                     WeightFold::bf16_intermediate},
          {Fp8Encoding::e4m3fn, bf16, 448.0f},
          MlaScaleRead::fp32,
          LseBase::e,
          kPage,
          bf16,
          RmsNormRounding::two,
          GateRounding::two,
          TopkOrder::rank};
}

/// In (-2^-4, 2^-4), so that sums stay small.
std::vector<std::uint16_t> small_bf16(std::size_t n) {
  std::vector<std::uint16_t> values(n);
  std::uint32_t bits = 1;
  for (auto& value : values) {
    bits = bits * 1664525 + 1013904223;
    value = static_cast<std::uint16_t>((bits >> 16 & 0x80FF) | 0x3C00);
  }
  return values;
}

struct Weights {
  std::map<std::string, std::vector<std::uint16_t>> projections;
  optimized::HostLayerWeights view;

  explicit Weights(const optimized::LayerConfig& c) {
    add("fused_qkv_a_proj", c.q_lora_rank + 576, c.hidden_size);
    add("q_b_proj", c.heads * 192, c.q_lora_rank);
    add("kv_b_proj", c.heads * 256, 512);
    add("g_proj", c.heads * 128, c.hidden_size);
    add("o_proj", c.hidden_size, c.heads * 128);
    add("wq_index", c.index_num_heads * 128, c.q_lora_rank);
    add("wk_index", 128, c.hidden_size);
    add("wv_index", c.index_num_heads, c.hidden_size);
    for (const auto& [name, width] : {std::pair{"q_a_layernorm", c.q_lora_rank},
                                      {"kv_a_layernorm", std::int64_t{512}},
                                      {"k_index_norm.weight", std::int64_t{128}},
                                      {"k_index_norm.bias", std::int64_t{128}}})
      view.norms[name] = std::vector<float>(static_cast<std::size_t>(width), 1.0f);
  }

  void add(const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    projections[name] = small_bf16(static_cast<std::size_t>(outputs * inputs));
    view.projections[name] = {WeightFormat::bf16,
                              Fp8Encoding::e4m3fn,
                              projections[name].data(),
                              nullptr,
                              outputs,
                              inputs};
  }
};

void layer(benchmark::State& state, optimized::DeviceKind kind) {
  bench::Bench memory(kind);
  if (!memory) return state.SkipWithError(memory.why_not().c_str());
  optimized::Device& device = memory.device();
  const bool whole = kind != optimized::DeviceKind::host;
  const std::int64_t requests = state.range(0), context = whole ? 8192 : 256;
  const optimized::LayerConfig config = layer_config(whole, context, requests);
  const Weights weights(config);
  auto built =
      optimized::KimiK3DSAAttention::create(device, config, layer_contract(), weights.view);
  if (!built) return state.SkipWithError(built.status().what().c_str());

  const std::int64_t columns = context / kPage, pages = requests * columns;
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::int64_t> slots;
  for (std::int64_t b = 1; b <= requests; ++b)
    slots.push_back(b * context - 1);
  const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const optimized::LayerPool pool{
      nullptr, pages, 0, memory.upload(slots), requests, memory.upload(table), columns};
  optimized::LayerPool index = pool, mla = pool;
  index.cache = memory.upload(bench::random_codes(bytes(pages * kPage * 132)));
  index.page_stride = kPage * 132;
  mla.cache = memory.upload(std::vector<std::uint8_t>(bytes(pages * kPage * 656), 0x38));
  mla.page_stride = kPage * 656;
  const optimized::LayerStep step{
      memory.upload(small_bf16(bytes(requests * config.hidden_size))),
      index,
      mla,
      memory.upload(std::vector<std::int32_t>(bytes(requests * config.index_topk))),
      requests,
      memory.upload(std::vector<std::uint16_t>(bytes(requests * config.hidden_size)))};
  const std::vector<std::int32_t> query_lens(bytes(requests), 1),
      seq_lens(bytes(requests), static_cast<std::int32_t>(context));
  if (const Status status = built->prepare(requests, query_lens, seq_lens); !status)
    return state.SkipWithError(status.what().c_str());
  for (auto _ : state) {
    Status status = device.start_timer();
    if (status) status = built->run(step);
    const auto microseconds = device.stop_timer();
    if (!status || !microseconds) return state.SkipWithError(status.what().c_str());
    state.SetIterationTime(*microseconds * 1e-6);
  }
  state.SetLabel(device.description() + ", " + std::string(device.projection_library()) + ", " +
                 std::to_string(context) + " keys a request");
}
DSAKIT_BENCHMARK(layer, 4, 64);

} // namespace
