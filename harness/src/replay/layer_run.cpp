#include "layer_run.hpp"

#include <algorithm>

#include "../operations/index_pages.hpp"
#include "../operations/launch.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "names.hpp"

namespace dsakit::harness {
namespace {

constexpr std::int64_t kSlotsOfASplit = 512; // as sparse_attention alone, untuned

/// An intermediate on the device, and the tensor that it becomes.
struct Intermediate {
  std::string name;
  void* memory;
  Tensor tensor;
};

/// Poisoned, in the shapes that the operations of the recording have.
std::vector<Intermediate> intermediates_of(const optimized::LayerTensors& t,
                                           const optimized::LayerConfig& c, const Fp8Indexer* fp8,
                                           std::int64_t longest, std::int64_t keys) {
  std::vector<Intermediate> list;
  const auto add = [&](const char* name, void* memory, Dtype dtype, Shape shape) {
    if (memory) list.push_back({name, memory, poisoned(dtype, std::move(shape))});
  };
  const auto bf16 = Dtype::bfloat16;
  const std::int64_t rows = c.max_tokens, index_heads = c.index_num_heads;
  const std::int64_t latent = reference::kMlaLatent, pe = reference::kMlaPe;
  const std::int64_t value = c.heads * c.v_head_dim;
  add("qkv_a", t.qkv_a, bf16, {rows, c.q_lora_rank + latent + pe});
  add("index_q_input", t.index_q_input, bf16, {rows, c.q_lora_rank});
  add("q", t.q, bf16, {rows, c.heads, c.qk_nope_head_dim + pe});
  add("kv_c", t.kv_c, bf16, {rows, latent});
  add("index_q", t.index_q, bf16, {rows, index_heads, 128});
  add("index_weights", t.index_weights, bf16, {rows, index_heads});
  add("index_k_raw", t.index_k_raw, bf16, {rows, 128});
  add("index_k", t.index_k, bf16, {rows, 128});
  if (fp8) {
    const Dtype codes = fp8->query.index_fp8_encoding.value == Fp8Encoding::e4m3fn
                            ? Dtype::float8_e4m3fn
                            : Dtype::float8_e4m3fnuz;
    add("index_q_fp8", t.index_q_codes, codes, {rows, index_heads, 128});
    add("index_q_scale", t.index_q_scale, Dtype::float32, {rows, index_heads});
    add("index_weights_folded", t.index_weights_folded, Dtype::float32, {rows, index_heads});
    add("k_fp8", t.keys, codes, {keys, 128});
    add("k_scale", t.key_scales, Dtype::float32, {keys});
  } else {
    add("index_q_packed", t.index_q_codes, Dtype::float4_e2m1fn_x2, {rows, index_heads, 64});
    add("index_q_scale", t.index_q_scale, Dtype::float8_e8m0fnu, {rows, index_heads, 4});
    add("k_packed", t.keys, Dtype::float4_e2m1fn_x2, {keys, 64});
    add("k_scale", t.key_scales, Dtype::float8_e8m0fnu, {keys, 4});
  }
  add("logits", t.logits, Dtype::float32, {rows, longest});
  add("slots", t.slots, Dtype::int32, {rows, c.index_topk});
  add("mla_query", t.mla_query, bf16, {rows, c.heads, latent + pe});
  add("latent", t.latent, bf16, {rows, c.heads, latent});
  add("lse", t.lse, Dtype::float32, {rows, c.heads});
  add("attn_value", t.attn_value, bf16, {rows, value});
  add("gate", t.gate, bf16, {rows, value});
  add("attn_gated", t.attn_gated, bf16, {rows, value});
  return list;
}

} // namespace

std::vector<std::int32_t> RecordedLayer::int32s(const std::string& lens) const {
  const Tensor& tensor = input(std::string(kLayer), lens);
  return {tensor.as<std::int32_t>(), tensor.as<std::int32_t>() + tensor.elements()};
}

const Tensor& RecordedLayer::output(const std::string& operation, const std::string& name) const {
  const auto& outputs = parts_.at(operation).outputs;
  return std::find_if(outputs.begin(), outputs.end(),
                      [&](const auto& output) {
                        return output_of(output.first, output.second.attributes) == name;
                      })
      ->second.tensor;
}

const std::string& RecordedLayer::logits() const {
  static const std::string decode = "index_logits_decode", prefill = "index_logits_prefill";
  return has(decode) ? decode : prefill;
}

const Tensor& RecordedLayer::index_table() const {
  const auto& inputs = parts_.at(logits()).inputs;
  const auto own = inputs.find("block_table");
  return own == inputs.end() ? input("topk_slots", "block_table") : own->second.tensor;
}

optimized::LayerConfig RecordedLayer::config() const {
  const Shape& hidden = input("qkv_a_proj", "hidden_states").shape;
  const Shape& q = output("q_b_proj", "q").shape;
  const Tensor& query_lens = input(std::string(kLayer), "query_lens");
  const auto number = [&](const char* key) {
    return static_cast<float>(*parse_number(config_values_.at(key)));
  };
  std::int64_t keys = 0;
  for (const std::int32_t length : int32s("seq_lens"))
    keys += std::max(length, 0);
  optimized::LayerConfig config{};
  config.hidden_size = hidden[1];
  config.heads = q[1];
  config.q_lora_rank = has("q_norm") ? input("q_norm", "norm_weight").shape[0] : 0;
  config.qk_nope_head_dim = q[2] - reference::kMlaPe;
  config.v_head_dim = output("absorb_v", "attn_value").shape[1] / std::max<std::int64_t>(q[1], 1);
  config.index_num_heads = output("index_q_proj", "index_q").shape[1];
  config.index_topk = output("topk", "topk_indices").shape[1];
  config.index_k_norm = parts_.at("index_key_norm").inputs.count("norm_bias")
                            ? IndexKNorm::layernorm
                            : IndexKNorm::rmsnorm;
  config.mla_use_output_gate = has("output_gate") && has("gate_proj");
  config.rms_norm_eps = number("rms_norm_eps");
  config.softmax_scale = number("softmax_scale");
  config.max_tokens = hidden[0];
  config.max_requests = std::max<std::int64_t>(query_lens.elements(), 1);
  config.max_model_len = std::max<std::int64_t>(longest_of(int32s("seq_lens")), 1);
  config.max_total_seq_len = std::max<std::int64_t>(keys, 1);
  // The step's rows are one launch of the indexer, so that its logits stay whole.
  config.max_logits_bytes =
      std::max<std::int64_t>(hidden[0] * keys * static_cast<std::int64_t>(sizeof(float)), 4);
  // All of them decode, or none: as they were recorded.
  config.num_speculative_tokens =
      logits() == "index_logits_decode" ? longest_of(int32s("query_lens")) - 1 : -1;
  config.attention_splits = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(config.index_topk / kSlotsOfASplit, 1, 64));
  return config;
}

optimized::HostLayerWeights RecordedLayer::weights() const {
  optimized::HostLayerWeights weights;
  const auto add = [&](const std::string& name, const std::string& operation) {
    const OperationData data{{0, operation}, {}, parts_.at(operation)};
    const reference::Weight w = weight_of(data);
    weights.projections[name] = {w.format, w.encoding, w.values, w.scales, w.outputs, w.inputs};
  };
  const bool q_lora = has("q_norm");
  add(q_lora ? "fused_qkv_a_proj" : "kv_a_proj_with_mqa", "qkv_a_proj");
  add(q_lora ? "q_b_proj" : "q_proj", "q_b_proj");
  add("kv_b_proj", "absorb_q");
  if (config().mla_use_output_gate) add("g_proj", "gate_proj");
  add("o_proj", "o_proj");
  add("wq_index", "index_q_proj");
  add("wk_index", "index_k_proj");
  add("wv_index", "index_w_proj");
  for (const auto& [name, values] : norms_)
    weights.norms[name] = values;
  return weights;
}

Result<std::vector<Expected>> RecordedLayer::reference(const OperationData&) const {
  return bad_input("layer: has no reference of its own, each of its operations has one");
}

Result<KernelRun> RecordedLayer::run(const OperationData&, optimized::Device& device) const {
  const optimized::LayerConfig c = config();
  auto layer = optimized::KimiK3DSAAttention::create(device, c, contract_, weights());
  DSAKIT_TRY(layer);
  DSAKIT_TRY(layer->prepare(c.max_tokens, int32s("query_lens"), int32s("seq_lens")));

  const auto hidden = DeviceBuffer::upload(device, input("qkv_a_proj", "hidden_states"));
  DSAKIT_TRY(hidden);
  struct Pool {
    DeviceBuffer cache, slots, table;
  };
  const auto upload = [&](const std::string& write, const char* cache_name,
                          const Tensor& table) -> Result<Pool> {
    auto cache = DeviceBuffer::upload(device, input(write, cache_name));
    DSAKIT_TRY(cache);
    auto slots = DeviceBuffer::upload(device, input(write, "slot_mapping"));
    DSAKIT_TRY(slots);
    auto entries = DeviceBuffer::upload(device, table);
    DSAKIT_TRY(entries);
    return Pool{std::move(*cache), std::move(*slots), std::move(*entries)};
  };
  const auto index = upload("index_cache_write", "index_cache", index_table());
  DSAKIT_TRY(index);
  const auto mla = upload("mla_cache_write", "mla_cache", input("topk_slots", "block_table"));
  DSAKIT_TRY(mla);
  Tensor topk = poisoned(Dtype::int32, {c.max_tokens, c.index_topk});
  const auto device_topk = DeviceBuffer::upload(device, topk);
  DSAKIT_TRY(device_topk);
  Tensor output = poisoned(Dtype::bfloat16, {c.max_tokens, c.hidden_size});
  const auto device_output = DeviceBuffer::upload(device, output);
  DSAKIT_TRY(device_output);

  const RecordedTensor& index_cache = parts_.at("index_cache_write").inputs.at("index_cache");
  const auto* fp8 = std::get_if<Fp8Indexer>(&contract_.indexer);
  const auto* mxfp4 = std::get_if<Mxfp4Indexer>(&contract_.indexer);
  const auto geometry =
      fp8 ? page_geometry(index_cache, fp8->key.pages) : page_geometry(index_cache, mxfp4->pages);
  DSAKIT_TRY(geometry);
  const auto pool = [&](const Pool& on_device, std::uint8_t* cache, std::int64_t pages,
                        std::int64_t stride, const Tensor& slots, const Tensor& table) {
    return optimized::LayerPool{cache,
                                pages,
                                stride,
                                on_device.slots.as<std::int64_t>(),
                                slots.elements(),
                                on_device.table.as<std::int32_t>(),
                                table.shape[1]};
  };
  const Tensor& mla_cache = input("mla_cache_write", "mla_cache");
  const optimized::LayerStep step{
      hidden->as<std::uint16_t>(),
      pool(*index, index->cache.as<std::uint8_t>() + geometry->offset, geometry->pages,
           geometry->stride, input("index_cache_write", "slot_mapping"), index_table()),
      pool(*mla, mla->cache.as<std::uint8_t>(), mla_cache.shape[0],
           contract_.page_size * reference::kMlaRecord, input("mla_cache_write", "slot_mapping"),
           input("topk_slots", "block_table")),
      device_topk->as<std::int32_t>(),
      c.max_tokens,
      device_output->as<std::uint16_t>()};

  // Keys are gathered for prefill alone.
  std::vector<Intermediate> intermediates =
      intermediates_of(layer->tensors(), c, fp8, longest_of(int32s("seq_lens")),
                       logits() == "index_logits_prefill" ? c.max_total_seq_len : 0);
  for (const Intermediate& part : intermediates)
    DSAKIT_TRY(device.upload(part.memory, part.tensor.bytes.data(), part.tensor.bytes.size()));

  KernelRun run;
  run.kernel = "pipeline";
  DSAKIT_TRY(device.start_timer());
  DSAKIT_TRY(layer->run(step));
  const auto time = device.stop_timer();
  DSAKIT_TRY(time);
  run.time_us = *time;
  DSAKIT_TRY(device.synchronize());
  for (Intermediate& part : intermediates) {
    DSAKIT_TRY(device.download(part.tensor.bytes.data(), part.memory, part.tensor.bytes.size()));
    run.outputs.emplace(part.name, std::move(part.tensor));
  }
  DSAKIT_TRY(take_output(run, "topk_indices", *device_topk, std::move(topk)));
  DSAKIT_TRY(take_output(run, "output", *device_output, std::move(output)));
  DSAKIT_TRY(take_output(run, "index_cache", index->cache, index_cache.tensor));
  DSAKIT_TRY(take_output(run, "mla_cache", mla->cache, mla_cache));
  DSAKIT_TRY(rearrange(device, step, hidden->as<std::uint16_t>(), run));
  return run;
}

} // namespace dsakit::harness
