// Hints about the scales of quantised groups, in tensors and in cache pages.
#include <algorithm>
#include <optional>

#include "../../operations/index_pages.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "failure.hpp"

namespace dsakit::harness {
namespace {

/// One group's scale, as found and as it should be.
struct ScalePair {
  double odd;
  double right;
};

struct Scales {
  std::vector<ScalePair> wrong; ///< a sample of them in a large tensor
  std::int64_t count = 0;       ///< how many are wrong
  std::int64_t all = 0;
};

double read(const Tensor& bytes, std::int64_t at, Dtype dtype) {
  Tensor one(dtype, {1});
  std::memcpy(one.bytes.data(), bytes.bytes.data() + at, one.bytes.size());
  return element(one, 0);
}

/// The scales in the pages of a cache; offset(i) is that of scale i in BYTES.
template <class Offset>
Scales in_pages(const WrongElements& wrong, std::int64_t count, Dtype dtype, Offset offset) {
  Scales scales;
  scales.all = count;
  for (std::int64_t i = 0; i < count; ++i) {
    const double odd = read(wrong.odd_tensor(), offset(i), dtype);
    const double right = read(wrong.right_tensor(), offset(i), dtype);
    if (odd != right) scales.wrong.push_back({odd, right});
  }
  scales.count = std::ssize(scales.wrong);
  return scales;
}

std::optional<Scales> index_cache_scales(const Failure& f) {
  const RecordedTensor& cache = f.data.tensors.inputs.at("index_cache");
  const auto page_size = parse_page_size(f.data.contract);
  if (!page_size) return std::nullopt;
  if (f.data.operation().format == "mxfp4") {
    const auto pages = parse_mxfp4_pages(f.data.contract);
    if (!pages) return std::nullopt;
    const auto geometry = page_geometry(cache, *pages);
    if (!geometry) return std::nullopt;
    constexpr std::int64_t kGroups = reference::kMxfp4Groups;
    const std::int64_t of_page = *page_size * kGroups;
    return in_pages(f.wrong, geometry->pages * of_page, Dtype::float8_e8m0fnu, [&](std::int64_t i) {
      return i / of_page * geometry->stride + geometry->offset +
             reference::mxfp4_scale_offset(*pages, i % of_page / kGroups, i % kGroups);
    });
  }
  const auto pages = parse_index_pages(f.data.contract);
  if (!pages) return std::nullopt;
  const auto geometry = page_geometry(cache, *pages);
  if (!geometry) return std::nullopt;
  return in_pages(f.wrong, geometry->pages * *page_size, Dtype::float32, [&](std::int64_t i) {
    return i / *page_size * geometry->stride + geometry->offset +
           reference::index_scale_offset(*pages, i % *page_size);
  });
}

std::optional<Scales> scales_of(const Failure& f) {
  if (f.data.id.operation == "index_cache_write") return index_cache_scales(f);
  if (f.data.id.operation == "mla_cache_write") {
    constexpr std::int64_t kTiles = reference::kMlaLatent / reference::kMlaTile;
    const std::int64_t records = f.wrong.odd_tensor().elements() / reference::kMlaRecord;
    return in_pages(f.wrong, records * kTiles, Dtype::float32, [](std::int64_t i) {
      return i / kTiles * reference::kMlaRecord + reference::kMlaLatent + 4 * (i % kTiles);
    });
  }
  if (!f.c.output.ends_with("_scale")) return std::nullopt;
  Scales scales;
  scales.count = f.judged.comparison.mismatches;
  scales.all = f.judged.comparison.elements;
  for (const std::int64_t i : f.wrong.at())
    scales.wrong.push_back({f.wrong.odd(i), f.wrong.right(i)});
  return scales;
}

bool one_ulp_apart(const ScalePair& pair) {
  return std::nextafter(static_cast<float>(pair.right), static_cast<float>(pair.odd)) ==
         static_cast<float>(pair.odd);
}

} // namespace

Hint scales(const Failure& f) {
  const auto found = scales_of(f);
  if (!found || found->wrong.size() < kEnough) return {};
  const auto count = [&](auto fits) {
    return std::count_if(found->wrong.begin(), found->wrong.end(), fits);
  };
  const auto n = static_cast<std::int64_t>(found->wrong.size());
  const auto nearly_all = [&](std::int64_t fitting) { return fitting * 10 >= n * 9; };
  const std::string part = std::to_string(found->count) + " of " + std::to_string(found->all) +
                           " scales of " + whose(f.c);
  const auto doubled = count([](const ScalePair& p) { return p.odd == 2 * p.right; });
  const auto halved = count([](const ScalePair& p) { return 2 * p.odd == p.right; });
  const auto hadamard = f.data.contract.find("hadamard");
  const bool rotated = hadamard != f.data.contract.end() && hadamard->second != "none";
  // A scale that was computed so has codes to match; a tensor of scales has none of its own.
  const auto& parts = f.judged.quantised;
  const bool same_codes = parts && parts->codes > 0 && parts->codes_wrong == 0;
  // All of them by one factor: an encoding, not the rounding of some.
  const bool constant = found->count == found->all && (doubled == n || halved == n);
  if (nearly_all(doubled + halved) && !constant)
    return part + " are one exponent from right, " +
           (doubled > 0 && halved > 0 ? "some too large and some too small: those of other groups?"
            : same_codes              ? (halved == 0 ? "too large" : "too small") +
                               std::string(", and no code differs: changed after quantising?")
            : halved == 0 ? "too large: an exact power of two rounded up once more, or a floor "
                            "twice as high?"
                          : "too small: rounded down or to even, not up?");
  if (nearly_all(count(one_ulp_apart)))
    return part + " are one ulp off: times a reciprocal instead of a division?";
  if (nearly_all(count([](const ScalePair& p) { return p.odd < p.right; })) && !constant)
    return part + " are too small: an amax over a part of the group" +
           (rotated ? ", or a step of the rotation left out?" : "?");
  return {};
}

} // namespace dsakit::harness
