// The layer recordings end to end: the reference runs from the recorded hidden states and caches,
// every operation on what the one before gave (spec 8, chained mode).
//
// With f the exact operation, a producer's output y(x) differs from f(x) by at most its bound. So
//   |ours - recorded| <= bound(ours) + bound(recorded) + |f(our inputs) - f(recorded inputs)|:
// the roundings of both and the measured difference of the inputs, propagated exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "dsakit/reference/norms.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "support/layer_problem.hpp"

namespace dsakit::reference {
namespace layer_recordings_test {

using testing::RecordedLayerFile;

struct Exactly {
  explicit Exactly(std::int64_t elements)
      : value(static_cast<std::size_t>(elements)), bound(value.size()) {}
  std::vector<double> value;
  std::vector<double> bound;
};

double element(const Tensor& tensor, std::size_t i) {
  return tensor.dtype == Dtype::float32 ? static_cast<double>(tensor.as<float>()[i])
                                        : bf16_to_float(tensor.as<std::uint16_t>()[i]);
}

/// One side of the comparison: all tensors of the step, the caches after it.
struct Side {
  const RecordedLayerFile& layer;
  std::map<std::string, Tensor> tensors;
  std::vector<std::uint8_t> index_cache, mla_cache;
  Accumulation accumulation; ///< of logits and attention

  const Tensor& at(const std::string& name) const { return tensors.at(name); }
  std::int64_t tokens() const { return layer.step.tokens; }
  bool mxfp4() const { return layer.config.use_fp4(); }

  Exactly project_from(const std::string& weight, const std::string& x) const {
    const Weight w = layer.weights.projections.at(weight).view();
    Exactly exact(tokens() * w.outputs);
    EXPECT_TRUE(project_exact({at(x).as<std::uint16_t>(), tokens(), w, ActivationDtype::bf16},
                              exact.value.data(), exact.bound.data()));
    return exact;
  }

  Exactly norm(const std::string& name, const std::uint16_t* x, std::int64_t width) const {
    const auto& weights = layer.weights.norms;
    const bool keys = name == "k_index_norm";
    const bool layernorm = keys && layer.config.dsa->index_k_norm_type == "layernorm";
    Exactly exact(tokens() * width);
    EXPECT_TRUE(apply_norm_exact({layernorm ? IndexKNorm::layernorm : IndexKNorm::rmsnorm,
                                  RmsNormRounding::two, ActivationDtype::bf16, 1e-5f,
                                  weights.at(keys ? name + ".weight" : name).data(),
                                  layernorm ? weights.at(name + ".bias").data() : nullptr, width},
                                 x, tokens(), exact.value.data(), exact.bound.data()));
    return exact;
  }

  /// Of columns of the first projection.
  Exactly norm_of_columns(const std::string& name, std::int64_t first, std::int64_t width) const {
    const Tensor& a = at(layer.config.q_lora_rank ? "qkv_a" : "kv_a");
    std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens() * width));
    take_columns(a.as<std::uint16_t>(), tokens(), a.shape[1], first, width, x.data());
    return norm(name, x.data(), width);
  }

  Absorption absorption(const std::string& x) const {
    return {at(x).as<std::uint16_t>(),
            tokens(),
            layer.config.num_attention_heads,
            layer.config.head,
            layer.weights.projections.at("kv_b_proj").view(),
            ActivationDtype::bf16};
  }

  Exactly query() const {
    Exactly exact(tokens() * layer.config.num_attention_heads * 576);
    EXPECT_TRUE(absorb_q_exact(absorption("q"), exact.value.data(), exact.bound.data()));
    return exact;
  }

  Exactly value() const {
    Exactly exact(tokens() * layer.config.num_attention_heads * 128);
    EXPECT_TRUE(absorb_v_exact(absorption("attn_latent"), exact.value.data(), exact.bound.data()));
    return exact;
  }

  Exactly gated() const {
    Exactly exact(at("gate").elements());
    EXPECT_TRUE(
        output_gate_exact({at("attn_value").as<std::uint16_t>(), at("gate").as<std::uint16_t>(),
                           at("gate").elements(), GateRounding::two, ActivationDtype::bf16},
                          exact.value.data(), exact.bound.data()));
    return exact;
  }

  /// The logits as decode, which equals prefill bit for bit; columns past a row: 0.
  Exactly logits() const {
    const testing::OwnedStep& step = layer.step;
    std::vector<std::int32_t> row_lens, row_request;
    for (std::size_t b = 0; b < step.query_lens.size(); ++b)
      for (std::int32_t i = 0; i < step.query_lens[b]; ++i) {
        row_lens.push_back(step.seq_lens[b] - step.query_lens[b] + i + 1);
        row_request.push_back(static_cast<std::int32_t>(b));
      }
    const std::int64_t columns = at("index_logits").shape[1];
    const std::int64_t heads = layer.config.dsa->index_num_heads;
    const IndexCache<const std::uint8_t> cache{index_cache.data(), step.pages, step.index_stride};
    const BlockTable table{step.block_table.data(), std::ssize(step.query_lens), step.columns};
    Exactly exact(tokens() * columns);
    const LayerContract contract = testing::layer_contract(layer.contract);
    if (mxfp4()) {
      const IndexLogitsDecodeMxfp4 in{at("index_q_packed").as<std::uint8_t>(),
                                      at("index_q_scale").as<std::uint8_t>(),
                                      at("index_weights").as<std::uint16_t>(),
                                      cache,
                                      table,
                                      row_lens.data(),
                                      row_request.data(),
                                      tokens(),
                                      heads,
                                      columns,
                                      ActivationDtype::bf16};
      const Mxfp4Pages& pages = std::get<Mxfp4Indexer>(contract.indexer).pages;
      EXPECT_TRUE(index_logits_decode_mxfp4<Exact>(pages, in, exact.value.data()));
      EXPECT_TRUE(index_logits_decode_mxfp4_bound(pages, in, accumulation, exact.bound.data()));
    } else {
      const IndexLogitsDecode in{at("index_q_fp8").as<std::uint8_t>(),
                                 at("index_weights_folded").as<float>(),
                                 cache,
                                 table,
                                 row_lens.data(),
                                 row_request.data(),
                                 tokens(),
                                 heads,
                                 columns};
      const IndexPages& pages = std::get<Fp8Indexer>(contract.indexer).key.pages;
      EXPECT_TRUE(index_logits_decode<Exact>(pages, in, exact.value.data()));
      EXPECT_TRUE(index_logits_decode_bound(pages, in, accumulation, exact.bound.data()));
    }
    return exact;
  }

  void attention(Exactly& latent, Exactly& lse) const {
    const testing::OwnedStep& step = layer.step;
    const SparseAttention in{at("mla_query").as<std::uint16_t>(),
                             {mla_cache.data(), step.pages, 64, 64 * 656, 656},
                             at("topk_slots").as<std::int32_t>(),
                             tokens(),
                             layer.config.num_attention_heads,
                             layer.config.dsa->index_topk,
                             layer.config.softmax_scale(),
                             *parse_mla_fp8_encoding(layer.contract),
                             MlaScaleRead::fp32,
                             LseBase::e};
    EXPECT_TRUE(sparse_attention_exact(in, latent.value.data(), lse.value.data()));
    EXPECT_TRUE(accumulation == Accumulation::exact
                    ? sparse_attention_exact_bound(in, latent.bound.data(), lse.bound.data())
                    : sparse_attention_bound(in, latent.bound.data(), lse.bound.data()));
  }
};

class ChainedLayer : public ::testing::TestWithParam<const char*> {
protected:
  /// Every element of `name` within the gate above.
  static void expect_close(const std::string& name, const Side& ours, const Side& recorded,
                           const Exactly& f_ours, const Exactly& f_recorded) {
    const Tensor& a = ours.at(name);
    const Tensor& b = recorded.at(name);
    ASSERT_EQ(static_cast<std::size_t>(a.elements()), f_ours.value.size()) << name;
    ASSERT_EQ(a.elements(), b.elements()) << name;
    double worst = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < f_ours.value.size(); ++i) {
      const double x = element(a, i), y = element(b, i);
      if (x == y) continue; // -inf too
      const double gate =
          f_ours.bound[i] + f_recorded.bound[i] + std::fabs(f_ours.value[i] - f_recorded.value[i]);
      const double used = std::fabs(x - y) / gate;
      if (!(used <= 1) && wrong++ == 0)
        ADD_FAILURE() << name << "[" << i << "]: " << x << " against " << y << ", gate " << gate;
      worst = std::max(worst, used);
    }
    EXPECT_EQ(wrong, 0u) << name;
    RecordProperty(name, std::to_string(worst));
  }

  /// Rows whose inputs have the same bytes must have the same bytes in `name`; returns the others.
  static std::set<std::int64_t> expect_same_rows(const std::string& name, const Side& ours,
                                                 const Side& recorded,
                                                 const std::vector<std::string>& inputs) {
    const auto same = [&](const std::string& tensor, std::int64_t row) {
      const auto bytes = static_cast<std::int64_t>(ours.at(tensor).bytes.size()) / ours.tokens();
      return std::equal(ours.at(tensor).bytes.begin() + row * bytes,
                        ours.at(tensor).bytes.begin() + (row + 1) * bytes,
                        recorded.at(tensor).bytes.begin() + row * bytes);
    };
    std::set<std::int64_t> moved;
    for (std::int64_t row = 0; row < ours.tokens(); ++row) {
      if (std::all_of(inputs.begin(), inputs.end(), [&](const auto& x) { return same(x, row); }))
        EXPECT_TRUE(same(name, row)) << name << " of row " << row;
      else
        moved.insert(row);
    }
    return moved;
  }
};

/// Values of an FP8 query, or of an MXFP4 one.
std::vector<double> dequantised(const Side& side) {
  std::vector<double> values;
  const bool fp4 = side.mxfp4();
  const Tensor& codes = side.at(fp4 ? "index_q_packed" : "index_q_fp8");
  const Tensor& scales = side.at("index_q_scale");
  const Fp8Encoding encoding = *parse_index_fp8_encoding(side.layer.contract);
  for (std::size_t i = 0; i < codes.bytes.size(); ++i) {
    const auto code = codes.as<std::uint8_t>()[i];
    if (!fp4) {
      values.push_back(decode_fp8(encoding, code) * scales.as<float>()[i / 128]);
      continue;
    }
    const double scale = decode_e8m0(scales.as<std::uint8_t>()[i / 16]);
    values.push_back(decode_e2m1(code & 15) * scale);
    values.push_back(decode_e2m1(code >> 4) * scale);
  }
  return values;
}

TEST_P(ChainedLayer, AgreesOperationByOperation) {
  DSAKIT_NEED_RECORDING(GetParam());
  RecordedLayerFile file(GetParam());
  testing::OwnedStep step = file.step;
  auto run =
      testing::run_layer(file.config, testing::layer_contract(file.contract), file.weights, step);
  Side ours{file, std::move(run.tensors), step.index_cache, step.mla_cache, Accumulation::fp32};
  Side recorded{file,
                {},
                file.file.values<std::uint8_t>("steps.0.index_cache_after"),
                file.file.values<std::uint8_t>("steps.0.mla_cache_after"),
                Accumulation::exact};
  for (const auto& [name, tensor] : ours.tensors)
    recorded.tensors[name] = file.file.read("steps.0." + name);
  for (Side* side : {&ours, &recorded})
    side->tensors["hidden_states"] = file.file.read("steps.0.hidden_states");
  const bool q_lora = file.config.q_lora_rank.has_value();
  if (!q_lora)
    for (Side* side : {&ours, &recorded})
      side->tensors["index_q_input"] = side->tensors["hidden_states"];
  const auto check = [&](const std::string& name, const auto& exact_of) {
    expect_close(name, ours, recorded, exact_of(ours), exact_of(recorded));
  };
  const auto projected = [&](const std::string& name, const char* weight, const std::string& x) {
    check(name, [&](const Side& side) { return side.project_from(weight, x); });
  };

  projected(q_lora ? "qkv_a" : "kv_a", q_lora ? "fused_qkv_a_proj" : "kv_a_proj_with_mqa",
            "hidden_states");
  const std::int64_t lora = file.config.q_lora_rank.value_or(0);
  if (q_lora)
    check("index_q_input",
          [&](const Side& side) { return side.norm_of_columns("q_a_layernorm", 0, lora); });
  projected("q", q_lora ? "q_b_proj" : "q_proj", "index_q_input");
  check("kv_c",
        [&](const Side& side) { return side.norm_of_columns("kv_a_layernorm", lora, 512); });
  expect_same_rows("k_pe", ours, recorded, {q_lora ? "qkv_a" : "kv_a"});
  projected("index_q", "wq_index", "index_q_input");
  projected("index_k_raw", "wk_index", "hidden_states");
  projected("index_weights", "wv_index", "hidden_states");
  check("index_k", [](const Side& side) {
    return side.norm("k_index_norm", side.at("index_k_raw").as<std::uint16_t>(), 128);
  });

  // Codes of equal inputs are equal; others may move by the input and one step of the code.
  const std::string codes = file.config.use_fp4() ? "index_q_packed" : "index_q_fp8";
  expect_same_rows("index_q_scale", ours, recorded, {"index_q"});
  const auto moved = expect_same_rows(codes, ours, recorded, {"index_q"});
  const auto a = dequantised(ours), b = dequantised(recorded);
  const auto width = static_cast<std::int64_t>(a.size()) / ours.tokens();
  for (std::int64_t row : moved)
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double dx =
          std::fabs(element(ours.at("index_q"), at) - element(recorded.at("index_q"), at));
      // fp8: 2^-3 of the value, or the step of subnormals; fp4: up to 2^-1 of it
      const double largest = std::max(std::fabs(a[at]), std::fabs(b[at]));
      EXPECT_LE(std::fabs(a[at] - b[at]), dx == 0 ? 0 : dx + largest / 2 + 0x1p-9) << codes << i;
    }

  // The caches: what the new tokens' equal rows wrote, and everything else, byte for byte.
  const auto expect_cache = [&](const char* name, const std::vector<std::uint8_t>& got,
                                const std::vector<std::uint8_t>& want, std::size_t largest_moved) {
    ASSERT_EQ(got.size(), want.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      wrong += got[i] != want[i];
    EXPECT_LE(wrong, largest_moved) << name;
  };
  const auto differ = [&](std::initializer_list<const char*> names) {
    std::size_t elements = 0;
    for (const char* name : names)
      for (std::int64_t i = 0; i < ours.at(name).elements(); ++i)
        elements += element(ours.at(name), static_cast<std::size_t>(i)) !=
                    element(recorded.at(name), static_cast<std::size_t>(i));
    return elements;
  };
  // A moved element may change the scale, and with it every byte, of its group: 132 or 128 + 4.
  expect_cache("index_cache", ours.index_cache, recorded.index_cache, 132 * differ({"index_k"}));
  expect_cache("mla_cache", ours.mla_cache, recorded.mla_cache, 132 * differ({"kv_c", "k_pe"}));

  check("index_logits", [](const Side& side) { return side.logits(); });
  expect_same_rows("topk_indices", ours, recorded, {"index_logits"});
  expect_same_rows("topk_slots", ours, recorded, {"topk_indices"});
  const Exactly logits = ours.logits(), recorded_logits = recorded.logits();
  const std::int64_t k = file.config.dsa->index_topk, columns = ours.at("index_logits").shape[1];
  for (std::int64_t row = 0; row < ours.tokens(); ++row) {
    // A member of one set alone is within the gate of the last of the other.
    const auto selection = [&](const Side& side) {
      const std::int32_t* first = side.at("topk_indices").as<std::int32_t>() + row * k;
      return std::set<std::int32_t>(first, first + k);
    };
    const auto mine = selection(ours), theirs = selection(recorded);
    for (std::int32_t in : mine)
      for (std::int32_t out : theirs)
        if (!theirs.count(in) && !mine.count(out)) {
          const auto i = static_cast<std::size_t>(row * columns + in);
          const auto o = static_cast<std::size_t>(row * columns + out);
          EXPECT_LE(std::fabs(logits.value[i] - logits.value[o]),
                    logits.bound[i] + logits.bound[o] + recorded_logits.bound[i] +
                        recorded_logits.bound[o] +
                        std::fabs(logits.value[i] - recorded_logits.value[i]) +
                        std::fabs(logits.value[o] - recorded_logits.value[o]));
        }
  }

  check("mla_query", [](const Side& side) { return side.query(); });
  const std::int64_t rows = ours.tokens() * file.config.num_attention_heads;
  Exactly latent(rows * 512), lse(rows), recorded_latent(rows * 512), recorded_lse(rows);
  ours.attention(latent, lse);
  recorded.attention(recorded_latent, recorded_lse);
  expect_close("attn_latent", ours, recorded, latent, recorded_latent);
  expect_close("attn_lse", ours, recorded, lse, recorded_lse);
  check("attn_value", [](const Side& side) { return side.value(); });
  if (file.config.mla_use_output_gate) {
    projected("gate", "g_proj", "hidden_states");
    check("attn_gated", [](const Side& side) { return side.gated(); });
  }
  projected("output", "o_proj", file.config.mla_use_output_gate ? "attn_gated" : "attn_value");
}

INSTANTIATE_TEST_SUITE_P(Files, ChainedLayer,
                         ::testing::Values("prefill_q_lora_layernorm_gate",
                                           "prefill_no_q_lora_rmsnorm_yarn", "decode_next_n2",
                                           "decode_mxfp4", "decode_fnuz"),
                         [](const auto& info) { return std::string(info.param); });

} // namespace layer_recordings_test
} // namespace dsakit::reference
