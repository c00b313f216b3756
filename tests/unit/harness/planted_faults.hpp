// Faults planted into the inputs of logits and attention: one head, 32 dimensions of the dot or one
// key lost, the scales of two keys exchanged.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsakit/harness/operations.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "operations/index_pages.hpp"

namespace dsakit::harness {

/// The inputs with something lost or exchanged.
struct Fault {
  std::string what;
  RecordedOperation tensors;
  bool within_wgmma = false; ///< the gate of sm90_wgmma_fp8 has room for it
};
using Faults = std::vector<Fault>;

inline Fault& add(Faults& faults, const std::string& what, const OperationData& data) {
  return faults.emplace_back(Fault{what, data.tensors});
}

/// Zeroes the elements of an input of T [.., width] for which lost(element of the whole tensor).
template <class T, class Lost>
void zero(Fault& fault, const std::string& input, Lost lost) {
  Tensor& tensor = fault.tensors.inputs.at(input).tensor;
  for (std::int64_t i = 0; i < tensor.elements(); ++i)
    if (lost(i)) tensor.as<T>()[i] = T{};
}

inline std::set<std::int64_t> first_middle_last(std::int64_t n) {
  return {0, n / 2, n - 1};
}

// Logits.

/// A head whose queries lie below the quantiser's floor weighs nothing, and may be lost.
inline bool weighs(const Tensor& weights, std::int64_t head) {
  const std::int64_t heads = weights.shape[1];
  float largest = 0, of_head = 0;
  for (std::int64_t i = 0; i < weights.elements(); ++i) {
    const float weight = std::abs(weights.dtype == Dtype::float32
                                      ? weights.as<float>()[i]
                                      : reference::bf16_to_float(weights.as<std::uint16_t>()[i]));
    largest = std::max(largest, weight);
    if (i % heads == head) of_head = std::max(of_head, weight);
  }
  return of_head > 0x1p-20F * largest;
}

/// The keys [first, end) of one row, and where their bytes lie.
struct RowKeys {
  std::int64_t first;
  std::int64_t end;
  std::int64_t row;
  std::int64_t first_column;
  std::string code_input;
  std::string scale_input;
  std::int64_t code_bytes; ///< 128, or 64 with two codes each
  /// BYTES into the input: byte i of a key's codes, byte i of its four bytes of scale.
  std::function<std::int64_t(std::int64_t key, std::int64_t i)> code_at;
  std::function<std::int64_t(std::int64_t key, std::int64_t i)> scale_at;
};

inline bool is_mxfp4(const OperationData& data) {
  return data.operation().format == "mxfp4";
}

inline RowKeys decode_keys(const OperationData& data) {
  const Tensor& lens = data.input("row_lens");
  const auto* len = lens.as<std::int32_t>();
  const std::int64_t row = std::max_element(len, len + lens.elements()) - len;
  const RecordedTensor& cache = data.tensors.inputs.at("index_cache");
  const bool mxfp4 = is_mxfp4(data);
  // Only the pages of the operation's format are there.
  const auto fp8_pages = parse_index_pages(data.contract);
  const auto mxfp4_pages = parse_mxfp4_pages(data.contract);
  const PageGeometry geometry =
      mxfp4 ? *page_geometry(cache, *mxfp4_pages) : *page_geometry(cache, *fp8_pages);
  const std::int64_t page_size = *parse_page_size(data.contract);
  const Tensor& table = data.input("block_table");
  const auto requests = *row_requests(data.tensors, lens.elements(), table.shape[0]);
  const std::int32_t* table_row =
      table.as<std::int32_t>() + requests[static_cast<std::size_t>(row)] * table.shape[1];
  const auto page = [=](std::int64_t key) {
    return table_row[key / page_size] * geometry.stride + geometry.offset;
  };
  return {0,
          len[row],
          row,
          0,
          "index_cache",
          "index_cache",
          mxfp4 ? reference::kMxfp4Bytes : reference::kIndexHeadDim,
          [=](std::int64_t key, std::int64_t i) {
            const std::int64_t token = key % page_size;
            return page(key) + (mxfp4 ? reference::mxfp4_value_offset(*mxfp4_pages, token, i)
                                      : reference::index_value_offset(*fp8_pages, token, i));
          },
          [=](std::int64_t key, std::int64_t i) {
            const std::int64_t token = key % page_size;
            return page(key) + (mxfp4 ? reference::mxfp4_scale_offset(*mxfp4_pages, token, i)
                                      : reference::index_scale_offset(*fp8_pages, token) + i);
          }};
}

inline RowKeys prefill_keys(const OperationData& data) {
  const auto* ks = data.input("ks").as<std::int32_t>();
  const auto* ke = data.input("ke").as<std::int32_t>();
  std::int64_t row = 0;
  for (std::int64_t r = 0; r < data.input("ks").elements(); ++r)
    if (ke[r] - ks[r] > ke[row] - ks[row]) row = r;
  const Tensor* origin = data.optional_input("column_origin");
  const bool mxfp4 = is_mxfp4(data);
  const std::int64_t bytes = mxfp4 ? reference::kMxfp4Bytes : reference::kIndexHeadDim;
  return {ks[row],
          ke[row],
          row,
          ks[row] - (origin ? origin->as<std::int32_t>()[row] : 0),
          mxfp4 ? "k_packed" : "k_fp8",
          "k_scale",
          bytes,
          [=](std::int64_t key, std::int64_t i) { return key * bytes + i; },
          [](std::int64_t key, std::int64_t i) { return 4 * key + i; }};
}

inline Faults logits_faults(const OperationData& data, const Tensor& logits, bool cancelling) {
  Faults faults;
  const bool mxfp4 = is_mxfp4(data);
  const std::string weights_name = mxfp4 ? "index_weights" : "index_weights_folded";
  const Tensor& weights = data.input(weights_name);
  const std::int64_t heads = weights.shape[1];
  // Where every dot cancels, a head or a scale weighs less than the sum of all terms may lose (spec
  // 8; 0.91 of the gate), and a key less than a producer of the accumulation sm90_wgmma_fp8 may
  // lose (0.15 and 0.63 of its gate): those are left out, and nothing else.
  if (!cancelling)
    for (const std::int64_t head : first_middle_last(heads))
      if (weighs(weights, head)) {
        Fault& fault = add(faults, "head " + std::to_string(head), data);
        const auto lost = [&](std::int64_t i) { return i % heads == head; };
        if (mxfp4)
          zero<std::uint16_t>(fault, weights_name, lost);
        else
          zero<float>(fault, weights_name, lost);
      }
  const std::int64_t step_bytes = mxfp4 ? 16 : 32;
  for (std::int64_t step = 0; step < 4; ++step)
    zero<std::uint8_t>(add(faults, "step " + std::to_string(step), data),
                       mxfp4 ? "index_q_packed" : "index_q_fp8",
                       [&](std::int64_t i) { return i % (4 * step_bytes) / step_bytes == step; });

  const RowKeys keys =
      data.id.operation == "index_logits_decode" ? decode_keys(data) : prefill_keys(data);
  const float* row = logits.as<float>() + keys.row * logits.shape[1] + keys.first_column;
  // The first key that some head gives a score, or where every dot cancels the one with the
  // largest.
  std::int64_t key = keys.first;
  const auto score = [&](std::int64_t of) { return std::abs(row[of - keys.first]); };
  for (std::int64_t other = key + 1; other < keys.end; ++other)
    if (score(other) > score(key) && (cancelling || score(key) == 0)) key = other;
  EXPECT_LT(key, keys.end) << "no row has a key";
  if (key < keys.end) {
    Fault& fault = add(faults, "key " + std::to_string(key), data);
    fault.within_wgmma = cancelling;
    Tensor& codes = fault.tensors.inputs.at(keys.code_input).tensor;
    for (std::int64_t i = 0; i < keys.code_bytes; ++i)
      codes.as<std::uint8_t>()[keys.code_at(key, i)] = 0;
  }
  if (cancelling) return faults;

  const std::byte* bytes = data.input(keys.scale_input).bytes.data();
  const auto scale_differs = [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = 0; i < 4; ++i)
      if (bytes[keys.scale_at(a, i)] != bytes[keys.scale_at(b, i)]) return true;
    return false;
  };
  for (key = keys.first; key + 1 < keys.end; ++key)
    if (scale_differs(key, key + 1)) break;
  if (key + 1 < keys.end) {
    Fault& fault = add(faults, "scales of key " + std::to_string(key) + " and the next", data);
    std::byte* swapped = fault.tensors.inputs.at(keys.scale_input).tensor.bytes.data();
    for (std::int64_t i = 0; i < 4; ++i)
      std::swap(swapped[keys.scale_at(key, i)], swapped[keys.scale_at(key + 1, i)]);
  }
  EXPECT_LT(key + 1, keys.end) << "all scales are equal";
  return faults;
}

// Attention.

inline constexpr std::int64_t kRecord = reference::kMlaRecord;
inline constexpr std::int64_t kDim = reference::kMlaLatent + reference::kMlaPe;

/// Row r of every tensor that has rows.
inline RecordedOperation one_row(const RecordedOperation& all, std::int64_t r) {
  RecordedOperation one = all;
  const auto cut = [&](Tensor& tensor) {
    const std::size_t size = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
    const auto first = tensor.bytes.begin() + r * static_cast<std::ptrdiff_t>(size);
    tensor.bytes = std::vector<std::byte>(first, first + static_cast<std::ptrdiff_t>(size));
    tensor.shape[0] = 1;
  };
  cut(one.inputs.at("mla_query").tensor);
  cut(one.inputs.at("slots").tensor);
  for (auto& [name, output] : one.outputs)
    cut(output.tensor);
  return one;
}

/// The row with most keys.
inline std::int64_t longest_row(const Tensor& slots) {
  std::vector<std::int64_t> keys(static_cast<std::size_t>(slots.shape[0]));
  for (std::int64_t i = 0; i < slots.elements(); ++i)
    keys[static_cast<std::size_t>(i / slots.shape[1])] += slots.as<std::int32_t>()[i] >= 0;
  return std::max_element(keys.begin(), keys.end()) - keys.begin();
}

/// Weight of each slot of the one row in the head that attends to it most: the score of a key is
/// the logarithm of the sum over that key alone.
inline std::vector<double> weights_of(const OperationAdapter& adapter, const OperationData& data) {
  const auto lse_of = [&](const RecordedOperation& tensors) {
    OperationData in{data.id, data.contract, tensors, data.config};
    in.contract["lse_base"] = "e";
    return adapter.reference(in)->at(1).value.unrounded;
  };
  const auto lse = lse_of(data.tensors);
  RecordedOperation each = data.tensors;
  Tensor& query = each.inputs.at("mla_query").tensor;
  Tensor& slots = each.inputs.at("slots").tensor;
  const std::int64_t k = slots.shape[1];
  slots.shape = {k, 1};
  query = Tensor(query.dtype, {k, query.shape[1], kDim});
  const auto& one = data.input("mla_query").bytes;
  for (auto at = query.bytes.begin(); at != query.bytes.end();)
    at = std::copy(one.begin(), one.end(), at);
  const auto scores = lse_of(each);
  std::vector<double> weights(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < scores.size(); ++i)
    weights[i / lse.size()] =
        std::max(weights[i / lse.size()], std::exp(scores[i] - lse[i % lse.size()]));
  return weights;
}

inline Faults attention_faults(const OperationAdapter& adapter, const OperationData& data) {
  Faults faults;
  const std::int64_t heads = data.input("mla_query").shape[1];
  for (const std::int64_t head : first_middle_last(heads))
    zero<std::uint16_t>(add(faults, "head " + std::to_string(head), data), "mla_query",
                        [&](std::int64_t i) { return i / kDim % heads == head; });
  for (std::int64_t step = 0; step < kDim / 32; ++step)
    zero<std::uint16_t>(add(faults, "step " + std::to_string(step), data), "mla_query",
                        [&](std::int64_t i) { return i % kDim / 32 == step; });

  // A key that no head gives weight to may be lost without a trace: the lightest of 2 percent.
  const auto weights = weights_of(adapter, data);
  std::size_t light = 0, heavy = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > weights[heavy]) heavy = i;
    if (weights[i] >= 0.02 && (weights[light] < 0.02 || weights[i] < weights[light])) light = i;
  }
  EXPECT_GE(weights[light], 0.02) << "no key weighs that much";
  add(faults, "slot " + std::to_string(light), data)
      .tensors.inputs.at("slots")
      .tensor.as<std::int32_t>()[light] = -1;

  const auto* slots = data.input("slots").as<std::int32_t>();
  const std::size_t before_scales = faults.size();
  for (std::int64_t tile = 0; tile < 4; ++tile) {
    const auto scale_at = [&](std::size_t i) {
      return slots[i] * kRecord + reference::kMlaLatent + 4 * tile;
    };
    const auto scale = [&](std::size_t i) {
      float value = 0;
      std::memcpy(&value, data.input("mla_cache").bytes.data() + scale_at(i), sizeof value);
      return value;
    };
    std::size_t other = heavy; // with the scale that differs most
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (slots[i] >= 0 && std::abs(std::log(scale(i) / scale(heavy))) >
                               std::abs(std::log(scale(other) / scale(heavy))))
        other = i;
    if (other == heavy) continue;
    Fault& fault = add(faults, "scales of tile " + std::to_string(tile), data);
    std::byte* cache = fault.tensors.inputs.at("mla_cache").tensor.bytes.data();
    std::swap_ranges(cache + scale_at(heavy), cache + scale_at(heavy) + 4, cache + scale_at(other));
  }
  EXPECT_GT(faults.size(), before_scales) << "all scales are equal";
  return faults;
}

} // namespace dsakit::harness
