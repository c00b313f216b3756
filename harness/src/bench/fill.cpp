#include "fill.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "../record/draws.hpp"
#include "dsakit/reference/formats.hpp"

namespace dsakit::harness {
namespace {

constexpr std::size_t kPool = 65521; // prime, so that no extent divides it
constexpr std::int64_t kAtOnce = 1 << 16;

/// visit(i) for 0 <= i < n, in parallel.
template <class Visit>
void for_each_element(std::int64_t n, const Visit& visit) {
  tbb::parallel_for(std::int64_t{0}, (n + kAtOnce - 1) / kAtOnce, [&](std::int64_t block) {
    for (std::int64_t i = block * kAtOnce; i < std::min(n, (block + 1) * kAtOnce); ++i)
      visit(i);
  });
}

/// The codes of 8 times each value of a pool, by the low bits of a hash.
std::vector<std::uint8_t> codes_of(Fp8Encoding encoding, const ValuePool& pool,
                                   std::uint64_t stream) {
  std::vector<std::uint8_t> codes(kPool);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = reference::encode_fp8_saturating(encoding, 8 * pool.normal(stream, i));
  return codes;
}

std::uint8_t draw_e8m0(const ValuePool& pool, std::uint64_t stream, std::int64_t i) {
  return static_cast<std::uint8_t>(122 + pool.bits(stream, static_cast<std::uint64_t>(i)) % 6);
}

} // namespace

ValuePool::ValuePool(std::uint64_t seed) : seed_(seed), normal_(kPool) {
  const Draws draws(seed, 77);
  for (std::size_t i = 0; i < normal_.size(); ++i)
    normal_[i] = static_cast<float>(draws.normal(i));
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", 2014).
std::uint64_t ValuePool::bits(std::uint64_t stream, std::uint64_t i) const {
  std::uint64_t z = seed_ * 0x9E3779B97F4A7C15 + (stream << 48) + (i + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::vector<std::int32_t> ValuePool::permutation(std::uint64_t stream, std::int64_t n) const {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[bits(stream, i) % i]);
  return order;
}

void fill_values(Tensor& tensor, const ValuePool& pool, std::uint64_t stream, float scale,
                 float mean) {
  const auto value = [&](std::int64_t i) {
    return mean + scale * pool.normal(stream, static_cast<std::uint64_t>(i));
  };
  const std::int64_t n = tensor.elements();
  switch (tensor.dtype) {
  case Dtype::float32:
    return for_each_element(n, [&](std::int64_t i) { tensor.as<float>()[i] = value(i); });
  case Dtype::bfloat16:
    return for_each_element(n, [&](std::int64_t i) {
      tensor.as<std::uint16_t>()[i] = reference::float_to_bf16(value(i));
    });
  case Dtype::float8_e4m3fn:
  case Dtype::float8_e4m3fnuz: {
    const auto codes =
        codes_of(tensor.dtype == Dtype::float8_e4m3fn ? Fp8Encoding::e4m3fn : Fp8Encoding::e4m3fnuz,
                 pool, stream);
    return for_each_element(n, [&](std::int64_t i) {
      tensor.as<std::uint8_t>()[i] =
          codes[pool.bits(stream, static_cast<std::uint64_t>(i)) % kPool];
    });
  }
  case Dtype::float8_e8m0fnu:
    return for_each_element(
        n, [&](std::int64_t i) { tensor.as<std::uint8_t>()[i] = draw_e8m0(pool, stream, i); });
  default: // fp4 pairs: every byte is two finite numbers
    return for_each_element(n, [&](std::int64_t i) {
      tensor.as<std::uint8_t>()[i] =
          static_cast<std::uint8_t>(pool.bits(stream, static_cast<std::uint64_t>(i)));
    });
  }
}

void fill_index_cache(Tensor& cache, std::int64_t page_size, bool mxfp4, Fp8Encoding encoding,
                      const ValuePool& pool, std::uint64_t stream) {
  const std::int64_t row = cache.shape[1], code_bytes = page_size * (mxfp4 ? 64 : 128);
  const auto codes = codes_of(encoding, pool, stream);
  tbb::parallel_for(std::int64_t{0}, cache.shape[0], [&](std::int64_t page) {
    auto* bytes = cache.as<std::uint8_t>() + page * row;
    for (std::int64_t i = 0; i < code_bytes; ++i) {
      const std::uint64_t bits = pool.bits(stream, static_cast<std::uint64_t>(page * row + i));
      bytes[i] = mxfp4 ? static_cast<std::uint8_t>(bits) : codes[bits % kPool];
    }
    if (mxfp4) {
      for (std::int64_t i = 0; i < page_size * 4; ++i)
        bytes[code_bytes + i] = draw_e8m0(pool, stream + 1, page * row + i);
      return;
    }
    for (std::int64_t token = 0; token < page_size; ++token) {
      const auto i = static_cast<std::uint64_t>(page * page_size + token);
      const float scale = 1.0F / static_cast<float>(1 << pool.bits(stream + 1, i) % 6);
      std::memcpy(bytes + code_bytes + 4 * token, &scale, sizeof scale);
    }
  });
}

void fill_mla_cache(Tensor& cache, Fp8Encoding encoding, const ValuePool& pool,
                    std::uint64_t stream) {
  constexpr std::int64_t kRecord = 656, kCodes = 512, kScales = 4, kPe = 64;
  const auto codes = codes_of(encoding, pool, stream);
  tbb::parallel_for(std::int64_t{0}, cache.elements() / kRecord, [&](std::int64_t slot) {
    auto* record = cache.as<std::uint8_t>() + slot * kRecord;
    const auto first = static_cast<std::uint64_t>(slot * kRecord);
    for (std::int64_t i = 0; i < kCodes; ++i)
      record[i] = codes[pool.bits(stream, first + static_cast<std::uint64_t>(i)) % kPool];
    for (std::int64_t i = 0; i < kScales; ++i) {
      const float scale =
          0.125F /
          static_cast<float>(1 + pool.bits(stream + 1, first + static_cast<std::uint64_t>(i)) % 4);
      std::memcpy(record + kCodes + 4 * i, &scale, sizeof scale);
    }
    for (std::int64_t i = 0; i < kPe; ++i) {
      const std::uint16_t pe =
          reference::float_to_bf16(pool.normal(stream + 2, first + static_cast<std::uint64_t>(i)));
      std::memcpy(record + kCodes + 16 + 2 * i, &pe, sizeof pe);
    }
  });
}

void fill_logits(Tensor& logits, const std::string& input, const ValuePool& pool,
                 std::uint64_t stream) {
  const std::int64_t columns = logits.shape[1];
  const auto value = [&](std::int64_t i) -> float {
    const float normal = pool.normal(stream, static_cast<std::uint64_t>(i));
    if (input == "narrow") return 1 + 1e-4F * normal;
    if (input == "constant") return 1;
    if (input == "huge") return 1e6F * normal; // beyond what fp16 holds
    if (input == "sparse")                     // ReLU of every head gave 0
      return pool.bits(stream + 1, static_cast<std::uint64_t>(i)) % 8 == 0 ? normal : 0;
    if (input == "inf_tail" && i % columns >= columns / 2)
      return -std::numeric_limits<float>::infinity();
    return normal;
  };
  for_each_element(logits.elements(), [&](std::int64_t i) { logits.as<float>()[i] = value(i); });
  if (input != "sorted") return;
  tbb::parallel_for(std::int64_t{0}, logits.shape[0], [&](std::int64_t row) {
    float* first = logits.as<float>() + row * columns;
    std::sort(first, first + columns, std::greater<>());
  });
}

void fill_positions(Tensor& positions, std::int64_t context, const std::string& sets,
                    const ValuePool& pool, std::uint64_t stream) {
  const std::int64_t k = positions.shape[1], taken = std::min(k, context);
  tbb::parallel_for(std::int64_t{0}, positions.shape[0], [&](std::int64_t row) {
    auto* first = positions.as<std::int32_t>() + row * k;
    std::fill(first + taken, first + k, -1);
    if (sets == "local" || taken == context) {
      std::iota(first, first + taken, static_cast<std::int32_t>(context - taken));
      return;
    }
    // Sets differ by row, or by group of 16 rows.
    const auto set = static_cast<std::uint64_t>(sets == "shared" ? row / 16 : row) << 32;
    std::vector<bool> used(static_cast<std::size_t>(context));
    std::int64_t found = 0;
    for (std::uint64_t i = 0; found < taken; ++i) {
      const std::uint64_t at = pool.bits(stream, set + i) % static_cast<std::uint64_t>(context);
      if (used[at]) continue;
      used[at] = true;
      first[found++] = static_cast<std::int32_t>(at);
    }
    if (sets != "random") std::sort(first, first + taken);
  });
}

} // namespace dsakit::harness
