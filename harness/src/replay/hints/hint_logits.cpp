// Assumptions about the inputs of index logits: heads, dims or scales lost or out of order.
#include <algorithm>
#include <cmath>

#include "../../operations/index_pages.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "inputs.hpp"

namespace dsakit::harness {
namespace {

constexpr std::int64_t kDims = reference::kIndexHeadDim;

/// Head weights: T of `weights` [rows, heads].
template <class T>
void about_heads(Inputs& inputs, const std::string& weights) {
  const std::int64_t heads = inputs.at(weights).shape[1];
  const auto without = [&](const std::string& which, auto lost) {
    inputs.assume_each<T>(weights, which,
                          [=](T weight, std::int64_t i) { return lost(i % heads) ? T{} : weight; });
  };
  without("the last head is left out", [=](std::int64_t head) { return head == heads - 1; });
  without("the upper half of the heads is left out",
          [=](std::int64_t head) { return head >= heads / 2; });
  without("the upper 8 of each 16 heads are left out",
          [](std::int64_t head) { return head % 16 >= 8; });
  if (heads % 16 == 0) {
    constexpr auto kWidth = static_cast<std::int64_t>(16 * sizeof(T));
    inputs.assume_order(weights,
                        "heads get each other's weights: accumulator rows taken as interleaved, "
                        "4 x 4 transposed",
                        kWidth, [](std::int64_t i) {
                          constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
                          const std::int64_t head = i / kSize;
                          return (head % 4 * 4 + head / 4) * kSize + i % kSize;
                        });
  }
}

/// The codes of a query, `width` bytes a head for 128 dims.
void about_dims(Inputs& inputs, const std::string& codes, std::int64_t width) {
  const std::int64_t step = width / 4;
  for (std::int64_t s = 0; s < 4; ++s)
    inputs.assume_each<std::uint8_t>(codes,
                                     "dims " + std::to_string(32 * s) + " to " +
                                         std::to_string(32 * s + 31) + " of the dot are left out",
                                     [=](std::uint8_t code, std::int64_t i) {
                                       return i % width / step == s ? std::uint8_t{0} : code;
                                     });
  for (std::int64_t s = 0; s < 4; ++s) // what a lane of each 16 holds of one matrix instruction
    inputs.assume_each<std::uint8_t>(codes,
                                     "dims " + std::to_string(8 * s) + " to " +
                                         std::to_string(8 * s + 7) +
                                         " of each 32 of the dot are left out: a step of the sum",
                                     [=](std::uint8_t code, std::int64_t i) {
                                       return i % step / (step / 4) == s ? std::uint8_t{0} : code;
                                     });
  const std::int64_t dims_a_byte = kDims / width;
  for (std::int64_t apart = 1; apart < width; apart *= 2)
    inputs.assume_order(codes,
                        "the query's dims lie in another order than the key's: neighbours " +
                            std::to_string(apart * dims_a_byte) + " apart exchanged",
                        width, [=](std::int64_t i) { return i ^ apart; });
}

/// FP8 queries [rows, heads, 128]: the rotary part is 64 dims of a head, first or last, or all.
void about_half_splits(Inputs& inputs, const std::string& codes) {
  for (const auto& [first, extent] :
       {std::pair<std::int64_t, std::int64_t>(0, kDims), {0, kDims / 2}, {kDims / 2, kDims / 2}}) {
    const std::string dims = "dims " + std::to_string(first) + " to " +
                             std::to_string(first + extent - 1) + " of the query are ";
    const auto within = [f = first, n = extent](auto from) {
      return [=](std::int64_t i) { return i < f || i >= f + n ? i : f + from(i - f, n); };
    };
    inputs.assume_order(codes, dims + "interleaved and those of the key half-split", kDims,
                        within([](std::int64_t i, std::int64_t n) {
                          return i < n / 2 ? 2 * i : 2 * (i - n / 2) + 1;
                        }));
    inputs.assume_order(
        codes, dims + "half-split and those of the key interleaved", kDims,
        within([](std::int64_t i, std::int64_t n) { return i / 2 + i % 2 * (n / 2); }));
  }
}

/// Keys in tiles from key 0 on: each takes the scale of the first that is in its window.
void scales_of_tiles(Inputs& inputs) {
  if (!inputs.has("k_scale") || !inputs.has("ks")) return;
  const Tensor& ks = inputs.at("ks");
  std::vector<std::int64_t> begins(ks.as<std::int32_t>(), ks.as<std::int32_t>() + ks.elements());
  std::sort(begins.begin(), begins.end());
  for (const std::int64_t tile : {16, 32, 64})
    inputs.assume(
        "k_scale",
        "every key of a tile of " + std::to_string(tile) + " has the scale of the tile's first",
        [=](Tensor& scales) {
          const Tensor right = scales;
          for (std::int64_t key = 0; key < scales.elements(); ++key) {
            const auto after = std::upper_bound(begins.begin(), begins.end(), key);
            const std::int64_t begin = after == begins.begin() ? 0 : after[-1];
            scales.as<float>()[key] = right.as<float>()[std::max(key - key % tile, begin)];
          }
        });
}

std::uint16_t clipped(std::uint16_t bf16, std::int64_t) {
  return bf16 & 0x8000u ? std::uint16_t{0} : bf16;
}

constexpr const char* kClipped = "a negative head weight counts as 0";

/// relu(w x) = |w| relu(x) for a positive w and |w| relu(-x) for a negative one. `negative` takes
/// the sign from a weight and says whether it had one; `flip` negates codes.
template <class T, class Negative, class Flip>
void relu_after_the_weight(Inputs& inputs, const std::string& weights, const std::string& codes,
                           Negative negative, Flip flip) {
  inputs.made.push_back(
      {"what comes out where the ReLU is after the head weight, not before it",
       [=](RecordedOperation& tensors, ContractValues&, Attributes&) {
         Tensor& weight = tensors.inputs.at(weights).tensor;
         Tensor& code = tensors.inputs.at(codes).tensor;
         const auto head = code.bytes.size() / static_cast<std::size_t>(weight.elements());
         for (std::int64_t i = 0; i < weight.elements(); ++i) {
           if (!negative(weight.as<T>()[i])) continue;
           const auto first = code.bytes.begin() + static_cast<std::ptrdiff_t>(head) * i;
           std::transform(first, first + static_cast<std::ptrdiff_t>(head), first, flip);
         }
       }});
}

} // namespace

void fp8_logits(Inputs& inputs) {
  const std::string weights = "index_weights_folded", codes = "index_q_fp8";
  inputs.assume_each<float>(weights, "the head weights are rounded to bf16",
                            [](float weight, std::int64_t) {
                              return reference::bf16_to_float(reference::float_to_bf16(weight));
                            });
  inputs.assume_each<float>(weights, kClipped,
                            [](float weight, std::int64_t) { return std::max(weight, 0.0F); });
  relu_after_the_weight<float>(
      inputs, weights, codes,
      [](float& weight) {
        const bool negative = std::signbit(weight);
        weight = std::abs(weight);
        return negative;
      },
      [](std::byte b) { return b == std::byte{0} ? b : b ^ std::byte{0x80}; }); // FNUZ has no -0
  inputs.assume_each<float>("k_scale", "the key scale is left out",
                            [](float, std::int64_t) { return 1.0F; });
  scales_of_tiles(inputs);
  about_heads<float>(inputs, weights);
  about_dims(inputs, codes, kDims);
  about_half_splits(inputs, codes);
  // sum w relu(x) - sum w relu(-x) = sum w x: twice the heads, the second half negated.
  inputs.made.push_back(
      {"what comes out where ReLU is left out",
       [=](RecordedOperation& tensors, ContractValues&, Attributes&) {
         const auto twice = [](Tensor& tensor, auto negate) {
           const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
           Tensor wider = tensor;
           wider.shape[1] *= 2;
           wider.bytes.clear();
           for (std::size_t at = 0; at < tensor.bytes.size(); at += row)
             for (const bool negated : {false, true})
               for (std::size_t i = 0; i < row; ++i)
                 wider.bytes.push_back(negated ? negate(tensor.bytes[at + i], i)
                                               : tensor.bytes[at + i]);
           tensor = std::move(wider);
         };
         const auto flip = [](std::byte b) { return b ^ std::byte{0x80}; };
         // The sign of an fp32 is in its last byte; FNUZ has no -0.
         twice(tensors.inputs.at(weights).tensor,
               [=](std::byte b, std::size_t i) { return i % 4 == 3 ? flip(b) : b; });
         twice(tensors.inputs.at(codes).tensor,
               [=](std::byte b, std::size_t) { return b == std::byte{0} ? b : flip(b); });
       }});
}

void mxfp4_logits(Inputs& inputs, const OperationData& data) {
  const std::string weights = "index_weights", codes = "index_q_packed", scales = "index_q_scale";
  constexpr std::uint8_t kOne = 127; // e8m0
  const auto one = [](std::uint8_t, std::int64_t) { return kOne; };
  inputs.assume_each<std::uint8_t>(scales, "the query scale is left out", one);
  inputs.assume_each<std::uint8_t>("k_scale", "the key scale is left out", one);
  inputs.assume_each<std::uint16_t>(weights, kClipped, clipped);
  relu_after_the_weight<std::uint16_t>(
      inputs, weights, codes,
      [](std::uint16_t& weight) {
        const bool negative = (weight & 0x8000u) != 0;
        weight &= 0x7FFFu;
        return negative;
      },
      [](std::byte b) { return b ^ std::byte{0x88}; });
  inputs.assume_each<std::uint8_t>(codes, "the nibbles of the query are exchanged",
                                   [](std::uint8_t code, std::int64_t) {
                                     return static_cast<std::uint8_t>(code << 4 | code >> 4);
                                   });
  about_heads<std::uint16_t>(inputs, weights);
  about_dims(inputs, codes, reference::kMxfp4Bytes);
  constexpr std::int64_t kGroups = reference::kMxfp4Groups;
  const std::int64_t heads = inputs.at(scales).shape[1];
  inputs.assume_order(scales, "heads take the query scales of the first 16", heads * kGroups,
                      [](std::int64_t i) { return i % (16 * kGroups); });
  const auto first = [](std::int64_t i) { return i - i % kGroups; };
  inputs.assume_order("k_scale", "all groups of a key have the scale of its first", kGroups, first);
  inputs.made.push_back({"what comes out where each group has the scales of its neighbour",
                         [](RecordedOperation& tensors, ContractValues&, Attributes&) {
                           for (const char* name : {"index_q_scale", "k_scale"}) {
                             if (!tensors.inputs.contains(name)) continue;
                             Tensor& tensor = tensors.inputs.at(name).tensor;
                             for (std::size_t i = 0; i + 1 < tensor.bytes.size(); i += 2)
                               std::swap(tensor.bytes[i], tensor.bytes[i + 1]);
                           }
                         }});
  if (!inputs.has("index_cache")) return;
  const auto pages = parse_mxfp4_pages(data.contract);
  const auto page_size = parse_page_size(data.contract);
  if (!pages || !page_size) return;
  const auto geometry = page_geometry(data.tensors.inputs.at("index_cache"), *pages);
  if (!geometry) return;
  inputs.assume("index_cache", "all groups of a key have the scale of its first",
                [pages = *pages, tokens = *page_size, geometry = *geometry](Tensor& cache) {
                  auto* bytes = cache.as<std::uint8_t>();
                  for (std::int64_t t = 0; t < geometry.pages * tokens; ++t) {
                    std::uint8_t* page = bytes + t / tokens * geometry.stride + geometry.offset;
                    for (std::int64_t g = 1; g < kGroups; ++g)
                      page[reference::mxfp4_scale_offset(pages, t % tokens, g)] =
                          page[reference::mxfp4_scale_offset(pages, t % tokens, 0)];
                  }
                });
}

} // namespace dsakit::harness
