#include "scramble.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "../operations/index_pages.hpp"
#include "../record/draws.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kWindow = 16; // BYTES

bool holds_ids(const Tensor& tensor) {
  return tensor.dtype == Dtype::int32 || tensor.dtype == Dtype::int64;
}

/// Numbers of one kind, that may stand for one another: where in the tensor, BYTES of each.
struct Kind {
  std::size_t size;
  std::vector<std::size_t> places;
};

bool is_zero(const std::byte* at, std::size_t size) {
  return std::all_of(at, at + size, [](std::byte b) { return b == std::byte{0}; });
}

bool is_finite(Dtype dtype, const Tensor& tensor, std::size_t place) {
  switch (dtype) {
  case Dtype::float32:
  case Dtype::bfloat16:
  case Dtype::float16:
    return std::isfinite(element(tensor, static_cast<std::int64_t>(place / size_of(dtype))));
  case Dtype::float8_e4m3fn:
    return (tensor.bytes[place] | std::byte{0x80}) != std::byte{0xFF};
  case Dtype::float8_e4m3fnuz:
    return tensor.bytes[place] != std::byte{0x80};
  default:
    return true;
  }
}

/// Each place that is neither zero nor NaN nor infinite gets the number of another one.
void draw(Tensor& tensor, Kind kind, const Draws& draws, std::uint64_t& counter) {
  const Tensor old = tensor;
  std::erase_if(kind.places, [&](std::size_t place) {
    return is_zero(old.bytes.data() + place, kind.size) || !is_finite(old.dtype, old, place);
  });
  for (const std::size_t place : kind.places) {
    const std::size_t drawn = draws.bits(counter++) % kind.places.size();
    std::memcpy(tensor.bytes.data() + place, old.bytes.data() + kind.places[drawn], kind.size);
  }
}

Kind elements(const Tensor& tensor) {
  Kind kind{size_of(tensor.dtype), {}};
  for (std::size_t at = 0; at < tensor.bytes.size(); at += kind.size)
    kind.places.push_back(at);
  return kind;
}

/// Latents, their scales, and what is not rotated, of MLA records.
std::vector<Kind> mla_kinds(const Tensor& cache) {
  const auto record = static_cast<std::size_t>(cache.shape.back());
  if (record != static_cast<std::size_t>(reference::kMlaRecord)) { // rows of bf16
    Kind all = elements(cache);
    std::erase_if(all.places, [](std::size_t place) { return place % 2 != 0; });
    all.size = 2;
    return {all};
  }
  constexpr std::size_t kLatents = reference::kMlaLatent, kScales = kLatents + 16;
  std::vector<Kind> kinds = {{1, {}}, {4, {}}, {2, {}}};
  for (std::size_t first = 0; first < cache.bytes.size(); first += record) {
    for (std::size_t at = 0; at < kLatents; ++at)
      kinds[0].places.push_back(first + at);
    for (std::size_t at = kLatents; at < kScales; at += 4)
      kinds[1].places.push_back(first + at);
    for (std::size_t at = kScales; at < record; at += 2)
      kinds[2].places.push_back(first + at);
  }
  return kinds;
}

/// Scales, fp32 or e8m0, and everything else of index pages.
std::vector<Kind> index_kinds(const Problem& problem, const RecordedTensor& cache) {
  const bool mxfp4 = problem.data().operation().format == "mxfp4";
  const auto fp8_pages = parse_index_pages(problem.contract);
  const auto mxfp4_pages = parse_mxfp4_pages(problem.contract);
  const auto geometry =
      mxfp4 ? page_geometry(cache, *mxfp4_pages) : page_geometry(cache, *fp8_pages);
  std::vector<Kind> kinds = {{1, {}}, {mxfp4 ? std::size_t{1} : std::size_t{4}, {}}};
  std::vector<bool> is_scale(cache.tensor.bytes.size());
  for (std::int64_t page = 0; page < geometry->pages; ++page)
    for (std::int64_t token = 0; token < problem.page_size(); ++token)
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int64_t offset = mxfp4 ? reference::mxfp4_scale_offset(*mxfp4_pages, token, i)
                                          : reference::index_scale_offset(*fp8_pages, token) + i;
        const auto place =
            static_cast<std::size_t>(page * geometry->stride + geometry->offset + offset);
        is_scale[place] = true;
        if (mxfp4 || i == 0) kinds[1].places.push_back(place);
      }
  for (std::size_t at = 0; at < is_scale.size(); ++at)
    if (!is_scale[at]) kinds[0].places.push_back(at);
  return kinds;
}

/// Other scores in the same order, equal where they were.
void draw_scores(Tensor& scores, const Draws& draws, std::uint64_t& counter) {
  float* values = scores.as<float>();
  const auto n = static_cast<std::size_t>(scores.elements());
  std::vector<float> sorted;
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) continue;
    sorted.push_back(values[i]);
    sum += values[i];
    squares += static_cast<double>(values[i]) * values[i];
  }
  if (sorted.empty()) return;
  const auto count = static_cast<double>(sorted.size());
  const double mean = sum / count,
               deviation = std::sqrt(std::max(squares / count - mean * mean, 0x1p-40));
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<float> drawn(sorted.size());
  for (float& value : drawn)
    value = static_cast<float>(mean + deviation * draws.normal(counter++));
  std::sort(drawn.begin(), drawn.end());
  for (std::size_t i = 1; i < drawn.size(); ++i)
    drawn[i] = std::max(drawn[i], std::nextafter(drawn[i - 1], HUGE_VALF));
  for (std::size_t i = 0; i < n; ++i)
    if (std::isfinite(values[i]))
      values[i] = drawn[static_cast<std::size_t>(
          std::lower_bound(sorted.begin(), sorted.end(), values[i]) - sorted.begin())];
}

/// Few different bytes: zeros, repeats, powers of two. Draws meet such a window by chance.
bool tells_little(std::string_view window) {
  constexpr std::size_t kFew = 6;
  return std::set<char>(window.begin(), window.end()).size() <= kFew;
}

void for_each_window(const Problem& problem, const std::function<void(std::string_view)>& visit) {
  for (const auto* side : {&problem.tensors.inputs, &problem.tensors.outputs})
    for (const auto& [name, recorded] : *side) {
      if (holds_ids(recorded.tensor)) continue;
      const std::string_view bytes(recorded.tensor.as<char>(), recorded.tensor.bytes.size());
      for (std::size_t at = 0; at + kWindow <= bytes.size(); ++at)
        visit(bytes.substr(at, kWindow));
    }
}

} // namespace

Problem scramble(const Problem& problem, std::uint64_t seed) {
  Problem scrambled = problem;
  std::uint32_t stream = 0; // a tensor each
  for (auto& [name, recorded] : scrambled.tensors.inputs) {
    const Draws draws(seed, stream++);
    std::uint64_t counter = 0;
    Tensor& tensor = recorded.tensor;
    if (holds_ids(tensor)) continue;
    if (name == "rank_scores" || (name == "logits" && problem.id.operation == "topk")) {
      draw_scores(tensor, draws, counter);
      continue;
    }
    const auto kinds = name == "mla_cache"     ? mla_kinds(tensor)
                       : name == "index_cache" ? index_kinds(problem, recorded)
                                               : std::vector<Kind>{elements(tensor)};
    for (const Kind& kind : kinds)
      draw(tensor, kind, draws, counter);
  }
  return scrambled;
}

bool shares_values(const Problem& original, const Problem& scrambled) {
  std::unordered_set<std::string_view> windows;
  for_each_window(scrambled, [&](std::string_view window) {
    if (!tells_little(window)) windows.insert(window);
  });
  bool shares = false;
  for_each_window(original,
                  [&](std::string_view window) { shares = shares || windows.contains(window); });
  return shares;
}

} // namespace dsakit::harness
