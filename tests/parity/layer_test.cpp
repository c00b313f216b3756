// KimiK3DSAAttention on a device against the reference, on every device: each operation is held to
// what the reference makes of what the pipeline fed it, exact from the quantisers to the slots and
// within the derived bound elsewhere.
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/index_query.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "dsakit/reference/topk.hpp"
#include "support/compare.hpp"
#include "support/device_layer.hpp"

namespace dsakit::testing {
namespace layer_test {

using Bf16 = std::vector<std::uint16_t>;
using Codes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;

constexpr std::uint16_t kNaN = 0x7FC0;

std::size_t count(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// What a run left on the device.
struct DeviceRun {
  std::int64_t heads = 0;
  Bf16 qkv_a, q_c, q, kv_c, index_q, index_weights, index_k_raw, index_k;
  Codes index_q_codes, index_q_scale;
  Floats folded, logits;
  Ids slots, topk; ///< topk: the whole buffer
  Bf16 mla_query, latent, attn_value, gate, attn_gated, output;
  Floats lse;
  Codes index_cache, mla_cache;
};

/// A model, its weights, and a step of it.
struct Problem {
  reference::LayerConfig config;
  reference::LayerContract contract;
  reference::LayerWeights weights;
  OwnedStep step;

  bool mxfp4() const { return config.use_fp4(); }
  std::int64_t heads() const { return config.local_heads(); }
  std::int64_t index_heads() const { return config.dsa->index_num_heads; }
  std::int64_t k() const { return config.dsa->index_topk; }
};

struct Kind {
  bool q_lora = true;
  bool gate = true;
  bool layernorm = true;
  bool mxfp4 = false;
  const char* encoding = "e4m3fn";
};

Problem make_problem(const Kind& kind, Ids query_lens, Ids seq_lens, std::int64_t padding,
                     unsigned seed) {
  std::mt19937 random(seed);
  Problem p{
      small_layer(), layer_contract(layer_contract_values(kind.mxfp4, kind.encoding)), {}, {}};
  p.config.mla_use_output_gate = kind.gate;
  if (!kind.q_lora) p.config.q_lora_rank.reset();
  if (!kind.layernorm) p.config.dsa->index_k_norm_type = "rmsnorm";
  p.config.indexer_kv_dtype = kind.mxfp4 ? "mxfp4" : "fp8";
  p.weights = random_weights(p.config, random);
  p.step = random_step(p.config, p.contract, std::move(query_lens), std::move(seq_lens), padding,
                       random);
  return p;
}

template <class T>
std::vector<T> download(optimized::Device& device, const void* from, std::int64_t elements) {
  std::vector<T> values(count(elements));
  if (from != nullptr) {
    EXPECT_TRUE(device.download(values.data(), from, values.size() * sizeof(T)));
  }
  return values;
}

class Layer : public ::testing::TestWithParam<std::string> {
protected:
  void SetUp() override {
    const Status library =
        device_->project(optimized::projection(nullptr, nullptr, nullptr, 0, 8, 8));
    if (!library) GTEST_SKIP() << "NOT CHECKED: " << library.what();
  }

  DeviceRun run(const Problem& p, std::int64_t topk_rows = 0) {
    const std::int64_t tokens = p.step.tokens;
    topk_rows = std::max(topk_rows, tokens);
    DeviceStep step(*device_, p.step, p.config, topk_rows);
    DeviceRun run;
    auto layer = optimized::KimiK3DSAAttention::create(
        *device_, device_config(p.config, tokens + 3, std::ssize(p.step.query_lens)), p.contract,
        host_weights(p.weights));
    EXPECT_TRUE(layer) << layer.status().what();
    if (!layer) return run;
    const Status prepared = layer->prepare(tokens, p.step.query_lens, p.step.seq_lens);
    EXPECT_TRUE(prepared) << prepared.what();
    const Status ran = layer->run(step.view());
    EXPECT_TRUE(ran) << ran.what();
    const Status waited = device_->synchronize();
    EXPECT_TRUE(waited) << waited.what();
    take(p, *layer, run);
    run.topk = step.topk.values();
    run.output = step.output.values();
    run.index_cache = step.index_cache.values();
    run.mla_cache = step.mla_cache.values();
    EXPECT_EQ(step.hidden_states.values(), p.step.hidden_states);
    return run;
  }

  void take(const Problem& p, const optimized::KimiK3DSAAttention& layer, DeviceRun& run) {
    const optimized::LayerTensors t = layer.tensors();
    run.heads = p.heads();
    const std::int64_t tokens = p.step.tokens, q_lora = p.config.q_lora_rank.value_or(0);
    const std::int64_t value = p.heads() * 128, index = p.index_heads();
    const auto bf16 = [&](const std::uint16_t* from, std::int64_t width) {
      return download<std::uint16_t>(*device_, from, tokens * width);
    };
    run.qkv_a = bf16(t.qkv_a, q_lora + 576);
    run.q_c = bf16(t.index_q_input, q_lora);
    run.q = bf16(t.q, p.heads() * 192);
    run.kv_c = bf16(t.kv_c, 512);
    run.index_q = bf16(t.index_q, index * 128);
    run.index_weights = bf16(t.index_weights, index);
    run.index_k_raw = bf16(t.index_k_raw, 128);
    run.index_k = bf16(t.index_k, 128);
    run.index_q_codes =
        download<std::uint8_t>(*device_, t.index_q_codes, tokens * index * (p.mxfp4() ? 64 : 128));
    run.index_q_scale = download<std::uint8_t>(*device_, t.index_q_scale, tokens * index * 4);
    run.folded = download<float>(*device_, t.index_weights_folded, tokens * index);
    run.slots = download<std::int32_t>(*device_, t.slots, tokens * p.k());
    run.mla_query = bf16(t.mla_query, p.heads() * 576);
    run.latent = bf16(t.latent, p.heads() * 512);
    run.lse = download<float>(*device_, t.lse, tokens * p.heads());
    run.attn_value = bf16(t.attn_value, value);
    run.gate = bf16(t.gate, value);
    run.attn_gated = p.config.mla_use_output_gate ? bf16(t.attn_gated, value) : run.attn_value;
    const std::int32_t longest = *std::max_element(p.step.seq_lens.begin(), p.step.seq_lens.end());
    run.logits = download<float>(*device_, t.logits, tokens * longest);
  }

  /// Everything that depends on arrangement, of rows [0, tokens).
  static void expect_same_bits(const DeviceRun& got, const DeviceRun& want) {
    EXPECT_EQ(got.index_q_codes, want.index_q_codes);
    EXPECT_EQ(got.index_cache, want.index_cache);
    EXPECT_EQ(got.mla_cache, want.mla_cache);
    EXPECT_EQ(got.topk, want.topk);
    EXPECT_EQ(got.slots, want.slots);
    EXPECT_EQ(got.latent, want.latent);
    EXPECT_EQ(got.output, want.output);
  }

  std::unique_ptr<optimized::Device> device_ = open(GetParam());
};

/// The reference of each operation, fed with what the device's operation was fed.
class Check {
public:
  Check(const Problem& p, const DeviceRun& run) : p_(p), run_(run), tokens_(p.step.tokens) {}

  /// `one_chunk`: the logits are those of all rows.
  void everything(bool one_chunk) {
    const bool q_lora = p_.config.q_lora_rank.has_value();
    const std::int64_t a = q_lora ? *p_.config.q_lora_rank : 0;
    const Bf16& hidden = p_.step.hidden_states;
    projection(q_lora ? "fused_qkv_a_proj" : "kv_a_proj_with_mqa", hidden, run_.qkv_a);
    if (q_lora) norm("q_a_layernorm", columns(run_.qkv_a, 0, a), run_.q_c);
    projection(q_lora ? "q_b_proj" : "q_proj", q_lora ? run_.q_c : hidden, run_.q);
    norm("kv_a_layernorm", columns(run_.qkv_a, a, 512), run_.kv_c);
    projection("wq_index", q_lora ? run_.q_c : hidden, run_.index_q);
    projection("wv_index", hidden, run_.index_weights);
    projection("wk_index", hidden, run_.index_k_raw);
    norm("k_index_norm", run_.index_k_raw, run_.index_k);
    queries();
    caches(columns(run_.qkv_a, a + 512, 64));
    if (one_chunk) logits();
    selection();
    attention();
    if (p_.config.mla_use_output_gate) gate();
    output();
  }

private:
  Bf16 columns(const Bf16& x, std::int64_t first, std::int64_t width) const {
    Bf16 part(count(tokens_ * width));
    reference::take_columns(x.data(), tokens_, std::ssize(x) / tokens_, first, width, part.data());
    return part;
  }

  static void within(const std::string& what, const Bf16& got, const std::vector<double>& exact,
                     const std::vector<double>& bound, std::int64_t width) {
    Floats values;
    for (const std::uint16_t bits : got)
      values.push_back(reference::bf16_to_float(bits));
    expect_within(what, values, exact, bound, count(width));
  }

  void projection(const std::string& name, const Bf16& x, const Bf16& y) const {
    const reference::Weight w = p_.weights.projections.at(name).view();
    std::vector<double> exact(y.size()), bound(y.size());
    ASSERT_TRUE(reference::project_exact({x.data(), tokens_, w, ActivationDtype::bf16},
                                         exact.data(), bound.data()));
    within(name, y, exact, bound, w.outputs);
  }

  void norm(const std::string& name, const Bf16& x, const Bf16& y) const {
    const auto& norms = p_.weights.norms;
    const bool keys = name == "k_index_norm";
    const bool layernorm = keys && p_.config.dsa->index_k_norm_type == "layernorm";
    const std::int64_t width = std::ssize(y) / tokens_;
    std::vector<double> exact(y.size()), bound(y.size());
    ASSERT_TRUE(reference::apply_norm_exact(
        {layernorm ? IndexKNorm::layernorm : IndexKNorm::rmsnorm, p_.contract.rmsnorm_rounding,
         ActivationDtype::bf16, static_cast<float>(p_.config.rms_norm_eps),
         norms.at(keys ? name + ".weight" : name).data(),
         layernorm ? norms.at(name + ".bias").data() : nullptr, width},
        x.data(), tokens_, exact.data(), bound.data()));
    within(name, y, exact, bound, width);
  }

  void queries() const {
    const std::int64_t rows = tokens_ * p_.index_heads();
    Codes codes(run_.index_q_codes.size()), scales(run_.index_q_scale.size());
    if (const auto* fp8 = std::get_if<Fp8Indexer>(&p_.contract.indexer)) {
      Floats scale(count(rows)), folded(count(rows));
      ASSERT_TRUE(reference::index_query_quant(fp8->query, run_.index_q.data(), rows, codes.data(),
                                               scale.data()));
      ASSERT_TRUE(reference::index_weights_fold(fp8->fold, ActivationDtype::bf16,
                                                run_.index_weights.data(), scale.data(), tokens_,
                                                p_.index_heads(), folded.data()));
      std::memcpy(scales.data(), scale.data(), scales.size());
      expect_same("index_weights_folded", run_.folded, folded, count(p_.index_heads()));
    } else {
      ASSERT_TRUE(reference::index_query_quant_mxfp4(
          std::get<Mxfp4Indexer>(p_.contract.indexer).quant, run_.index_q.data(), rows,
          codes.data(), scales.data()));
    }
    expect_same("index_q codes", run_.index_q_codes, codes, p_.mxfp4() ? 64 : 128);
    expect_same("index_q_scale", run_.index_q_scale, scales, 4);
  }

  void caches(const Bf16& k_pe) const {
    OwnedStep step = p_.step;
    const reference::LayerStep view = step.view();
    if (const auto* fp8 = std::get_if<Fp8Indexer>(&p_.contract.indexer)) {
      ASSERT_TRUE(reference::index_cache_write(fp8->key, run_.index_k.data(), tokens_,
                                               view.index_slot_mapping, view.index_cache));
    } else {
      const auto& mxfp4 = std::get<Mxfp4Indexer>(p_.contract.indexer);
      ASSERT_TRUE(reference::index_cache_write_mxfp4(mxfp4.pages, mxfp4.quant, run_.index_k.data(),
                                                     tokens_, view.index_slot_mapping,
                                                     view.index_cache));
    }
    ASSERT_TRUE(reference::mla_cache_write(p_.contract.mla, run_.kv_c.data(), k_pe.data(), tokens_,
                                           view.mla_slot_mapping, view.mla_cache));
    expect_same("index_cache", run_.index_cache, step.index_cache, count(step.index_stride));
    expect_same("mla_cache", run_.mla_cache, step.mla_cache, 656);
  }

  /// As decode, which equals prefill (spec 2.8).
  void logits() {
    const std::int64_t longest = columns_of_logits();
    std::vector<double> exact(count(tokens_ * longest)), bound(exact.size());
    const reference::IndexCache<const std::uint8_t> cache{run_.index_cache.data(), p_.step.pages,
                                                          p_.step.index_stride};
    const reference::BlockTable table{p_.step.block_table.data(), std::ssize(p_.step.query_lens),
                                      p_.step.columns};
    rows_of_step();
    if (const auto* fp8 = std::get_if<Fp8Indexer>(&p_.contract.indexer)) {
      const reference::IndexLogitsDecode in{run_.index_q_codes.data(),
                                            run_.folded.data(),
                                            cache,
                                            table,
                                            row_lens_.data(),
                                            row_request_.data(),
                                            tokens_,
                                            p_.index_heads(),
                                            longest};
      ASSERT_TRUE(
          reference::index_logits_decode<reference::Exact>(fp8->key.pages, in, exact.data()));
      ASSERT_TRUE(reference::index_logits_decode_bound(fp8->key.pages, in, Accumulation::fp32,
                                                       bound.data()));
    } else {
      const Mxfp4Pages& pages = std::get<Mxfp4Indexer>(p_.contract.indexer).pages;
      const reference::IndexLogitsDecodeMxfp4 in{run_.index_q_codes.data(),
                                                 run_.index_q_scale.data(),
                                                 run_.index_weights.data(),
                                                 cache,
                                                 table,
                                                 row_lens_.data(),
                                                 row_request_.data(),
                                                 tokens_,
                                                 p_.index_heads(),
                                                 longest,
                                                 ActivationDtype::bf16};
      ASSERT_TRUE(reference::index_logits_decode_mxfp4<reference::Exact>(pages, in, exact.data()));
      ASSERT_TRUE(
          reference::index_logits_decode_mxfp4_bound(pages, in, Accumulation::fp32, bound.data()));
    }
    Floats inside;
    std::vector<double> want, gate;
    for (std::int64_t row = 0; row < tokens_; ++row)
      for (std::int64_t key = 0; key < row_lens_[count(row)]; ++key) {
        inside.push_back(run_.logits[count(row * longest + key)]);
        want.push_back(exact[count(row * longest + key)]);
        gate.push_back(bound[count(row * longest + key)]);
      }
    expect_within("logits, keys of all rows", inside, want, gate, inside.size());
    Ids best(count(tokens_ * p_.k()));
    ASSERT_TRUE(reference::topk(run_.logits.data(), tokens_, longest, nullptr, row_lens_.data(),
                                p_.k(), p_.contract.topk_order, best.data()));
    Ids ours = run_.topk;
    ours.resize(best.size());
    expect_same("topk_indices", ours, best, count(p_.k()));
  }

  void selection() {
    rows_of_step();
    Ids slots(count(tokens_ * p_.k()));
    ASSERT_TRUE(reference::topk_slots(
        run_.topk.data(), tokens_, p_.k(),
        {p_.step.block_table.data(), std::ssize(p_.step.query_lens), p_.step.columns},
        row_request_.data(), kLayerPage, kLayerPage, slots.data()));
    expect_same("slots", run_.slots, slots, count(p_.k()));
    for (std::size_t i = count(tokens_ * p_.k()); i < run_.topk.size(); ++i)
      ASSERT_EQ(run_.topk[i], 77) << "beyond the step, " << i;
  }

  void attention() const {
    const std::int64_t heads = p_.heads();
    const reference::Weight kv_b = p_.weights.projections.at("kv_b_proj").view();
    std::vector<double> query(run_.mla_query.size()), query_bound(query.size());
    ASSERT_TRUE(reference::absorb_q_exact(
        {run_.q.data(), tokens_, heads, p_.config.head, kv_b, ActivationDtype::bf16}, query.data(),
        query_bound.data()));
    within("mla_query", run_.mla_query, query, query_bound, heads * 576);

    const reference::SparseAttention in{
        run_.mla_query.data(),
        {run_.mla_cache.data(), p_.step.pages, kLayerPage, kLayerPage * 656, 656},
        run_.slots.data(),
        tokens_,
        heads,
        p_.k(),
        static_cast<float>(p_.config.softmax_scale()),
        p_.contract.mla.mla_fp8_encoding,
        p_.contract.mla_scale_read,
        p_.contract.lse_base};
    std::vector<double> latent(run_.latent.size()), latent_bound(latent.size()),
        lse(run_.lse.size()), lse_bound(lse.size());
    ASSERT_TRUE(reference::sparse_attention_exact(in, latent.data(), lse.data()));
    ASSERT_TRUE(reference::sparse_attention_bound(in, latent_bound.data(), lse_bound.data()));
    within("latent", run_.latent, latent, latent_bound, heads * 512);
    expect_within("lse", run_.lse, lse, lse_bound, count(heads));

    std::vector<double> value(run_.attn_value.size()), value_bound(value.size());
    ASSERT_TRUE(reference::absorb_v_exact(
        {run_.latent.data(), tokens_, heads, p_.config.head, kv_b, ActivationDtype::bf16},
        value.data(), value_bound.data()));
    within("attn_value", run_.attn_value, value, value_bound, heads * 128);
  }

  void gate() const {
    projection("g_proj", p_.step.hidden_states, run_.gate);
    std::vector<double> gated(run_.attn_gated.size()), bound(gated.size());
    ASSERT_TRUE(reference::output_gate_exact({run_.attn_value.data(), run_.gate.data(),
                                              std::ssize(run_.gate), p_.contract.gate_rounding,
                                              ActivationDtype::bf16},
                                             gated.data(), bound.data()));
    within("attn_gated", run_.attn_gated, gated, bound, p_.heads() * 128);
  }

  void output() {
    rows_of_step();
    const reference::Weight w = p_.weights.projections.at("o_proj").view();
    std::vector<double> exact(run_.output.size()), bound(exact.size());
    ASSERT_TRUE(reference::project_exact(
        {run_.attn_gated.data(), tokens_, w, ActivationDtype::bf16}, exact.data(), bound.data()));
    for (std::int64_t row = 0; row < tokens_; ++row)
      if (row_lens_[count(row)] == 0)
        for (std::int64_t i = row * w.outputs; i < (row + 1) * w.outputs; ++i)
          exact[count(i)] = bound[count(i)] = 0;
    within("output", run_.output, exact, bound, w.outputs);
  }

  std::int64_t columns_of_logits() const {
    return *std::max_element(p_.step.seq_lens.begin(), p_.step.seq_lens.end());
  }

  void rows_of_step() {
    row_lens_.assign(count(tokens_), 0);
    row_request_.assign(count(tokens_), -1);
    std::size_t row = 0;
    for (std::size_t b = 0; b < p_.step.query_lens.size(); ++b)
      for (std::int32_t i = 0; i < p_.step.query_lens[b]; ++i, ++row) {
        row_lens_[row] = std::max(p_.step.seq_lens[b] - p_.step.query_lens[b] + i + 1, 0);
        row_request_[row] = static_cast<std::int32_t>(b);
      }
  }

  const Problem& p_;
  const DeviceRun& run_;
  std::int64_t tokens_;
  Ids row_lens_, row_request_;
};

TEST_P(Layer, EveryOperationIsRightForWhatItWasFed) {
  const Kind kinds[] = {{},
                        {.q_lora = false, .gate = false, .layernorm = false},
                        {.encoding = "e4m3fnuz"},
                        {.mxfp4 = true}};
  for (const Kind& kind : kinds) {
    for (const bool decode : {false, true}) {
      SCOPED_TRACE(std::string(kind.mxfp4 ? "mxfp4" : kind.encoding) +
                   (kind.q_lora ? ", q_lora" : "") + (decode ? ", decode" : ", prefill"));
      const Problem p = decode ? make_problem(kind, {2, 1, 2}, {130, 1, 65}, 0, 1)
                               : make_problem(kind, {5, 3}, {70, 3}, 0, 2);
      Check(p, run(p)).everything(true);
    }
  }
}

TEST_P(Layer, MixedBatchesWithPaddingRows) {
  for (const bool mxfp4 : {false, true}) {
    SCOPED_TRACE(mxfp4 ? "mxfp4" : "fp8");
    Problem p = make_problem({.mxfp4 = mxfp4}, {1, 4, 0, 2, 3}, {80, 4, 9, 2, 66}, 3, 3);
    const std::int64_t hidden = p.config.hidden_size, rows = p.step.tokens - 3;
    std::fill(p.step.hidden_states.begin() + rows * hidden, p.step.hidden_states.end(), kNaN);
    const DeviceRun got = run(p, p.step.tokens + 5);
    for (std::int64_t i = rows * p.k(); i < p.step.tokens * p.k(); ++i)
      ASSERT_EQ(got.topk[count(i)], -1) << i;
    for (std::int64_t i = rows * hidden; i < p.step.tokens * hidden; ++i)
      ASSERT_EQ(got.output[count(i)], 0) << i;
    // Rows of NaN have no other right answers to compare.
    Problem clean = p;
    std::fill(clean.step.hidden_states.begin() + rows * hidden, clean.step.hidden_states.end(),
              std::uint16_t{0x3F80});
    const DeviceRun without = run(clean, p.step.tokens + 5);
    EXPECT_EQ(got.topk, without.topk);
    EXPECT_EQ(got.output, without.output);
    Check(clean, without).everything(false);
  }
}

TEST_P(Layer, AnyBudgetAndAnyArrangementGivesTheSameBits) {
  for (const bool mxfp4 : {false, true}) {
    SCOPED_TRACE(mxfp4 ? "mxfp4" : "fp8");
    Problem p = make_problem({.mxfp4 = mxfp4}, {2, 2, 7, 4, 2}, {40, 131, 70, 60, 90}, 1, 4);
    const DeviceRun whole = run(p);
    for (const std::int64_t bytes : {4, 4 * 70, 4 * 300, 4 * 1000}) {
      p.config.max_logits_bytes = bytes;
      expect_same_bits(run(p), whole);
    }
    p.config.native_decode = true;
    expect_same_bits(run(p), whole);
    for (const std::int64_t speculative : {-1, 0, 8}) { // none decodes, none of these, all
      p.config.num_speculative_tokens = speculative;
      expect_same_bits(run(p), whole);
    }
  }
}

TEST_P(Layer, RanksSelectAlikeAndTheirSharesSumToTheWhole) {
  const Problem whole = make_problem({}, {3, 1}, {60, 90}, 0, 5);
  const DeviceRun one = run(whole);
  for (const std::int64_t world : {2, 4, 8}) { // of 4 heads: the last ranks of 8 have none
    SCOPED_TRACE(world);
    const std::int64_t tokens = whole.step.tokens, hidden = whole.config.hidden_size;
    std::vector<double> sum(count(tokens * hidden)), exact_sum(sum.size()), bound(sum.size());
    const auto add = [&](const Problem& p, const DeviceRun& run, double sign) {
      std::vector<double> exact(sum.size()), error(sum.size());
      ASSERT_TRUE(reference::project_exact({run.attn_gated.data(), tokens,
                                            p.weights.projections.at("o_proj").view(),
                                            ActivationDtype::bf16},
                                           exact.data(), error.data()));
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += sign * double{reference::bf16_to_float(run.output[i])};
        exact_sum[i] += sign * exact[i];
        bound[i] += error[i];
      }
    };
    add(whole, one, -1);
    for (std::int64_t rank = 0; rank < world; ++rank) {
      Problem p = whole;
      p.config.parallel.tensor_parallel_size = world;
      p.config.reduce_results = false;
      auto part = reference::slice_weights(p.config, whole.weights, rank);
      ASSERT_TRUE(part) << part.status().what();
      p.weights = std::move(*part);
      const DeviceRun share = run(p);
      EXPECT_EQ(share.topk, one.topk);
      EXPECT_EQ(share.index_cache, one.index_cache);
      EXPECT_EQ(share.mla_cache, one.mla_cache);
      Check(p, share).everything(false);
      add(p, share, 1);
      if (device_->kind() != optimized::DeviceKind::host) continue;
      // On the host a head's bits do not depend on how many there are.
      const std::int64_t width = share.heads * 128, all = one.heads * 128;
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t i = 0; i < width; ++i)
          ASSERT_EQ(share.attn_gated[count(t * width + i)],
                    rank * width < all ? one.attn_gated[count(t * all + rank * width + i)] : 0);
    }
    // Beside the roundings of o_proj: what a library that rounds the ranks' heads otherwise makes
    // of it.
    for (std::size_t i = 0; i < sum.size(); ++i)
      EXPECT_LE(std::fabs(sum[i]), bound[i] + std::fabs(exact_sum[i])) << i;
  }
}

TEST_P(Layer, Fp8WeightsAreWidenedToBf16) {
  for (const WeightFormat format : {WeightFormat::fp8_channel, WeightFormat::fp8_block}) {
    for (const Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
      SCOPED_TRACE(std::string(name(format)) + " " + std::string(name(encoding)));
      Problem p = make_problem({}, {4}, {70}, 0, 6);
      for (auto& [name, weight] : p.weights.projections)
        if (name != "wk_index" && name != "wv_index") weight = to_fp8(weight, format, encoding);
      Problem widened = p;
      for (auto& [name, weight] : widened.weights.projections) {
        Tensor bf16(Dtype::bfloat16, weight.values.shape);
        ASSERT_TRUE(reference::weight_dequant(weight.view(), bf16.as<std::uint16_t>()));
        weight = {WeightFormat::bf16, encoding, std::move(bf16), {}};
      }
      const DeviceRun fp8 = run(p);
      Check(widened, fp8).everything(true);
      expect_same_bits(fp8, run(widened));
    }
  }
}

TEST_P(Layer, StepsFollowOneAnotherAndWeightsCanChange) {
  const Problem first = make_problem({}, {3}, {90}, 0, 7);
  Problem second = make_problem({}, {1, 1}, {64, 65}, 0, 8);
  auto layer = optimized::KimiK3DSAAttention::create(*device_, device_config(first.config, 8, 2),
                                                     first.contract, host_weights(first.weights));
  ASSERT_TRUE(layer) << layer.status().what();
  EXPECT_GT(layer->device_bytes(), count(first.config.hidden_size * 2));
  const auto output = [&](const Problem& p) {
    DeviceStep step(*device_, p.step, p.config, p.step.tokens);
    EXPECT_TRUE(layer->prepare(p.step.tokens, p.step.query_lens, p.step.seq_lens));
    EXPECT_TRUE(layer->run(step.view()));
    EXPECT_TRUE(device_->synchronize());
    return step.output.values();
  };
  EXPECT_EQ(output(first), run(first).output);
  ASSERT_TRUE(layer->load(host_weights(second.weights)));
  EXPECT_EQ(output(second), run(second).output);
}

TEST_P(Layer, EmptyAndDummyStepsLaunchNothing) {
  const Problem p = make_problem({}, {3}, {90}, 0, 9);
  auto layer = optimized::KimiK3DSAAttention::create(*device_, device_config(p.config, 8, 2),
                                                     p.contract, host_weights(p.weights));
  ASSERT_TRUE(layer);
  // What the engine must set aside is that of the largest step: an index key is 132 bytes.
  const auto bytes_with = [&](auto change) {
    optimized::LayerConfig config = device_config(p.config, 8, 2);
    change(config);
    const auto changed = optimized::KimiK3DSAAttention::create(*device_, config, p.contract,
                                                               host_weights(p.weights));
    EXPECT_TRUE(changed) << changed.status().what();
    return changed ? changed->device_bytes() - layer->device_bytes() : 0;
  };
  EXPECT_EQ(bytes_with([](auto& c) { c.max_total_seq_len += 1000 * 256; }), 1000U * 256 * 132);
  EXPECT_EQ(bytes_with([](auto& c) { c.max_model_len += 3 * c.max_model_len; }), 2U * 4096 * 132)
      << "a request of 4 * 4096 tokens alone has more keys than a chunk";
  ASSERT_TRUE(layer->prepare(0, {}, {}));
  EXPECT_TRUE(layer->run({})); // null pointers: any launch would fault
  ASSERT_TRUE(layer->prepare(3, p.step.query_lens, p.step.seq_lens));
  EXPECT_TRUE(layer->run({}));
  EXPECT_TRUE(device_->synchronize());
}

TEST_P(Layer, RefusalsNameTheValue) {
  const Problem p = make_problem({}, {3, 1}, {90, 5}, 0, 10);
  const auto create = [&](const std::function<void(optimized::LayerConfig&, Problem&)>& change) {
    Problem changed = p;
    optimized::LayerConfig config = device_config(p.config, 8, 2);
    change(config, changed);
    const auto layer = optimized::KimiK3DSAAttention::create(*device_, config, changed.contract,
                                                             host_weights(changed.weights));
    return layer.status().what();
  };
  EXPECT_EQ(create([](auto& c, auto&) { c.max_tokens = 0; }),
            "max_tokens: found 0, want at least 1");
  EXPECT_EQ(create([](auto&, auto& q) { q.contract.activation_dtype = ActivationDtype::fp16; }),
            "activation_dtype: found fp16, want bf16");
  EXPECT_EQ(create([](auto&, auto& q) {
              std::get<Fp8Indexer>(q.contract.indexer).key.scale_kind = ScaleKind::fp32;
            }),
            "scale_kind: found fp32, want ue8m0");
  EXPECT_EQ(create([](auto&, auto& q) { q.weights.projections.erase("g_proj"); }),
            "weight g_proj is missing");
  EXPECT_EQ(create([](auto&, auto& q) { q.weights.norms["q_norm"] = {1}; }),
            "weight q_norm: the layer has none of that name");
  EXPECT_EQ(
      create([](auto&, auto& q) { q.weights.projections["o_proj"].values.shape = {96, 500}; }),
      "weight o_proj: found [96, 500], want [96, 512]");
  EXPECT_EQ(create([](auto&, auto& q) {
              q.weights.projections["wk_index"] =
                  to_fp8(q.weights.projections["wk_index"], WeightFormat::fp8_channel);
            }),
            "weight wk_index: found fp8, want bf16: the indexer's key and weight projections are "
            "not quantised");
  EXPECT_EQ(create([](auto& c, auto&) { c.attention_splits = 0; }),
            "attention_splits: found 0, want at least 1");
  // What a kernel refuses is told before anything is allocated.
  EXPECT_NE(create([](auto& c, auto&) { c.attention_splits = 65; }).find("splits is 65"),
            std::string::npos);

  auto layer = optimized::KimiK3DSAAttention::create(*device_, device_config(p.config, 8, 2),
                                                     p.contract, host_weights(p.weights));
  ASSERT_TRUE(layer) << layer.status().what();
  const Ids lens = {3, 1}, totals = {90, 5};
  const auto prepare = [&](std::int64_t tokens, const Ids& query, const Ids& total) {
    return layer->prepare(tokens, query, total).what();
  };
  EXPECT_EQ(prepare(9, lens, totals), "tokens: found 9, want 0 to max_tokens = 8");
  EXPECT_EQ(prepare(3, lens, totals), "tokens: found 3, want at least the 4 of query_lens");
  EXPECT_EQ(prepare(4, {1, 1, 1}, {1, 1, 1}),
            "query_lens entries: found 3, want at most max_requests = 2");
  EXPECT_EQ(prepare(4, lens, {90}), "seq_lens entries: found 1, want 2 as query_lens has");
  EXPECT_EQ(prepare(4, {-1, 1}, totals), "query_lens[0]: found -1, want at least 0");
  EXPECT_EQ(prepare(4, lens, {90, 4097}),
            "seq_lens[1]: found 4097, want 0 to max_model_len = 4096");
  ASSERT_EQ(prepare(4, lens, totals), "");

  DeviceStep step(*device_, p.step, p.config, 4);
  const auto refusal = [&](const std::function<void(optimized::LayerStep&)>& change) {
    optimized::LayerStep view = step.view();
    change(view);
    return layer->run(view).what();
  };
  EXPECT_EQ(refusal([](auto& s) { s.topk_rows = 3; }),
            "topk_indices_buffer rows: found 3, want at least the 4 of the step");
  EXPECT_EQ(refusal([](auto& s) { s.index.slots = 5; }),
            "index slots: found 5, want 0 to the 4 of the step");
  EXPECT_EQ(refusal([](auto& s) { s.mla.table_columns = 1; }),
            "seq_lens: found 90, want at most the 64 tokens of a row of mla_block_table");
}

INSTANTIATE_TEST_SUITE_P(Devices, Layer, ::testing::ValuesIn(device_names()),
                         [](const auto& info) { return info.param; });

} // namespace layer_test
} // namespace dsakit::testing
