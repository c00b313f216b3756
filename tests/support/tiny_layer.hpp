// A small recording of the operations that tiny_recording() leaves out, made by the reference, to
// be changed and written.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/index_query.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "dsakit/reference/topk.hpp"
#include "support/mla_problem.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {

namespace tiny {

inline constexpr double kSoftmaxScale = 0.07216878364870322; // 192^-0.5
inline constexpr float kNormEps = 1e-5f;

inline harness::RecordedTensor bf16(Shape shape, const std::vector<std::uint16_t>& bits) {
  return tensor(Dtype::bfloat16, std::move(shape), bits);
}

/// What recordings of the operation hold, as the reference takes it.
inline reference::SparseAttention attention_of(const harness::RecordedOperation& operation,
                                               Fp8Encoding encoding, MlaScaleRead scale_read,
                                               LseBase base) {
  const Tensor& q = operation.inputs.at("mla_query").tensor;
  const Tensor& cache = operation.inputs.at("mla_cache").tensor;
  const Tensor& slots = operation.inputs.at("slots").tensor;
  return {q.as<std::uint16_t>(),
          {cache.as<std::uint8_t>(), cache.shape[0], cache.shape[1], cache.shape[1] * 656, 656},
          slots.as<std::int32_t>(),
          q.shape[0],
          q.shape[1],
          slots.shape[1],
          static_cast<float>(kSoftmaxScale),
          encoding,
          scale_read,
          base};
}

/// Computes the outputs of the operation as such a producer would.
inline void attend(harness::RecordedOperation& operation, MlaScaleRead scale_read,
                   LseBase base = LseBase::e, Fp8Encoding encoding = Fp8Encoding::e4m3fn) {
  const auto in = attention_of(operation, encoding, scale_read, base);
  for (const char* name : {"latent", "lse"}) {
    auto& output = operation.outputs[name];
    const bool latent = std::string(name) == "latent";
    output.tensor = latent ? Tensor(Dtype::bfloat16, {in.tokens, in.heads, 512})
                           : Tensor(Dtype::float32, {in.tokens, in.heads});
    output.axes.assign(output.tensor.shape.size(), "axis");
    output.attributes = {{"accumulation", "fp32"}, {"mla_scale_read", "fp32"}};
  }
  EXPECT_TRUE(reference::sparse_attention(in,
                                          operation.outputs["latent"].tensor.as<std::uint16_t>(),
                                          operation.outputs["lse"].tensor.as<float>()));
}

/// index_k of the norm that `contract` names.
inline void norm_keys(harness::RecordedOperation& operation, const ContractValues& contract) {
  const Tensor& raw = operation.inputs.at("index_k_raw").tensor;
  const reference::Norm norm{*parse_index_k_norm(contract),
                             *parse_rmsnorm_rounding(contract),
                             ActivationDtype::bf16,
                             kNormEps,
                             operation.inputs.at("norm_weight").tensor.as<float>(),
                             operation.inputs.at("norm_bias").tensor.as<float>(),
                             128};
  auto& index_k = operation.outputs["index_k"];
  index_k = bf16(raw.shape, std::vector<std::uint16_t>(static_cast<std::size_t>(raw.elements())));
  EXPECT_TRUE(reference::index_key_norm(norm, raw.as<std::uint16_t>(), raw.shape[0],
                                        index_k.tensor.as<std::uint16_t>()));
}

} // namespace tiny

/// 3 rows of 2 requests; 4 pages of 2 tokens; 3 indexer heads and 2 attention heads; 3 best keys.
inline TinyRecording tiny_layer() {
  using namespace tiny;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto normals = [&](std::int64_t n) {
    return draw<std::uint16_t>(n, [&] { return reference::float_to_bf16(normal(random)); });
  };
  TinyRecording r;
  r.contract.insert({{"index_q_floor", "1e-10"},
                     {"weight_fold", "bf16_intermediate"},
                     {"index_k_norm", "layernorm"},
                     {"rmsnorm_rounding", "two"},
                     {"tie_rule", "smaller_index"},
                     {"topk_order", "rank"},
                     {"mla_fp8_encoding", "e4m3fn"},
                     {"mla_record", "fp8_ds_mla"},
                     {"lse_base", "e"}});
  r.config = {{"rms_norm_eps", "1e-5"}, {"softmax_scale", "0.07216878364870322"}};

  const auto index_q = normals(3 * 3 * 128);
  std::vector<std::uint8_t> q_fp8(3 * 3 * 128);
  std::vector<float> q_scale(3 * 3);
  EXPECT_TRUE(reference::index_query_quant(*parse_index_query_quant(r.contract), index_q.data(), 9,
                                           q_fp8.data(), q_scale.data()));
  auto& quant = r.operations["index_query_quant"];
  quant.inputs["index_q"] = bf16({3, 3, 128}, index_q);
  quant.outputs["index_q_fp8"] = tensor(Dtype::float8_e4m3fn, {3, 3, 128}, q_fp8);
  quant.outputs["index_q_scale"] = tensor(Dtype::float32, {3, 3}, q_scale);

  const auto weights = normals(3 * 3);
  std::vector<float> folded(3 * 3);
  EXPECT_TRUE(reference::index_weights_fold(WeightFold::bf16_intermediate, ActivationDtype::bf16,
                                            weights.data(), q_scale.data(), 3, 3, folded.data()));
  auto& fold = r.operations["index_weights_fold"];
  fold.inputs["index_weights"] = bf16({3, 3}, weights);
  fold.inputs["index_q_scale"] = tensor(Dtype::float32, {3, 3}, q_scale);
  fold.outputs["index_weights_folded"] = tensor(Dtype::float32, {3, 3}, folded);

  auto& norm = r.operations["index_key_norm"];
  const auto parameter = [&] { return draw<float>(128, [&] { return normal(random); }); };
  norm.inputs["index_k_raw"] = bf16({5, 128}, normals(5 * 128));
  norm.inputs["norm_weight"] = tensor(Dtype::float32, {128}, parameter());
  norm.inputs["norm_bias"] = tensor(Dtype::float32, {128}, parameter());
  norm_keys(norm, r.contract);

  auto& prefill = r.operations["index_logits_prefill"];
  const auto k_fp8 = draw<std::uint8_t>(5 * 128, [&] {
    return reference::encode_fp8_saturating(Fp8Encoding::e4m3fn, 8 * normal(random));
  });
  const std::vector<float> k_scale = {0.5f, 1, 2, 0.25f, 1};
  const std::vector<std::int32_t> ks = {0, 0, 2};
  const std::vector<std::int32_t> ke = {1, 2, 5};
  prefill.inputs["index_q_fp8"] = tensor(Dtype::float8_e4m3fn, {3, 3, 128}, q_fp8);
  prefill.inputs["k_fp8"] = tensor(Dtype::float8_e4m3fn, {5, 128}, k_fp8);
  prefill.inputs["k_scale"] = tensor(Dtype::float32, {5}, k_scale);
  prefill.inputs["index_weights_folded"] = tensor(Dtype::float32, {3, 3}, folded);
  prefill.inputs["ks"] = tensor(Dtype::int32, {3}, ks);
  prefill.inputs["ke"] = tensor(Dtype::int32, {3}, ke);
  prefill.inputs["column_origin"] = tensor(Dtype::int32, {3}, ks);
  std::vector<float> logits(3 * 4, -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(reference::index_logits_prefill<reference::Simulated>(
      {q_fp8.data(), folded.data(), k_fp8.data(), k_scale.data(), ks.data(), ke.data(), ks.data(),
       3, 3, 5, 4, Fp8Encoding::e4m3fn},
      logits.data()));
  prefill.outputs["logits"] = tensor(Dtype::float32, {3, 4}, logits);
  prefill.outputs["logits"].attributes["accumulation"] = "fp32";

  // Row 1 has ties at its threshold, row 0 fewer columns than are wanted.
  const std::vector<float> scores = {3, 1, 0, 0, 0, 0, 5, 2, 2, 9, 2, 2, -1, -3, -2, 0, 0, 0};
  const std::vector<std::int32_t> row_lens = {2, 6, 4};
  std::vector<std::int32_t> indices(3 * 3);
  EXPECT_TRUE(reference::topk(scores.data(), 3, 6, nullptr, row_lens.data(), 3, TopkOrder::rank,
                              indices.data()));
  auto& topk = r.operations["topk"];
  topk.inputs["logits"] = tensor(Dtype::float32, {3, 6}, scores);
  topk.inputs["row_lens"] = tensor(Dtype::int32, {3}, row_lens);
  topk.outputs["topk_indices"] = tensor(Dtype::int32, {3, 3}, indices);

  auto& write = r.operations["mla_cache_write"];
  const std::vector<std::int64_t> slot_mapping = {5, -1, 0};
  const auto kv_c = normals(4 * 512); // one row past the slots
  const auto k_pe = normals(4 * 64);
  auto records =
      draw<std::uint8_t>(kPages * 2 * 656, [&] { return static_cast<std::uint8_t>(random()); });
  write.inputs["kv_c"] = bf16({4, 512}, kv_c);
  write.inputs["k_pe"] = bf16({4, 64}, k_pe);
  write.inputs["slot_mapping"] = tensor(Dtype::int64, {3}, slot_mapping);
  write.inputs["mla_cache"] = tensor(Dtype::uint8, {kPages, 2, 656}, records);
  EXPECT_TRUE(reference::mla_cache_write(*parse_mla_quant(r.contract), kv_c.data(), k_pe.data(), 4,
                                         slot_mapping, {records.data(), kPages, 2, 2 * 656, 656}));
  write.outputs["mla_cache"] = tensor(Dtype::uint8, {kPages, 2, 656}, records);

  auto& to_slots = r.operations["topk_slots"];
  const std::vector<std::int32_t> table = {1, 3, 0, 2, 0, 1};
  const std::vector<std::int32_t> row_request = {0, 1, 1};
  std::vector<std::int32_t> slots(3 * 3);
  EXPECT_TRUE(reference::topk_slots(indices.data(), 3, 3, {table.data(), 2, 3}, row_request.data(),
                                    2, 2, slots.data()));
  to_slots.inputs["topk_indices"] = tensor(Dtype::int32, {3, 3}, indices);
  to_slots.inputs["block_table"] = tensor(Dtype::int32, {2, 3}, table);
  to_slots.inputs["row_request"] = tensor(Dtype::int32, {3}, row_request);
  to_slots.inputs["row_lens"] = tensor(Dtype::int32, {3}, row_lens);
  to_slots.outputs["slots"] = tensor(Dtype::int32, {3, 3}, slots);

  // Queries point along a record, so that a change of its scale shows in the scores.
  auto& attention = r.operations["sparse_attention"];
  std::vector<std::uint8_t> pool(kPages * 2 * 656);
  for (int slot = 0; slot < kPages * 2; ++slot)
    random_mla_record(pool.data() + slot * 656, random);
  std::vector<std::uint16_t> mla_query;
  for (int row = 0; row < 3 * 2; ++row) {
    std::vector<float> key(576);
    reference::read_mla_record(Fp8Encoding::e4m3fn, MlaScaleRead::fp32, pool.data() + row * 656,
                               key.data());
    for (float value : key)
      mla_query.push_back(reference::float_to_bf16(value / 4));
  }
  attention.inputs["mla_query"] = bf16({3, 2, 576}, mla_query);
  attention.inputs["mla_cache"] = tensor(Dtype::uint8, {kPages, 2, 656}, pool);
  attention.inputs["slots"] =
      tensor<std::int32_t>(Dtype::int32, {3, 3}, {0, 1, -1, 2, 3, 6, -1, -1, -1});
  attend(attention, MlaScaleRead::fp32);
  return r;
}

} // namespace dsakit::testing
