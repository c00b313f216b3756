#include "quantised.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "../operations/index_pages.hpp"
#include "../operations/mla_pages.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"

namespace dsakit::harness {
namespace {

Dtype fp8(Fp8Encoding encoding) {
  return encoding == Fp8Encoding::e4m3fn ? Dtype::float8_e4m3fn : Dtype::float8_e4m3fnuz;
}

/// Every record of the pool, as one request that has all pages in order.
struct WholePool {
  explicit WholePool(std::int64_t pages, std::int64_t page_size)
      : table(static_cast<std::size_t>(pages)), rows(pages * page_size),
        ends{0, static_cast<std::int32_t>(rows)} {
    std::iota(table.begin(), table.end(), 0);
  }
  std::vector<std::int32_t> table;
  std::int64_t rows;
  std::array<std::int32_t, 2> ends;

  reference::BlockTable block_table() const {
    return {table.data(), 1, static_cast<std::int64_t>(table.size())};
  }
};

std::optional<Parts> index_records(const OperationData& data, const Tensor& tensor) {
  const bool mxfp4 = data.operation().format == "mxfp4";
  RecordedTensor cache = data.tensors.inputs.at("index_cache"); // for its page_offset
  cache.tensor = tensor;
  const auto read = [&](const auto& pages, const auto& gather) -> std::optional<Parts> {
    if (!pages) return std::nullopt;
    const auto geometry = page_geometry(cache, *pages);
    if (!geometry) return std::nullopt;
    const WholePool pool(geometry->pages, pages->page_size.value);
    Parts parts;
    const Status status =
        gather(*pages, pool,
               reference::IndexCache<const std::uint8_t>{
                   tensor.as<std::uint8_t>() + geometry->offset, geometry->pages, geometry->stride},
               parts);
    return status ? std::optional(std::move(parts)) : std::nullopt;
  };
  if (mxfp4)
    return read(parse_mxfp4_pages(data.contract), [](const Mxfp4Pages& pages, const WholePool& pool,
                                                     auto bytes, Parts& parts) {
      parts.codes = Tensor(Dtype::float4_e2m1fn_x2, {pool.rows, reference::kMxfp4Bytes});
      parts.scales = Tensor(Dtype::float8_e8m0fnu, {pool.rows, reference::kMxfp4Groups});
      return reference::index_cache_gather_mxfp4(pages, bytes, pool.block_table(), pool.ends, {},
                                                 pool.rows, parts.codes.as<std::uint8_t>(),
                                                 parts.scales.as<std::uint8_t>());
    });
  return read(parse_index_pages(data.contract), [](const IndexPages& pages, const WholePool& pool,
                                                   auto bytes, Parts& parts) {
    parts.codes = Tensor(fp8(pages.index_fp8_encoding), {pool.rows, reference::kIndexHeadDim});
    parts.scales = Tensor(Dtype::float32, {pool.rows});
    return reference::index_cache_gather(pages, bytes, pool.block_table(), pool.ends, {}, pool.rows,
                                         parts.codes.as<std::uint8_t>(), parts.scales.as<float>());
  });
}

/// A record is 512 codes, then a float32 scale for each 128 of them (spec 4).
std::optional<Parts> mla_records(const OperationData& data, const Tensor& tensor) {
  const auto encoding = parse_mla_fp8_encoding(data.contract);
  if (!encoding) return std::nullopt;
  const auto cache = mla_pages<const std::uint8_t>(tensor);
  const std::int64_t records = cache.pages * cache.page_size;
  constexpr std::int64_t kScales = reference::kMlaLatent / reference::kMlaTile;
  Parts parts{Tensor(fp8(*encoding), {records, reference::kMlaLatent}),
              Tensor(Dtype::float32, {records, kScales})};
  for (std::int64_t i = 0; i < records; ++i) {
    const std::uint8_t* record = cache.data + i * cache.record_stride;
    std::memcpy(parts.codes.as<std::uint8_t>() + i * reference::kMlaLatent, record,
                reference::kMlaLatent);
    std::memcpy(parts.scales.as<float>() + i * kScales, record + reference::kMlaLatent,
                kScales * sizeof(float));
  }
  return parts;
}

/// The same value, NaN included; -0 is not 0.
bool same(double a, double b) {
  return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
}

void compare_value(double got, double want, ReportQuantised& result) {
  if (same(got, want)) return;
  ++result.values_wrong;
  const double error = std::isfinite(got) && std::isfinite(want)
                           ? std::abs(got - want)
                           : std::numeric_limits<double>::infinity();
  result.values_worst_abs = std::max(result.values_worst_abs, error);
  if (want != 0 && !std::isnan(want))
    result.values_worst_rel =
        std::max(result.values_worst_rel, std::isinf(want) ? std::numeric_limits<double>::infinity()
                                                           : error / std::abs(want));
}

/// The halves of byte i of fp4 pairs, else its one code.
int codes_of(const Tensor& tensor, std::int64_t i, std::array<double, 2>& values) {
  if (tensor.dtype != Dtype::float4_e2m1fn_x2) {
    values[0] = element(tensor, i);
    return 1;
  }
  const std::uint8_t byte = tensor.as<std::uint8_t>()[i];
  values = {reference::decode_e2m1(byte & 15), reference::decode_e2m1(byte >> 4)};
  return 2;
}

} // namespace

std::string scales_output(const std::string& output) {
  for (const auto& [codes, scales] :
       {std::pair("index_q_fp8", "index_q_scale"), std::pair("index_q_packed", "index_q_scale"),
        std::pair("k_fp8", "k_scale"), std::pair("k_packed", "k_scale")})
    if (output == codes) return scales;
  return {};
}

const Tensor* find_scales(const RecordedOperation& recorded, const std::string& tensor,
                          const std::string& output) {
  if (scales_output(output).empty() || !tensor.starts_with(output)) return nullptr;
  const auto found = recorded.outputs.find(scales_output(output) + tensor.substr(output.size()));
  return found == recorded.outputs.end() ? nullptr : &found->second.tensor;
}

std::optional<Parts> take_apart(const OperationData& data, const std::string& output,
                                const Tensor& tensor, const Tensor* scales) {
  if (output == "index_cache") return index_records(data, tensor);
  if (output == "mla_cache") return mla_records(data, tensor);
  if (output == "index_q_scale" || output == "k_scale")
    return Parts{Tensor(Dtype::uint8, {0}), tensor};
  if (!scales || scales_output(output).empty() || scales->elements() == 0) return std::nullopt;
  return Parts{tensor, *scales};
}

ReportQuantised compare_parts(const Parts& got, const Parts& want, const Mask& mask) {
  ReportQuantised result;
  const std::int64_t scales = want.scales.elements();
  const std::int64_t block = scales > 0 ? want.codes.elements() / scales : 0;
  for (std::int64_t s = 0; s < scales; ++s) {
    const double got_scale = element(got.scales, s);
    const double want_scale = element(want.scales, s);
    bool compared = block == 0;
    for (std::int64_t i = s * block; i < (s + 1) * block; ++i) {
      if (!mask.empty() && !mask[static_cast<std::size_t>(i)]) continue;
      compared = true;
      std::array<double, 2> ours{};
      std::array<double, 2> theirs{};
      const int codes = codes_of(got.codes, i, ours);
      codes_of(want.codes, i, theirs);
      result.codes += codes;
      for (std::size_t half = 0; half < static_cast<std::size_t>(codes); ++half) {
        result.codes_wrong += !same(ours[half], theirs[half]);
        compare_value(ours[half] * got_scale, theirs[half] * want_scale, result);
      }
    }
    if (!compared) continue;
    ++result.scales;
    if (same(got_scale, want_scale)) continue;
    ++result.scales_wrong;
    result.scales_one_exponent += got_scale == 2 * want_scale || want_scale == 2 * got_scale;
  }
  return result;
}

} // namespace dsakit::harness
