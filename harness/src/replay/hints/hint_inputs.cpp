// Assumptions about the inputs: one of them left out, taken of another row, or read in another
// order. The reference then says what comes out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "../../operations/dcp_rank.hpp"
#include "../sample_rows.hpp"
#include "dsakit/harness/contract_keys.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "inputs.hpp"

namespace dsakit::harness {
namespace {

/// Every row takes the first row of an input.
void first_row_for_all(Inputs& inputs, const OperationData& data) {
  for (const auto& [name, tensor] : data.tensors.inputs)
    if (row_axis(data.operation(), name) == std::size_t{0} && tensor.tensor.shape[0] > 1)
      inputs.assume(name, "every row takes the first row of " + name, [](Tensor& rows) {
        const std::size_t bytes = rows.bytes.size() / static_cast<std::size_t>(rows.shape[0]);
        for (std::size_t at = bytes; at < rows.bytes.size(); at += bytes)
          std::copy_n(rows.bytes.begin(), bytes,
                      rows.bytes.begin() + static_cast<std::ptrdiff_t>(at));
      });
}

void weights_fold(Inputs& inputs) {
  inputs.assume_each<float>("index_q_scale", "the query scale is left out",
                            [](float, std::int64_t) { return 1.0F; });
}

/// Another softmax scale, and how it is told.
struct OtherScale {
  double value;
  std::string text;
};

std::string power(std::int64_t dim) {
  return std::to_string(dim) + "^-0.5";
}

/// Scales that are mistaken for `scale`: of other dims of the layer, with another mscale of YaRN.
std::vector<OtherScale> other_scales(double scale) {
  constexpr std::int64_t kDims[] = {192, 128, 256, 64, 512, 576};
  constexpr int kFactors[] = {4, 8, 16, 32, 40, 64, 128};
  const auto mscale = [](double factor) { return 0.1 * std::log(factor) + 1; };
  const auto same = [](double a, double b) { return std::abs(a / b - 1) < 1e-4; };
  std::optional<std::int64_t> own; // the head size, if the scale tells
  for (const std::int64_t dim : kDims) {
    const double times = scale * std::sqrt(static_cast<double>(dim));
    const bool has_mscale = std::any_of(std::begin(kFactors), std::end(kFactors), [&](int factor) {
      return same(times, std::pow(mscale(factor), 2));
    });
    if (!own && (same(times, 1) || has_mscale)) own = dim;
  }
  const double plain = own ? 1 / std::sqrt(static_cast<double>(*own)) : scale;
  const std::string head = own ? power(*own) : "the recorded one";

  std::vector<OtherScale> others;
  const auto add = [&](double value, const std::string& text) {
    if (same(value, scale) || std::any_of(others.begin(), others.end(), [&](const OtherScale& o) {
          return same(o.value, value);
        }))
      return;
    others.push_back({value, text});
  };
  if (own) {
    add(plain, head + ", without mscale");
    add(std::sqrt(scale * plain), "mscale once, not squared");
    add(scale * scale / plain, "mscale applied twice");
  }
  const auto of_yarn = [&](int factor) {
    add(plain * std::pow(mscale(factor), 2),
        head + " with the mscale of a YaRN factor of " + std::to_string(factor));
  };
  for (const int usual : {4, 32, 40, 64})
    of_yarn(usual);
  add(1 / std::sqrt(576.0), power(576) + ", of the absorbed query");
  add(1 / std::sqrt(128.0), power(128) + ", without the 64 unrotated dims");
  add(scale * std::log2(std::exp(1.0)), "log2(e) too large");
  add(scale / std::log2(std::exp(1.0)), "log2(e) too small");
  add(1.0, "left out");
  // What is rarer comes after what a few rows may not tell from it.
  for (const int factor : kFactors)
    of_yarn(factor);
  for (const std::int64_t dim : kDims)
    add(1 / std::sqrt(static_cast<double>(dim)), power(dim));
  for (const std::int64_t from : kDims) // with whatever else is in it
    for (const std::int64_t to : kDims)
      if (!own || from == *own)
        add(scale * std::sqrt(static_cast<double>(from) / static_cast<double>(to)),
            "that of " + power(to) + " in place of " + power(from));
  for (const int factor : kFactors)
    add(scale / std::pow(mscale(factor), 2),
        "without the mscale of a YaRN factor of " + std::to_string(factor));
  return others;
}

void sparse_attention(Inputs& inputs, const OperationData& data) {
  for (const OtherScale& other : other_scales(*parse_number(data.config.at("softmax_scale")))) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.17g", other.value);
    inputs.made.push_back({"what comes out where the softmax scale is " + other.text,
                           [=](RecordedOperation&, ContractValues&, Attributes& config) {
                             config["softmax_scale"] = digits;
                           }});
  }
  constexpr std::int64_t kDim = reference::kMlaLatent + reference::kMlaPe;
  inputs.assume_each<std::int32_t>(
      "slots", "slot 0 is attended in place of -1",
      [](std::int32_t slot, std::int64_t) { return std::max(slot, 0); });
  const std::int64_t k = inputs.at("slots").shape[1];
  const auto lose = [=](bool last) {
    return [=](Tensor& slots) {
      for (std::int64_t row = 0; row < slots.shape[0]; ++row) {
        std::int32_t* ids = slots.as<std::int32_t>() + row * k;
        for (std::int64_t n = 0; n < k; ++n)
          if (std::int32_t& id = ids[last ? k - 1 - n : n]; id >= 0) {
            id = -1;
            break;
          }
      }
    };
  };
  inputs.assume("slots", "the last key of each row is left out", lose(true));
  inputs.assume("slots", "the first key of each row is left out", lose(false));
  inputs.assume_each<std::uint16_t>("mla_query", "the 64 unrotated dims are left out of the score",
                                    [](std::uint16_t value, std::int64_t i) {
                                      return i % kDim < reference::kMlaLatent ? value
                                                                              : std::uint16_t{0};
                                    });
  constexpr std::int64_t kFirst = 2 * reference::kMlaLatent, kHalf = reference::kMlaPe / 2;
  const auto pe = [](auto from) {
    return [=](std::int64_t byte) {
      return byte < kFirst ? byte : kFirst + 2 * from((byte - kFirst) / 2) + byte % 2;
    };
  };
  inputs.assume_order(
      "mla_query", "the query's last 64 dims are interleaved and those of the key half-split",
      2 * kDim, pe([](std::int64_t i) { return i < kHalf ? 2 * i : 2 * (i - kHalf) + 1; }));
  inputs.assume_order("mla_query",
                      "the query's last 64 dims are half-split and those of the key interleaved",
                      2 * kDim, pe([](std::int64_t i) { return i / 2 + i % 2 * kHalf; }));
}

/// The weight [heads * rows of a head, latent]: a head has W_UK, then W_UV, of which the operation
/// takes one.
void absorption(Inputs& inputs, const OperationData& data) {
  if (inputs.has("weight_scale")) return; // its blocks would have to follow
  const Tensor& weight = inputs.at("weight");
  const Tensor* q = data.optional_input("q");
  const RecordedTensor* value = data.find_output("attn_value");
  const RecordedTensor* query = data.find_output("mla_query");
  if (q ? !query : !value) return;
  const std::int64_t heads = (q ? *q : inputs.at("latent")).shape[1];
  const std::int64_t head_rows = weight.shape[0] / heads;
  const std::int64_t own =
      q ? q->shape[2] - (query->tensor.shape[2] - weight.shape[1]) : value->tensor.shape[1] / heads;
  const std::int64_t start = q ? 0 : head_rows - own; // of its rows in those of a head
  const auto row_bytes = static_cast<std::int64_t>(weight.bytes.size()) / weight.shape[0];
  const auto assume = [&](const std::string& hint, auto from) {
    inputs.assume_order("weight", hint, std::ssize(weight.bytes), [=](std::int64_t i) {
      const std::int64_t row = i / row_bytes, head = row / head_rows;
      const std::int64_t in_own = row % head_rows - start;
      return in_own < 0 || in_own >= own ? i : from(head, in_own) * row_bytes + i % row_bytes;
    });
  };
  const std::int64_t other = q ? own : 0; // where the other matrix starts
  if (other + own <= head_rows)
    assume(q ? "W_UV is taken for W_UK" : "W_UK is taken for W_UV",
           [=](std::int64_t head, std::int64_t row) { return head * head_rows + other + row; });
  assume("the heads of the weight are taken from one another, with nothing between them",
         [=](std::int64_t head, std::int64_t row) { return start + head * own + row; });
}

void norm(Inputs& inputs, const OperationData& data) {
  const auto recorded = data.config.find("rms_norm_eps"); // a layernorm has a fixed one
  if (recorded == data.config.end()) return;
  for (const char* eps : {"0", "1e-6", "1e-5"})
    if (*parse_number(eps) != *parse_number(recorded->second))
      inputs.made.push_back({std::string("what comes out where eps is ") + eps,
                             [=](RecordedOperation&, ContractValues&, Attributes& config) {
                               config["rms_norm_eps"] = eps;
                             }});
}

void topk(Inputs& inputs) {
  inputs.assume_each<float>("logits", "-0 ranks below 0", [](float score, std::int64_t) {
    return score == 0 && std::signbit(score) ? -std::numeric_limits<float>::denorm_min() : score;
  });
  inputs.assume_each<float>(
      "logits", "NaN ranks above every number", [](float score, std::int64_t) {
        return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
      });
}

/// Positions of one rank: what a local index of another kind would have been made of.
void topk_slots(Inputs& inputs, const OperationData& data) {
  const auto dcp = rank_of(data, "slots");
  if (!dcp || dcp->world == 1) return;
  const auto world = static_cast<std::int32_t>(dcp->world);
  const auto rank = static_cast<std::int32_t>(dcp->rank);
  const auto interleave = static_cast<std::int32_t>(dcp->interleave);
  // The position whose place in the rank's keys is the number of the block.
  inputs.assume_each<std::int32_t>(
      "topk_indices", "the place in a block of dcp_interleave positions is lost",
      [=](std::int32_t position, std::int64_t) {
        const std::int32_t block = position / interleave;
        if (position < 0 || block % world != rank) return position;
        const std::int32_t local = block / world;
        return (local / interleave * world + rank) * interleave + local % interleave;
      });
}

} // namespace

std::vector<Assumption> other_inputs(const OperationData& data) {
  Inputs inputs(data);
  const std::string& operation = data.id.operation;
  if (operation == "index_logits_prefill" || operation == "index_logits_decode") {
    if (data.operation().format == "mxfp4")
      mxfp4_logits(inputs, data);
    else
      fp8_logits(inputs);
  } else if (operation == "index_weights_fold") {
    weights_fold(inputs);
  } else if (operation == "sparse_attention") {
    sparse_attention(inputs, data);
  } else if (operation == "absorb_q" || operation == "absorb_v") {
    absorption(inputs, data);
  } else if (operation == "q_norm" || operation == "kv_norm" || operation == "index_key_norm") {
    norm(inputs, data);
  } else if (operation == "topk") {
    topk(inputs);
  } else if (operation == "topk_slots") {
    topk_slots(inputs, data);
  } else if (operation == "output_gate") {
    inputs.assume_each<std::uint16_t>(
        "gate", "the gate's sign is lost",
        [](std::uint16_t gate, std::int64_t) { return static_cast<std::uint16_t>(gate & 0x7FFF); });
  }
  first_row_for_all(inputs, data);
  return std::move(inputs.made);
}

} // namespace dsakit::harness
