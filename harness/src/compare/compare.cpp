#include "dsakit/harness/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "dsakit/reference/formats.hpp"

namespace dsakit::harness {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
T load(const Tensor& tensor, std::int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

std::uint64_t bits(const Tensor& tensor, std::int64_t i) {
  switch (size_of(tensor.dtype)) {
  case 1:
    return load<std::uint8_t>(tensor, i);
  case 2:
    return load<std::uint16_t>(tensor, i);
  case 4:
    return load<std::uint32_t>(tensor, i);
  default:
    return load<std::uint64_t>(tensor, i);
  }
}

/// Sign and magnitude of a float's bits as one integer that grows with the value; both zeros are 0.
std::int64_t ordered(std::uint64_t bits, int width) {
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return bits & sign ? -magnitude : magnitude;
}

bool is_float(Dtype dtype) {
  switch (dtype) {
  case Dtype::bfloat16:
  case Dtype::float16:
  case Dtype::float8_e4m3fn:
  case Dtype::float8_e4m3fnuz:
  case Dtype::float32:
    return true;
  default:
    return false;
  }
}

/// |got - want|; infinity unless both are finite or both are the same non-finite value.
double error_between(double got, double want) {
  if (std::isfinite(got) && std::isfinite(want)) return std::abs(got - want);
  const bool same = got == want || (std::isnan(got) && std::isnan(want));
  return same ? 0 : kInfinity;
}

/// `value`, or infinity where the storage dtype overflows to one.
double as_stored(double value, Dtype dtype) {
  if (dtype != Dtype::float32 || !std::isfinite(value)) return value;
  return std::isinf(static_cast<float>(value)) ? std::copysign(kInfinity, value) : value;
}

struct Judgement {
  double error;
  double used;
  double rank; ///< orders the elements for Comparison::worst; 0: nothing to see
  bool mismatch;
};

/// The element before it was rounded to storage, where that is known.
double unrounded(const Values& values, std::int64_t i) {
  return values.at(i);
}
double stored(const Values& values, std::int64_t i) {
  return element(values.tensor, i);
}

/// Keeps mismatch number result.mismatches so that in the end each one was kept with the same
/// chance, whatever their order; the same ones in every run.
void keep(Comparison& result, std::int64_t i) {
  if (result.wrong.size() < Comparison::kKept) {
    result.wrong.push_back(i);
    return;
  }
  std::uint64_t mixed = static_cast<std::uint64_t>(result.mismatches) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u; // scattered over all 64 bits
  const std::uint64_t place = (mixed ^ mixed >> 32) % static_cast<std::uint64_t>(result.mismatches);
  if (place < Comparison::kKept) result.wrong[static_cast<std::size_t>(place)] = i;
}

/// Folds every compared element into the statistics. `judge(i, got, want)` judges one; `read` says
/// what its value is.
template <class Read, class Judge>
Comparison fold(const Values& got, const Values& want, const Mask& mask, Read read, Judge judge) {
  Comparison result;
  double worst = 0;
  for (std::int64_t i = 0; i < got.tensor.elements(); ++i) {
    if (!mask.empty() && !mask[static_cast<std::size_t>(i)]) continue;
    ++result.elements;
    const double g = as_stored(read(got, i), got.tensor.dtype);
    const double w = as_stored(read(want, i), want.tensor.dtype);
    const Judgement judgement = judge(i, g, w);
    if (judgement.mismatch) {
      ++result.mismatches;
      if (!result.first) result.first = i;
      keep(result, i);
    }
    result.used = std::max(result.used, judgement.used);
    result.worst_abs = std::max(result.worst_abs, judgement.error);
    if (std::isinf(judgement.error))
      result.worst_rel = kInfinity;
    else if (w != 0 && judgement.error > 0)
      result.worst_rel = std::max(result.worst_rel, judgement.error / std::abs(w));
    if (const auto ulps = ulps_between(got.tensor, want.tensor, i))
      result.ulp_max = std::max(result.ulp_max.value_or(0), *ulps);
    if (judgement.rank > worst) {
      worst = judgement.rank;
      result.worst = i;
    }
  }
  std::sort(result.wrong.begin(), result.wrong.end());
  return result;
}

} // namespace

std::string_view name(Gate gate) {
  constexpr std::array<std::string_view, 3> names = {"exact", "derived", "topk_set"};
  return names[static_cast<std::size_t>(gate)];
}

double Values::at(std::int64_t i) const {
  return unrounded.empty() ? element(tensor, i) : unrounded[static_cast<std::size_t>(i)];
}

double element(const Tensor& tensor, std::int64_t i) {
  switch (tensor.dtype) {
  case Dtype::bfloat16:
    return reference::bf16_to_float(load<std::uint16_t>(tensor, i));
  case Dtype::float16:
    return reference::fp16_to_float(load<std::uint16_t>(tensor, i));
  case Dtype::float8_e4m3fn:
    return reference::decode_fp8(Fp8Encoding::e4m3fn, load<std::uint8_t>(tensor, i));
  case Dtype::float8_e4m3fnuz:
    return reference::decode_fp8(Fp8Encoding::e4m3fnuz, load<std::uint8_t>(tensor, i));
  case Dtype::float8_e8m0fnu: {
    const auto code = load<std::uint8_t>(tensor, i);
    return code == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
  }
  case Dtype::float32:
    return load<float>(tensor, i);
  case Dtype::int32:
    return load<std::int32_t>(tensor, i);
  case Dtype::int64:
    return static_cast<double>(load<std::int64_t>(tensor, i));
  case Dtype::float4_e2m1fn_x2:
  case Dtype::uint8:
    return load<std::uint8_t>(tensor, i);
  }
  return 0;
}

std::string hex(const Tensor& tensor, std::int64_t i) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", static_cast<int>(2 * size_of(tensor.dtype)),
                static_cast<unsigned long long>(bits(tensor, i)));
  return text;
}

std::optional<std::int64_t> ulps_between(const Tensor& a, const Tensor& b, std::int64_t i) {
  if (a.dtype != b.dtype || !is_float(a.dtype) || std::isnan(element(a, i)) ||
      std::isnan(element(b, i)))
    return std::nullopt;
  const int width = static_cast<int>(8 * size_of(a.dtype));
  return std::abs(ordered(bits(a, i), width) - ordered(bits(b, i), width));
}

Comparison compare_exact(const Values& got, const Values& want, const Mask& mask) {
  return fold(got, want, mask, stored, [&](std::int64_t i, double g, double w) {
    const bool mismatch = bits(got.tensor, i) != bits(want.tensor, i);
    const double error = error_between(g, w);
    return Judgement{error, mismatch ? kInfinity : 0, mismatch ? 1 + error : 0, mismatch};
  });
}

Comparison compare_derived(const Values& got, const Values& want, const std::vector<double>& bound,
                           const Mask& mask) {
  return fold(got, want, mask, unrounded, [&](std::int64_t i, double g, double w) {
    const double error = error_between(g, w);
    if (error == 0) return Judgement{0, 0, 0, false};
    const double limit = bound[static_cast<std::size_t>(i)];
    // A bound that is NaN or infinite, since its terms are, lets no error pass.
    const bool mismatch = !std::isfinite(limit) || error > limit;
    const double used = std::isfinite(limit) ? error / limit : kInfinity;
    return Judgement{error, used, used, mismatch};
  });
}

Comparison compare_valid(const Values& got, const Values& want, const Mask& valid,
                         const Mask& mask) {
  return fold(got, want, mask, stored, [&](std::int64_t i, double, double) {
    const bool mismatch = !valid[static_cast<std::size_t>(i)];
    return Judgement{0, mismatch ? kInfinity : 0, mismatch ? 1.0 : 0, mismatch};
  });
}

std::vector<std::int64_t> coordinates(const Shape& shape, std::int64_t flat) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return at;
}

} // namespace dsakit::harness
