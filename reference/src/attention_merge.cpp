// The attention half of context parallelism (spec 6).
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "activation.hpp"
#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/formats.hpp"

namespace dsakit::reference {
namespace {

template <class Value>
constexpr Value kMinusInfinity = -std::numeric_limits<Value>::infinity();

Status check(const DcpAttention& in) {
  if (in.latent_dtype != Dtype::bfloat16 && in.latent_dtype != Dtype::float32)
    return bad_input("latents of the ranks: found dtype " + std::string(name(in.latent_dtype)) +
                     ", want bfloat16 or float32");
  if (in.world < 1)
    return bad_input("ranks: found " + std::to_string(in.world) + ", want at least 1");
  return {};
}

/// Index of (rank, row and head) among all of them; `at` counts rows and heads.
std::int64_t of_rank(const DcpAttention& in, std::int64_t rank, std::int64_t at) {
  return rank * in.rows * in.heads + at;
}

/// Element `d` of what a rank found.
float latent_of(const DcpAttention& in, std::int64_t rank, std::int64_t at, std::int64_t d) {
  const std::int64_t element = of_rank(in, rank, at) * in.dim + d;
  return in.latent_dtype == Dtype::float32
             ? static_cast<const float*>(in.rank_latent)[element]
             : bf16_to_float(static_cast<const std::uint16_t*>(in.rank_latent)[element]);
}

/// What turns a difference of lses into a natural logarithm.
template <class Value>
Value to_natural(LseBase base) {
  return base == LseBase::e ? Value{1} : std::numbers::ln2_v<Value>;
}
template <class Value>
Value from_natural(LseBase base) {
  return base == LseBase::e ? Value{1} : std::numbers::log2e_v<Value>;
}

/// The ranks' weights for one row and head, computed in Value.
template <class Value>
struct Weights {
  Weights(const DcpAttention& in, std::int64_t at)
      : weight(static_cast<std::size_t>(in.world), Value{0}),
        distance(weight.size(), -kMinusInfinity<Value>) {
    std::vector<Value> lses;
    for (std::int64_t rank = 0; rank < in.world; ++rank) {
      const float found = in.rank_lse[of_rank(in, rank, at)];
      const bool empty = std::isnan(found) || std::isinf(found);
      lses.push_back(empty ? kMinusInfinity<Value> : Value{found});
    }
    const Value largest = *std::max_element(lses.begin(), lses.end());
    if (largest == kMinusInfinity<Value>) return;
    for (std::size_t r = 0; r < lses.size(); ++r)
      if (lses[r] != kMinusInfinity<Value>) {
        distance[r] = (largest - lses[r]) * to_natural<Value>(in.lse_base);
        weight[r] = std::exp(-distance[r]);
        sum += weight[r];
      }
    for (Value& of_rank : weight) {
      of_rank /= sum;
      if (static_cast<float>(of_rank) == 0) of_rank = 0;
    }
    lse = std::log(sum) * from_natural<Value>(in.lse_base) + largest;
  }

  std::vector<Value> weight;   ///< exactly 0: what that rank found is not looked at
  std::vector<Value> distance; ///< natural, from the largest lse; +inf of a rank without a key
  Value sum = 0;               ///< of exp(-distance)
  Value lse = kMinusInfinity<Value>;
};

/// A rank's share; 0 times NaN is 0 here.
template <class Value>
Value share(Value weight, float latent) {
  return weight == 0 ? Value{0} : Value{latent} * weight;
}

/// Largest error of storing `value` in a format with that mantissa. What is stored with less than
/// fp32's was rounded to fp32 before, so that it may be half a step of that beyond the nearest.
double rounding_of(double value, int mantissa_bits) {
  return ulp_of(value, mantissa_bits) / 2 + (mantissa_bits < 23 ? ulp_of(value, 23) / 2 : 0);
}

} // namespace

Status dcp_attention_merge_exact(const DcpAttention& in, double* latent, double* lse,
                                 double* corrected) {
  DSAKIT_TRY(check(in));
  tbb::parallel_for(std::int64_t{0}, in.rows * in.heads, [&](std::int64_t at) {
    const Weights<double> of(in, at);
    lse[at] = of.lse;
    for (std::int64_t d = 0; d < in.dim; ++d) {
      double sum = 0;
      for (std::int64_t rank = 0; rank < in.world; ++rank) {
        const double part =
            share(of.weight[static_cast<std::size_t>(rank)], latent_of(in, rank, at, d));
        if (corrected) corrected[of_rank(in, rank, at) * in.dim + d] = part;
        sum += part;
      }
      latent[at * in.dim + d] = sum;
    }
  });
  return {};
}

Status dcp_attention_merge(const DcpAttention& in, std::uint16_t* latent, float* lse) {
  DSAKIT_TRY(check(in));
  tbb::parallel_for(std::int64_t{0}, in.rows * in.heads, [&](std::int64_t at) {
    const Weights<float> of(in, at);
    lse[at] = of.lse;
    for (std::int64_t d = 0; d < in.dim; ++d) {
      float sum = 0;
      for (std::int64_t rank = 0; rank < in.world; ++rank)
        sum += share(of.weight[static_cast<std::size_t>(rank)], latent_of(in, rank, at, d));
      latent[at * in.dim + d] = float_to_bf16(sum);
    }
  });
  return {};
}

Status dcp_attention_correct(const DcpAttention& in, float* lse, void* corrected) {
  DSAKIT_TRY(check(in));
  tbb::parallel_for(std::int64_t{0}, in.rows * in.heads, [&](std::int64_t at) {
    const Weights<float> of(in, at);
    lse[at] = of.lse;
    for (std::int64_t rank = 0; rank < in.world; ++rank) {
      const float difference = in.rank_lse[of_rank(in, rank, at)] - of.lse;
      const bool empty = std::isnan(difference) || difference == -kMinusInfinity<float>;
      const float weight = empty ? 0 : std::exp(difference * to_natural<float>(in.lse_base));
      for (std::int64_t d = 0; d < in.dim; ++d) {
        const std::int64_t element = of_rank(in, rank, at) * in.dim + d;
        const float part = share(weight, latent_of(in, rank, at, d));
        if (in.latent_dtype == Dtype::float32)
          static_cast<float*>(corrected)[element] = part;
        else
          static_cast<std::uint16_t*>(corrected)[element] = float_to_bf16(part);
      }
    }
  });
  return {};
}

Status dcp_attention_merge_bound(const DcpAttention& in, Accumulation accumulation, double* latent,
                                 double* lse, double* corrected) {
  DSAKIT_TRY(check(in));
  if (accumulation == Accumulation::sm90_wgmma_fp8)
    return bad_input("dcp_attention_merge: found accumulation sm90_wgmma_fp8, want exact | fp32");
  const double u = accumulation == Accumulation::exact ? 0x1p-52 : 0x1p-24;
  const int mantissa = in.latent_dtype == Dtype::float32 ? 23 : 7;
  const auto world = static_cast<double>(in.world);
  tbb::parallel_for(std::int64_t{0}, in.rows * in.heads, [&](std::int64_t at) {
    const Weights<double> of(in, at);
    const auto of_weight = [&](std::size_t r) { return (3 * of.distance[r] + 4) * u; };
    double of_sum = (world - 1) * u;
    for (std::size_t r = 0; r < of.weight.size(); ++r)
      if (of.weight[r] != 0) of_sum += of.weight[r] * of_weight(r);
    const double of_log = of.sum == 0 ? 0 : of_sum + 8 * u * std::log(of.sum);
    const double of_lse = of_log * from_natural<double>(in.lse_base);
    lse[at] = of.sum == 0 ? 0 : of_lse + rounding_of(std::fabs(of.lse) + of_lse, 23);
    const double of_rounded_lse = of_log + u * std::fabs(of.lse) * to_natural<double>(in.lse_base);

    for (std::int64_t d = 0; d < in.dim; ++d) {
      double sum = 0, of_latent = 0;
      for (std::int64_t rank = 0; rank < in.world; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        double of_corrected = 0;
        if (std::isfinite(of.distance[r])) {
          const float found = latent_of(in, rank, at, d);
          const double part = share(of.weight[r], found);
          const double underflow = 0x1p-125 * (1 + std::fabs(found));
          // e^(large) is infinite, and 0 times that is no number.
          const auto grown = [&](double by) {
            return (part == 0 ? 0 : std::fabs(part) * std::expm1(by)) + underflow;
          };
          sum += part;
          of_latent += grown(of_weight(r) + of_sum + (world + 2) * u);
          // Whatever the rounded lse hides, a weight lies between 0 and 1.
          const double any_weight =
              std::fabs(found) * std::max(of.weight[r], 1 - of.weight[r]) + underflow;
          of_corrected =
              std::min(grown(of_weight(r) + of_sum + of_rounded_lse + 2 * u), any_weight);
          of_corrected += rounding_of(std::fabs(part) + of_corrected, mantissa);
        }
        if (corrected) corrected[of_rank(in, rank, at) * in.dim + d] = of_corrected;
      }
      latent[at * in.dim + d] = of_latent + rounding_of(std::fabs(sum) + of_latent, 7);
    }
  });
  return {};
}

} // namespace dsakit::reference
